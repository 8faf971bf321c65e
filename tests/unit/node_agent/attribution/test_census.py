"""Counting processes sample after sample, and listing them on request."""

import asyncio
from dataclasses import dataclass, field, replace

import pytest

from gpuloom.errors import UnavailableError
from gpuloom.model.node import PodRef
from gpuloom.runtime.clock import settle
from services.node_agent.attribution.census import Census
from services.node_agent.attribution.listing import ProcessLister
from services.node_agent.core.readings import DriverReading, Process
from services.node_agent.ports import ProcessOwner
from tests.unit.node_agent.builders import FakeMachine, a_gpu, a_process, a_reading, processes_on

BOTH = a_reading(a_gpu("GPU-a", 0), a_gpu("GPU-b", 1))
TRAIN = ProcessOwner("python3", "uid-train", "id-main")


def silent(reading: DriverReading, uuid: str) -> DriverReading:
    """That GPU does not tell its processes."""
    return replace(reading, processes={key: found for key, found in reading.processes.items() if key != uuid})


def a_machine_with(*processes: Process) -> FakeMachine:
    running = {process.pid: TRAIN for process in processes}
    return FakeMachine(processes_on(BOTH, *processes), uids={"train": "uid-train"}, running=running)


async def test_a_process_is_told_with_its_pod_and_container() -> None:
    machine = a_machine_with(a_process(7))

    count = await Census(machine, machine).take(machine.reading)

    (shown,) = count.shown
    assert (shown.pid, shown.name, shown.memory_mib, shown.sm_ratio) == (7, "python3", 512, 0.25)
    assert (shown.pod, shown.container) == (PodRef("team-a", "train", "uid-train"), "main")
    assert count.problem == ""


async def test_a_process_that_ended_is_shown_without_a_name() -> None:
    machine = a_machine_with(a_process(7))
    machine.running = {}

    count = await Census(machine, machine).take(machine.reading)

    assert [(shown.pid, shown.name, shown.pod) for shown in count.shown] == [(7, "", None)]
    assert not any(each.runs for each in count.all)


async def test_a_host_that_can_not_be_seen_leaves_processes_without_owners_and_says_why() -> None:
    machine = a_machine_with(a_process(7))
    machine.host_problem = "set hostPID"

    count = await Census(machine, machine).take(machine.reading)

    assert [(shown.pid, shown.pod) for shown in count.shown] == [(7, None)]
    assert count.problem == "set hostPID"


async def test_a_gpu_that_falls_silent_keeps_the_processes_that_still_run() -> None:
    machine = a_machine_with(a_process(7), a_process(8), a_process(9, "GPU-b"))
    census = Census(machine, machine)
    await census.take(machine.reading)

    del machine.running[8]
    one_silent = await census.take(silent(machine.reading, "GPU-a"))
    down = await census.take(None)

    assert [each.process.pid for each in one_silent.remembered] == [7]
    assert [shown.pid for shown in one_silent.shown] == [9]
    assert [each.process.pid for each in down.remembered] == [7, 9]
    assert all(each.runs for each in down.remembered)


async def test_a_number_that_went_to_another_pod_is_not_remembered() -> None:
    machine = a_machine_with(a_process(7))
    census = Census(machine, machine)
    await census.take(machine.reading)

    machine.running[7] = ProcessOwner("python3", "uid-other")

    assert (await census.take(None)).all == ()
    machine.running[7] = TRAIN
    assert (await census.take(None)).all == ()


async def test_a_gpu_that_speaks_again_replaces_what_was_remembered() -> None:
    machine = a_machine_with(a_process(7))
    census = Census(machine, machine)
    await census.take(machine.reading)
    await census.take(None)

    count = await census.take(processes_on(BOTH))

    assert count.all == ()
    assert (await census.take(None)).all == ()


@dataclass
class SlowMachine(FakeMachine):
    """Lists its processes when it is released; counts how often it was asked."""

    asked: int = 0
    released: asyncio.Event = field(default_factory=asyncio.Event)

    async def list_processes(self) -> tuple[tuple[Process, ...], dict[str, str]]:
        self.asked += 1
        await self.released.wait()
        return await super().list_processes()


async def test_whoever_asks_during_a_listing_shares_it() -> None:
    machine = SlowMachine(processes_on(BOTH, a_process(7)), unanswered={"GPU-b": "it hangs"})
    async with ProcessLister(machine, Census(machine, machine)) as lister:
        first, second = (asyncio.create_task(lister.list_now()) for _ in range(2))
        await settle()
        first.cancel()
        machine.released.set()
        shared = await second
        again = await lister.list_now()

    assert machine.asked == 2
    assert [found.pid for found in shared.processes] == [7]
    assert shared == again
    assert shared.unanswered == {"GPU-b": "it hangs"}


async def test_a_listing_that_fails_after_its_caller_left_harms_nobody() -> None:
    machine = SlowMachine(driver_problem="down")
    async with ProcessLister(machine, Census(machine, machine)) as lister:
        task = asyncio.create_task(lister.list_now())
        await settle()
        task.cancel()
        machine.released.set()
        await settle()

        with pytest.raises(UnavailableError, match="down"):
            await lister.list_now()


async def test_a_listing_ends_with_its_lister() -> None:
    machine = SlowMachine()
    async with ProcessLister(machine, Census(machine, machine)) as lister:
        task = asyncio.create_task(lister.list_now())
        await settle()

    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()


async def test_a_list_is_given_even_if_the_host_can_not_be_seen() -> None:
    machine = a_machine_with(a_process(7))
    machine.host_problem = "set hostPID"

    async with ProcessLister(machine, Census(machine, machine)) as lister:
        (found,) = (await lister.list_now()).processes

    assert (found.pid, found.name, found.pod) == (7, "", None)
