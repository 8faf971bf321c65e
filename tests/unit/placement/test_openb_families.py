"""Families of pod lists: what a member has that its source has not, and that a seed names it."""

from collections.abc import Callable

import pytest

from tests.bench.placement.families import FAMILIES, Family, is_share
from tests.bench.placement.trace import Machine, Task

MACHINES = [
    Machine(96_000, 393_216, 8, "G2"),
    Machine(104_000, 524_288, 2, "T4"),
    Machine(128_000, 786_432, 8, "G3"),
]
SOURCE = [
    *[Task(12_000, 16_384, 1, 1000)] * 400,
    *[Task(4000, 8192, 1, 460), Task(3152, 8192, 1, 220)] * 200,
    *[Task(16_000, 16_384, 2, 1000)] * 8,
    *[Task(32_000, 65_536, 4, 1000)] * 8,
    *[Task(88_000, 327_680, 8, 1000)] * 8,
    *[Task(12_500, 16_384, 0, 0)] * 100,
]

FAMILY_BY_NAME = {family.name: family for family in FAMILIES}


def _fits_somewhere(task: Task) -> bool:
    return any(
        machine.gpus >= task.gpus
        and machine.cpu_milli >= task.cpu_milli
        and machine.memory_mib >= task.memory_mib
        and (not task.models or machine.model in task.models)
        for machine in MACHINES
    )


def _cores(tasks: list[Task]) -> int:
    return sum(task.cpu_milli for task in tasks)


def _memory(tasks: list[Task]) -> int:
    return sum(task.memory_mib for task in tasks)


def _part(tasks: list[Task], counts: Callable[[Task], bool]) -> float:
    """Of the GPUs asked for."""
    return sum(task.size_milli for task in tasks if counts(task)) / sum(task.size_milli for task in tasks)


def _named(tasks: list[Task]) -> float:
    """The part of pods with GPUs that name a model."""
    return sum(bool(task.models) for task in tasks) / sum(task.gpus > 0 for task in tasks)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_seed_names_a_member(family: Family) -> None:
    member = family.member(SOURCE, MACHINES, 1)

    assert member == family.member(list(SOURCE), list(MACHINES), 1)
    assert member != family.member(SOURCE, MACHINES, 2)
    assert all(_fits_somewhere(task) for task in member)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("name", "amount", "lowest", "highest"),
    [
        ("cpu-asked-0.4-1", lambda tasks: _cores(tasks) / _cores(SOURCE), 0.4, 1),
        ("cpu-asked-1-1.5", lambda tasks: _cores(tasks) / _cores(SOURCE), 1, 1.5),
        ("cpu-asked-1.5-3", lambda tasks: _cores(tasks) / _cores(SOURCE), 1.4, 3),
        ("without-gpus-0.5-2.5", lambda tasks: sum(not task.gpus for task in tasks) / 100, 0.5, 2.5),
        ("cards-for-shares", lambda tasks: sum(map(is_share, tasks)), 0, 0),
        ("several-gpus-20-60", lambda tasks: _part(tasks, lambda task: task.gpus > 1), 0.19, 0.62),
        ("models-named-5-20", _named, 0.02, 0.25),
        ("models-named-20-40", _named, 0.15, 0.45),
        ("shares-20-80", lambda tasks: _part(tasks, is_share), 0.19, 0.81),
        ("shares-100", lambda tasks: _part(tasks, is_share), 1, 1),
        ("memory-asked-2-6", lambda tasks: _memory(tasks) / _memory(SOURCE), 1.5, 6),
    ],
)
def test_a_member_has_what_its_family_is_named_for(
    name: str, amount: Callable[[list[Task]], float], lowest: float, highest: float, seed: int
) -> None:
    member = FAMILY_BY_NAME[name].member(SOURCE, MACHINES, seed)

    assert lowest <= amount(member) <= highest
