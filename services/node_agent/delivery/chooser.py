"""Finds out which way devices reach containers here, and says so whenever it changes.

Looks at the runtime's socket every second; the cluster is asked for the runtime class only where the answer
matters. Decides nothing itself: `way` does.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpuloom.model.node import Delivery, Holder
from gpuloom.runtime.clock import Clock
from services.node_agent.delivery.config import DeliveryWay
from services.node_agent.delivery.core.way import Sight, delivery_of, may_need_environment
from services.node_agent.delivery.known_pods import PodSource, holder_by_environment
from services.node_agent.delivery.runtime_class import RuntimeClassReader
from services.node_agent.ports import Runtime

_log = logging.getLogger(__name__)

_LOOK_INTERVAL_S = 1.0


@dataclass(frozen=True, slots=True)
class ChooserParts:
    """`changed` is told the way at the start and whenever it changes."""

    way: DeliveryWay
    socket: Path
    clock: Clock
    runtime_class: RuntimeClassReader
    changed: Callable[[Delivery], None]


class Chooser:
    def __init__(self, parts: ChooserParts) -> None:
        self._parts = parts
        self._connected = self._was_connected = False
        self._socket_there = True
        self._missing_since_s = parts.clock.monotonic()
        self._delivery: Delivery | None = None
        self._decide()

    @property
    def delivery(self) -> Delivery:
        return Delivery.NONE if self._delivery is None else self._delivery

    def set_connected(self, connected: bool) -> None:
        """The runtime takes us as its plugin, or no longer does."""
        self._connected = connected
        self._was_connected = self._was_connected or connected
        self._decide()

    async def run(self) -> None:
        while True:
            await self.look()
            await self._parts.clock.sleep(_LOOK_INTERVAL_S)

    async def look(self) -> None:
        there = await asyncio.to_thread(self._parts.socket.exists)
        if self._socket_there and not there:
            self._missing_since_s = self._parts.clock.monotonic()
        self._socket_there = there
        if self._parts.way is DeliveryWay.AUTO and may_need_environment(self._sight()):
            await self._parts.runtime_class.read_if_due()
        self._decide()

    def _sight(self) -> Sight:
        age_s = self._parts.clock.monotonic() - self._missing_since_s
        return Sight(
            connected=self._connected,
            was_connected=self._was_connected,
            socket_missing_s=0.0 if self._socket_there else age_s,
            runtime_class=self._parts.runtime_class.found,
        )

    def _decide(self) -> None:
        delivery = delivery_of(self._parts.way, self._sight())
        if delivery is self._delivery:
            return
        self._delivery = delivery
        _log.info("the way of delivery is decided", extra={"delivery": delivery.value})
        self._parts.changed(delivery)


class ChosenRuntime:
    """Who has devices, asked of whoever knows it under the present way."""

    def __init__(self, chooser: Chooser, plugin: Runtime, pods: PodSource) -> None:
        self._chooser = chooser
        self._plugin = plugin
        self._pods = pods

    async def holders(self) -> tuple[Holder, ...]:
        """Raise UnavailableError while it is not known."""
        if self._chooser.delivery is Delivery.ENV:
            return await self._pods.holders()
        running = await self._plugin.holders()
        listed = {holder.pod.uid for holder in running}
        # Who got devices by environment before the runtime had a socket for plugins has them still.
        others = [given for given in self._pods.given_by_environment() if given.pod.uid not in listed]
        return (*running, *(holder_by_environment(given) for given in others))
