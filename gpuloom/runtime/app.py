"""What a service is made of, as its build function puts it together.

It collects loops, checks, drains and open contexts, and refuses ambiguous ones. It never runs any of them:
`lifecycle` does.
"""

import re
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry

from gpuloom.runtime.clock import Clock
from gpuloom.runtime.http import Check

T = TypeVar("T")
Work = Callable[[], Awaitable[None]]

# The name becomes part of metric names.
_NAME = re.compile(r"[a-z][a-z0-9_]*")


class App:
    """Handed to the build function of a service."""

    def __init__(self, name: str, clock: Clock, registry: CollectorRegistry) -> None:
        if not _NAME.fullmatch(name):
            raise ValueError(f"service name {name!r} must be lower-case letters, digits and underscores")
        self.name = name
        self.clock = clock
        self.registry = registry
        # The bound port of the status endpoint; known before build is called.
        self.http_port = 0
        self.loops: dict[str, Work] = {}
        self.drains: dict[str, Work] = {}
        self.readiness: dict[str, Check] = {}
        self.liveness: dict[str, Check] = {}
        self.contexts: list[AbstractAsyncContextManager[Any]] = []
        self._sealed = False

    def add_loop(self, name: str, loop: Work) -> None:
        """Run `loop` from the end of build to the stop. If it returns or raises before, the process ends."""
        if self._sealed:
            raise RuntimeError(f"loop {name} added after build: it would never be started")
        _add(self.loops, "loop", name, loop)

    def add_readiness(self, name: str, check: Check) -> None:
        """Ask `check` at every /readyz: None is fine, a text says why no work should come here."""
        _add(self.readiness, "readiness check", name, check)

    def add_liveness(self, name: str, check: Check) -> None:
        """Ask `check` at every /healthz: None is fine, a text says why a restart is due."""
        _add(self.liveness, "liveness check", name, check)

    async def enter(self, context: AbstractAsyncContextManager[T]) -> T:
        """Open a context for the life of the service; contexts are closed last, in reverse order."""
        value = await context.__aenter__()
        self.contexts.append(context)
        return value

    def on_drain(self, name: str, drain: Work) -> None:
        """Call `drain` at the stop, once /readyz says so and while loops still run; in reverse order."""
        _add(self.drains, "drain", name, drain)

    def seal(self) -> None:
        """Build is over; loops that are added from now on would be forgotten, so they are refused."""
        self._sealed = True


def _add(registered: dict[str, T], kind: str, name: str, item: T) -> None:
    if name in registered:
        raise ValueError(f"{kind} {name} is registered twice")
    registered[name] = item
