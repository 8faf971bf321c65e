"""Looks at the node again and again, and publishes what changed.

A part that does not answer is reported as not known; it never stops the others, and never the loop.
"""

import logging
from dataclasses import dataclass

from gpuloom.errors import GpuloomError
from gpuloom.model.node import Holder, NodeMode, NodeState, PodPresence
from gpuloom.runtime.clock import Clock
from services.node_agent.attribution.census import Census
from services.node_agent.attribution.core.holders import (
    Listing,
    kubelet_holders,
    process_holders,
    unlisted_holders,
)
from services.node_agent.attribution.core.ownership import OwnedProcess
from services.node_agent.attribution.core.presence import checked, lingering_holders, running_pods
from services.node_agent.core.plausibility import sift
from services.node_agent.core.readings import DriverReading
from services.node_agent.core.state import Observation, next_state
from services.node_agent.metrics import AgentMetrics
from services.node_agent.node import Node
from services.node_agent.ports import GpuDriver, Kubelet, PodDirectory, PodGroups, Runtime

_log = logging.getLogger(__name__)


class Owners:
    """Who holds this node's devices: the kubelet knows what device plugins and DRA drivers gave, and the
    runtime what we deliver on a `gpuloom` node.

    There the kubelet is asked, too: pods that were there before the node changed its mode have devices of
    NVIDIA's plugin, and a DRA driver may give out GPUs on any node. In every mode, processes show who
    computes on what they were not given, and control groups who is still there.
    """

    def __init__(
        self, kubelet: Kubelet, runtime: Runtime, pods: PodDirectory, census: Census, groups: PodGroups
    ) -> None:
        self._kubelet = kubelet
        self._runtime = runtime
        self._pods = pods
        self._census = census
        self._groups = groups

    async def observe(
        self, state: NodeState, driver: DriverReading | None, driver_problem: str
    ) -> Observation:
        """`state` is the node as it was known until now."""
        # Processes are looked up last: of a container that ends meanwhile they are then gone, while the other
        # way round they would seem to compute on what nobody gave them.
        listed, holders_problem = await self._listed(state.mode)
        count = await self._census.take(driver)
        given = listed.given(count.all, state.holders) if listed is not None else ()
        presence = await self._presence(running_pods(given, count.all))
        still = presence if not presence.unknown_reason else state.presence
        given += lingering_holders(given, state.holders, still, self._pods.names())
        return Observation(
            node_uid=self._pods.node_uid(),
            driver=driver,
            driver_problem=driver_problem,
            holders=given + process_holders(count.all, given),
            holders_problem=holders_problem,
            processes=count.shown,
            processes_problem=count.problem,
            presence=presence,
        )

    async def _presence(self, running: set[str]) -> PodPresence:
        try:
            return checked(await self._groups.presence(), running, self._pods)
        except GpuloomError as error:
            return PodPresence(unknown_reason=str(error))

    async def _listed(self, mode: NodeMode) -> tuple["_Listed | None", str]:
        """What was given, and why it can't be believed, if so."""
        unsynced = self._pods.unsynced_reason()
        if unsynced:
            return None, unsynced
        try:
            before = self._pods.names()
            pods = await self._kubelet.pod_devices()
            listing = Listing(pods, before, self._pods.names())
            delivered = () if mode is NodeMode.NVIDIA else await self._runtime.holders()
        except GpuloomError as error:
            return None, str(error)
        return _Listed(listing, delivered), ""


@dataclass(frozen=True, slots=True)
class _Listed:
    """What the kubelet listed, and who holds what the agent delivered."""

    listing: Listing
    delivered: tuple[Holder, ...]

    def given(self, processes: tuple[OwnedProcess, ...], known: tuple[Holder, ...]) -> tuple[Holder, ...]:
        """`known` are the holders of the sample before."""
        through_kubelet = kubelet_holders(self.listing, processes) + unlisted_holders(self.listing, known)
        return through_kubelet + self.delivered


class Sampler:
    def __init__(
        self, node: Node, driver: GpuDriver, owners: Owners, clock: Clock, metrics: AgentMetrics
    ) -> None:
        self._node = node
        self._driver = driver
        self._owners = owners
        self._clock = clock
        self._metrics = metrics
        self._problems: dict[str, str] = {}

    async def run(self, interval_s: float, usage_interval_s: float) -> None:
        """Look every `interval_s`; readers are told what GPUs do every `usage_interval_s` only."""
        usage_due_s = self._clock.monotonic()
        while True:
            due = self._clock.monotonic() >= usage_due_s
            if due:
                usage_due_s = self._clock.monotonic() + usage_interval_s
            await self.look(with_usage=due)
            await self._clock.sleep(interval_s)

    async def look(self, *, with_usage: bool = True) -> None:
        started_s = self._clock.monotonic()
        driver, driver_problem = await self._read_driver()
        seen = await self._owners.observe(self._node.state, driver, driver_problem)
        self._node.move_to(next_state(self._node.state, seen, with_usage), driver, seen.processes)
        self._metrics.look_duration.observe(self._clock.monotonic() - started_s)
        self._report(seen)

    async def _read_driver(self) -> tuple[DriverReading | None, str]:
        try:
            reading, rejected = sift(await self._driver.read())
        except GpuloomError as error:
            return None, str(error)
        self._metrics.count_implausible(rejected)
        return reading, ""

    def _report(self, seen: Observation) -> None:
        """Count every sample once, by its gravest problem, and log each part when its problem changes."""
        problems = {
            "driver": seen.driver_problem,
            "holders": seen.holders_problem,
            "processes": seen.processes_problem,
            "pods": seen.presence.unknown_reason,
        }
        self._metrics.looks.labels(next((part for part, why in problems.items() if why), "none")).inc()
        for part, why in problems.items():
            if why != self._problems.get(part, ""):
                fields = {"node": self._node.state.node_name, "part": part, "reason": why}
                if why:
                    _log.warning("part of the node can't be read", extra=fields)
                else:
                    _log.info("part of the node can be read again", extra=fields)
        self._problems = problems
