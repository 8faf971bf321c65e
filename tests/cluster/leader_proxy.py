"""What a Service does for kube-scheduler: new connections go to a pod that wears the leader's label.

TLS is not touched. As in a cluster, a label takes a moment to be seen, connections that are open stay where
they are, and while nobody wears the label nobody answers.
"""

import asyncio
import random
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from gpuloom.errors import GpuloomError
from gpuloom.kube.client import KubeClient
from gpuloom.kube.listing import Selection
from gpuloom.kube.objects import key_of
from gpuloom.kube.resources import PODS
from gpuloom.runtime.clock import Clock
from tests.cluster.tcp_proxy import TcpProxy

LEADERS = "gpuloom.dev/leader=true"
LOOK_INTERVAL_S = 0.2


class LeaderProxy:
    """Async context manager. `ports` are those of the replicas on loopback, by the names of their pods."""

    def __init__(self, client: KubeClient, namespace: str, ports: Mapping[str, int], clock: Clock) -> None:
        self.leaders: tuple[str, ...] = ()
        """Who wears the label; two for a moment when one was stopped and the next leads already."""
        self._client = client
        self._namespace = namespace
        self._ports = ports
        self._clock = clock
        self._random = random.Random(0)
        self._proxy = TcpProxy(self._target)
        self._looking: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        return self._proxy.port

    async def __aenter__(self) -> Self:
        await self._proxy.__aenter__()
        self._looking = asyncio.create_task(self._look())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])
        await self._proxy.__aexit__(kind, error, traceback)

    async def _look(self) -> None:
        while True:
            try:
                found = await self._client.list(PODS, Selection(self._namespace, LEADERS), timeout_s=2.0)
                self.leaders = tuple(sorted(key_of(pod)[1] for pod in found.items))
            except GpuloomError:
                # As a Service does when the API is away: it keeps what it knows.
                pass
            await self._clock.sleep(LOOK_INTERVAL_S)

    def _target(self) -> int | None:
        known = [name for name in self.leaders if name in self._ports]
        return self._ports[self._random.choice(known)] if known else None
