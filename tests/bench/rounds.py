"""One round of one variant: pods are created, then their scheduler starts, and their bindings are watched.

The extender runs before the pods exist, so that it is as ready as it is in a cluster where pods come one by
one; it and the scheduler are new in every round, so no round knows of an earlier one.
"""

import asyncio
import os
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import TypeVar

from gpuloom.errors import NotFoundError
from gpuloom.kube.client import DeleteOptions, KubeClient
from gpuloom.kube.listing import Selection
from gpuloom.kube.objects import JsonObject, key_of
from gpuloom.kube.resources import PODS
from gpuloom.model.snapshot import NodeFacts
from gpuloom.runtime.clock import deadline
from gpuloom.sim.processes.ports import free_ports
from gpuloom.sim.processes.supervisor import RestartPolicy, Supervisor
from tests.bench.api_writes import WriteCounters, writes_between
from tests.bench.audit import check_devices, check_nodes, placed_pods
from tests.bench.caller import read_waits
from tests.bench.calls import CallTimes, read_calls
from tests.bench.launch import EXTENDER, SCHEDULER, Grounds, RoundPlan, RoundPorts
from tests.bench.measures import pods_per_second
from tests.bench.observer import BindingObserver
from tests.bench.processes import ProcessMeter, ProcessUse
from tests.bench.variants import Variant, scheduler_name
from tests.bench.workload import NAMESPACE, PodPlan, pod_object

CONCURRENT_WRITES = 16
ROUND_TIMEOUT_S = 180.0
# A round that loses a process is over; a second life of it would be measured as a slow first one.
_POLICY = RestartPolicy(max_early_deaths=1, first_delay_s=ROUND_TIMEOUT_S, delay_cap_s=ROUND_TIMEOUT_S)
_MOST_PROBLEMS = 20
SETTLE_S = 1.5
"""An extender that has just begun tells pending pods of the new room once, a second later."""
FILTER_WAITED = "filter, as waited for"
CALLED_PODS = 500
"""As many, or all, in the bursts in which a second caller measures its waits."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RoundResult:
    variant: Variant
    number: int
    pods: int
    bound: int
    pods_per_s: float | None
    calls: CallTimes = field(default_factory=dict)
    processes: Mapping[str, ProcessUse] = field(default_factory=dict)
    writes: Mapping[str, int] = field(default_factory=dict)
    load_average: float = 0.0
    problems: tuple[str, ...] = ()
    bound_after_s: tuple[float, ...] = ()
    """Each pod's time after the first one: shows where a slow round stood still."""


@dataclass(frozen=True)
class Stage:
    """Where rounds take place: the cluster and what is the same for all of them."""

    grounds: Grounds
    client: KubeClient
    counters: WriteCounters
    nodes: Mapping[str, NodeFacts]
    pods: Sequence[PodPlan]
    control_plane_pids: Mapping[str, int]


async def run_round(stage: Stage, variant: Variant, number: int) -> RoundResult:
    """Raise StartError if a process does not come up. Leaves no pods behind.

    What a caller waits for is measured in a burst of its own: calls that kube-scheduler did not make would
    take from the pods a second of those variants that can be called, and from no others.
    """
    result = await _run_burst(stage, variant, number)
    if variant is Variant.BARE:
        return result
    called = await _run_burst(replace(stage, pods=stage.pods[:CALLED_PODS]), variant, number, called=True)
    calls = {**result.calls, FILTER_WAITED: called.calls[FILTER_WAITED]}
    return replace(result, calls=calls, problems=result.problems + called.problems)


async def _run_burst(stage: Stage, variant: Variant, number: int, *, called: bool = False) -> RoundResult:
    plan = RoundPlan(stage.grounds, variant, number, RoundPorts(*free_ports(4, random.Random())), called)
    try:
        burst = await _burst(stage, plan)
    finally:
        await delete_pods(stage.client)
    times_s = list(burst.times_s.values())
    return RoundResult(
        variant=variant,
        number=number,
        pods=len(stage.pods),
        bound=len(times_s),
        pods_per_s=pods_per_second(times_s) if len(times_s) == len(stage.pods) else None,
        # Its process has ended by now, which is when it writes them.
        calls={**read_calls(plan.calls_file), FILTER_WAITED: _waits(plan, times_s)},
        processes=burst.processes,
        writes=burst.writes,
        load_average=burst.load_average,
        problems=tuple(burst.problems[:_MOST_PROBLEMS]),
        bound_after_s=tuple(round(at_s - min(times_s), 4) for at_s in sorted(times_s)),
    )


