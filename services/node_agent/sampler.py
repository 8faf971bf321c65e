"""Looks at the node again and again, and publishes what changed.

A part that does not answer is reported as not known; it never stops the others, and never the loop.
"""

import logging

from gpuloom.errors import GpuloomError
from gpuloom.model.node import Holder, NodeMode
from gpuloom.runtime.clock import Clock
from services.node_agent.metrics import AgentMetrics
from services.node_agent.node import Node
from services.node_agent.ports import GpuDriver, Kubelet, PodDirectory, Runtime
from services.node_agent.readings import DriverReading
from services.node_agent.state import Observation, kubelet_holders, next_state

_log = logging.getLogger(__name__)


class Owners:
    """Who holds this node's devices: the kubelet knows on `nvidia` nodes, the runtime on `gpuloom` ones."""

    def __init__(self, kubelet: Kubelet, runtime: Runtime, pods: PodDirectory) -> None:
        self._kubelet = kubelet
        self._runtime = runtime
        self._pods = pods

    def node_uid(self) -> str:
        return self._pods.node_uid()

    async def read(self, mode: NodeMode) -> tuple[tuple[Holder, ...], str]:
        """The holders, and why they can't be believed, if so."""
        unsynced = self._pods.unsynced_reason()
        if unsynced:
            return (), unsynced
        try:
            if mode is NodeMode.NVIDIA:
                return kubelet_holders(await self._kubelet.pod_devices(), self._pods.uid_of), ""
            return await self._runtime.holders(), ""
        except GpuloomError as error:
            return (), str(error)


class Sampler:
    def __init__(
        self, node: Node, driver: GpuDriver, owners: Owners, clock: Clock, metrics: AgentMetrics
    ) -> None:
        self._node = node
        self._driver = driver
        self._owners = owners
        self._clock = clock
        self._metrics = metrics
        self._problem = ""

    async def run(self, interval_s: float) -> None:
        while True:
            await self.look()
            await self._clock.sleep(interval_s)

    async def look(self) -> None:
        started_s = self._clock.monotonic()
        driver, driver_problem = await self._read_driver()
        holders, holders_problem = await self._owners.read(self._node.state.mode)
        seen = Observation(self._owners.node_uid(), driver, driver_problem, holders, holders_problem)
        self._node.move_to(next_state(self._node.state, seen))
        self._metrics.look_duration.observe(self._clock.monotonic() - started_s)
        self._report(driver_problem, holders_problem)

    async def _read_driver(self) -> tuple[DriverReading | None, str]:
        try:
            return await self._driver.read(), ""
        except GpuloomError as error:
            return None, str(error)

    def _report(self, driver_problem: str, holders_problem: str) -> None:
        part = "driver" if driver_problem else "holders" if holders_problem else "none"
        self._metrics.looks.labels(part).inc()
        problem = driver_problem or holders_problem
        if problem == self._problem:
            return
        self._problem = problem
        fields = {"node": self._node.state.node_name, "part": part, "reason": problem}
        if problem:
            _log.warning("part of the node can't be read", extra=fields)
        else:
            _log.info("the whole node can be read", extra=fields)
