"""python -m tests.bench.gangs: planning a gang and a preemption in a large cluster, and filter meanwhile.

In this process, without network or Kubernetes: the planners by themselves, then in turns beside calls of
filter, as the leader runs them. Times are the processor's: what other processes take does not count. See the
README beside this file.
"""

import argparse
import asyncio
import logging
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any

from gpuloom.codec.pod import pod_request
from gpuloom.errors import GpuloomError
from gpuloom.kube.objects import JsonObject
from gpuloom.placement.gangs.gang import GangPlan, plan_gang
from gpuloom.placement.gangs.preemption import plan_preemption
from gpuloom.placement.gangs.sites import Member, Result, Steps, completed
from gpuloom.placement.gangs.victims import Field, PreemptionPlan, units_of
from gpuloom.placement.occupancy.nominations import Asker
from gpuloom.runtime.clock import SystemClock
from gpuloom.sim.command import CommandParser, run_command
from services.scheduler_extender.planning.preemptions import Mode
from services.scheduler_extender.planning.sites import Grounds
from services.scheduler_extender.planning.slices import in_slices
from tests.bench.report import table
from tests.unit.scheduler_extender.planning.desk import Kubernetes, Leader

CARDS = 8
GANG = 256
MOST_MS = 200.0
ROUNDS = 10
PRIORITY = 1000


Plan = Callable[[bool], Coroutine[Any, Any, None]]
"""Plans once; in turns, if so."""


class MissedError(GpuloomError):
    """An aim was missed; the table says which."""


def main() -> int:
    parser = CommandParser(prog="python -m tests.bench.gangs", description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    return run_command("bench-gangs", lambda: _run(parser.parse_args()))


async def _run(options: argparse.Namespace) -> None:
    logging.getLogger("services").setLevel(logging.ERROR)
    clock = SystemClock()
    kubernetes = Kubernetes({f"n{i:04d}": CARDS for i in range(options.nodes)})
    leader = Leader(kubernetes, clock)  # type: ignore[arg-type]
    kubernetes.create("probe")
    leader.offered("probe")
    quiet = _filters(leader, 200)
    gang = [_member(leader, kubernetes.create(f"m{i}", priority=PRIORITY)) for i in range(GANG)]

    async def plan_a_gang(slices: bool) -> None:
        grounds = await _done(leader.book.grounds(Asker("", PRIORITY)), clock, slices)
        sites = list(grounds.sites.values())
        plan = await _done(plan_gang(gang, sites, None, leader.gangs._parts.judge), clock, slices)
        assert isinstance(plan, GangPlan)

    rows = [("what", "p50 ms", "highest ms", "filter p99 ms beside it")]
    rows.append(await _row(f"a gang of {GANG}", plan_a_gang, leader))
    await _fill(kubernetes, leader)
    high = _member(leader, kubernetes.create("high", 1, priority=PRIORITY))

    loop = leader.preempting(Mode.ON, 0.0)

    async def plan_a_preemption(slices: bool) -> None:
        grounds: Grounds = await _done(leader.book.grounds(Asker("", PRIORITY)), clock, slices)
        found = await _done(loop.tenants.candidates(grounds, PRIORITY), clock, slices)
        units = await _done(units_of(found.victims, PRIORITY, found.protected), clock, slices)
        ground = Field(grounds.sites, units, lambda name, uids: leader.book.without(grounds, name, uids))
        plan = await _done(plan_preemption([high], ground), clock, slices)
        assert isinstance(plan, PreemptionPlan)

    rows.append(await _row("a preemption, every card used", plan_a_preemption, leader))
    print(f"{options.nodes} nodes; filter alone p99 {quiet:.1f} ms\n" + table(rows))  # noqa: T201
    if any(float(row[1]) > MOST_MS for row in rows[1:]):
        raise MissedError(f"planning took more than {MOST_MS:g} ms")


async def _row(
    name: str, plan: Callable[[bool], Coroutine[Any, Any, None]], leader: Leader
) -> tuple[str, str, str, str]:
    took: list[float] = []
    for _ in range(ROUNDS):
        started_s = time.thread_time()
        await plan(False)
        took.append(time.thread_time() - started_s)
    beside: list[float] = []
    for _ in range(ROUNDS):
        task = asyncio.ensure_future(plan(True))
        while not task.done():
            # As a call that comes at the beginning of a turn of planning: it waits for its end.
            started_s = time.thread_time()
            await asyncio.sleep(0)
            leader.offered("probe")
            beside.append(time.thread_time() - started_s)
        await task
    return name, f"{_ms(sorted(took)[len(took) // 2])}", f"{_ms(max(took))}", f"{_p99(beside):.1f}"


def _filters(leader: Leader, count: int) -> float:
    took = []
    for _ in range(count):
        started_s = time.thread_time()
        leader.offered("probe")
        took.append(time.thread_time() - started_s)
    return _p99(took)


async def _fill(kubernetes: Kubernetes, leader: Leader) -> None:
    """A pod on every card, without asking anybody."""
    for i, name in enumerate(kubernetes.cards):
        for card in range(CARDS):
            made = kubernetes.create(f"low-{i}-{card}")
            await leader.bind(made["metadata"]["name"], name)
    leader.state.views.viewer()


async def _done(steps: Steps[Result], clock: SystemClock, slices: bool) -> Result:
    return await in_slices(steps, clock) if slices else completed(steps)


def _member(leader: Leader, pod: JsonObject) -> Member:
    read, request = leader.book.pod(pod), pod_request(pod)
    assert read is not None
    assert request is not None
    return Member(read, request)


def _p99(took: list[float]) -> float:
    return sorted(took)[int(len(took) * 0.99)] * 1000


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f}"


if __name__ == "__main__":
    sys.exit(main())