@dataclass
class _Burst:
    load_average: float
    times_s: Mapping[str, float] = field(default_factory=dict)
    processes: Mapping[str, ProcessUse] = field(default_factory=dict)
    writes: Mapping[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


async def _burst(stage: Stage, plan: RoundPlan) -> _Burst:
    clock = stage.grounds.clock
    burst = _Burst(os.getloadavg()[0])
    async with AsyncExitStack() as stack:
        supervisor = await stack.enter_async_context(Supervisor(clock, _POLICY))
        extender = plan.extender()
        if extender is not None:
            await supervisor.start([[extender]])
            await clock.sleep(SETTLE_S)
        await create_pods(stage, plan.variant)
        before = await stage.counters.settled()
        await _watch_burst(stage, plan, supervisor, burst)
        burst.writes = writes_between(before, await stage.counters.settled())
        burst.problems += await _problems(stage, plan.variant, burst)
    return burst


async def _watch_burst(stage: Stage, plan: RoundPlan, supervisor: Supervisor, burst: _Burst) -> None:
    listing = await stage.client.list(PODS, Selection(namespace=NAMESPACE))
    meter = ProcessMeter({})
    observer = BindingObserver(len(stage.pods), stage.grounds.clock, meter.begin)
    async with asyncio.TaskGroup() as group:
        following = group.create_task(observer.follow(stage.client, listing.resource_version))
        lost = group.create_task(supervisor.until(_lost_process))
        if plan.called:
            await supervisor.start([[plan.caller(_filter_calls(stage, listing.items))]])
        await supervisor.start([[plan.scheduler()]])
        meter.pids.update(_pids(stage, supervisor))
        try:
            async with deadline(stage.grounds.clock, ROUND_TIMEOUT_S):
                await asyncio.wait({following, lost}, return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            burst.problems.append(f"not all pods were bound within {ROUND_TIMEOUT_S:g} s")
        if lost.done():
            burst.problems += [
                f"{one.name} {one.last_exit}" for one in supervisor.statuses() if one.last_exit
            ]
        elif following.done():
            burst.processes = meter.end()
        following.cancel()
        lost.cancel()
    burst.times_s = observer.times_s


def _filter_calls(stage: Stage, pods: Sequence[JsonObject]) -> list[JsonObject]:
    """As kube-scheduler sends them: one pod of each mode, and the nodes that offer what it asks for."""
    pod_of = {key_of(pod)[1]: pod for pod in pods}
    calls = []
    for mode in dict.fromkeys(plan.mode for plan in stage.pods):
        example = pod_of[next(plan.name for plan in stage.pods if plan.mode is mode)]
        # None of the burst: what is held for a pod by its own bind would be free for it.
        pod = {**example, "metadata": {**example["metadata"], "name": "caller", "uid": f"caller-{mode}"}}
        names = [name for name, facts in stage.nodes.items() if facts.state.mode is mode]
        calls.append({"Pod": pod, "Nodes": None, "NodeNames": names})
    return calls


def _waits(plan: RoundPlan, times_s: Sequence[float]) -> list[float]:
    return read_waits(plan.waits_file, min(times_s), max(times_s)) if times_s else []


def _lost_process(supervisor: Supervisor) -> bool:
    return any(status.last_exit for status in supervisor.statuses())


def _pids(stage: Stage, supervisor: Supervisor) -> dict[str, int]:
    own = {
        status.name: status.pid for status in supervisor.statuses() if status.name in (SCHEDULER, EXTENDER)
    }
    found = {name: pid for name, pid in own.items() if pid is not None}
    return {**stage.control_plane_pids, **found, "benchmark": os.getpid()}


async def _problems(stage: Stage, variant: Variant, burst: _Burst) -> list[str]:
    if burst.problems:
        return []
    listing = await stage.client.list(PODS, Selection(namespace=NAMESPACE))
    placed = placed_pods(stage.pods, listing.items)
    problems = check_nodes(placed, stage.nodes)
    if variant is Variant.OURS:
        problems += check_devices(placed, stage.nodes)
    return problems


async def create_pods(stage: Stage, variant: Variant) -> None:
    scheduler = scheduler_name(variant)

    async def create(plan: PodPlan) -> None:
        await stage.client.create(PODS, pod_object(plan, scheduler))

    await for_each(stage.pods, create)


async def delete_pods(client: KubeClient) -> None:
    async def delete(name: str) -> None:
        try:
            await client.delete(PODS, name, NAMESPACE, DeleteOptions(grace_period_s=0))
        except NotFoundError:
            return

    listing = await client.list(PODS, Selection(namespace=NAMESPACE))
    await for_each([key_of(pod)[1] for pod in listing.items], delete)


async def for_each(items: Iterable[T], work: Callable[[T], Awaitable[object]]) -> None:
    """A few at a time."""
    waiting = iter(items)

    async def worker() -> None:
        for item in waiting:
            await work(item)

    async with asyncio.TaskGroup() as group:
        for _ in range(CONCURRENT_WRITES):
            group.create_task(worker())
