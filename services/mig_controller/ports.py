"""What the controller needs from outside."""

from collections.abc import Awaitable, Callable
from typing import Protocol

from gpuloom.model.claims import HoldTarget
from gpuloom.model.layout import LayoutChange, LayoutRequest
from services.mig_controller.core.intents import Intent


class Holds(Protocol):
    """Capacity that the extender gives to nobody else. All raise UnavailableError or NotReadyError."""

    async def take(self, name: str, target: HoldTarget, reason: str, ttl_s: int) -> None:
        """The same again is no error. Raise ConflictError if it is in use or held by somebody else."""

    async def renew(self, name: str, ttl_s: int) -> None:
        """Raise NotFoundError if it is over."""

    async def release(self, name: str) -> None:
        """One that is over already is no error."""

    async def list_own(self) -> tuple[str, ...]:
        """Names of the holds that this service took."""


class Agents(Protocol):
    async def change(self, node_uid: str, request: LayoutRequest) -> LayoutChange:
        """Begin it, or say what became of it.

        Raise ConflictError if it may not begin, NotFoundError if there is no such node or GPU,
        UnavailableError if the agent can't be asked.
        """


class IntentStore(Protocol):
    async def load(self) -> tuple[Intent, ...]:
        """Raise UnavailableError if it can't be read; without it nothing may be decided."""

    async def save(self, intents: tuple[Intent, ...]) -> None:
        """Durable when it returns. Raise UnavailableError, or NotReadyError without the lease."""


class Prices(Protocol):
    def usd_lost(self, owner: str) -> float | None:
        """What moving this pod (namespace/name) would cost in lost work; None if that is not known."""


Reach = Callable[[str], Awaitable[None]]
"""Comes by a failpoint."""


async def nowhere(name: str) -> None:
    """No failpoint is set."""
