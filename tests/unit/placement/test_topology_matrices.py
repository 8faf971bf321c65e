"""On real machines the chosen GPUs are the exhaustive optimum: every free mask, every size, every wish."""

import os
from functools import cached_property
from itertools import combinations
from pathlib import Path
from random import Random

import pytest

from gpuloom.catalog import load_catalog
from gpuloom.model.request import TopologyPreference
from gpuloom.placement.topology import MAX_TABLE_GPUS, TopologyTable
from tests.unit.placement.matrices import Shape, read_matrices
from tests.unit.placement.test_topology import BruteForce

SAMPLED_QUESTIONS = 16


def ours() -> dict[str, Shape]:
    return {shape.name: (shape.topology, shape.numa) for shape in load_catalog().shapes}


def theirs() -> dict[str, Shape]:
    data = os.environ.get("GPULOOM_DATA")
    path = Path(data, "topologies.json") if data else None
    return read_matrices(path) if path is not None and path.is_file() else {}


def shapes(large: bool) -> pytest.MarkDecorator:
    """The catalogue's machines and those of the data folder, or one case that says there is no folder."""
    found = [(f"catalogue {name}", shape) for name, shape in ours().items()]
    found += [(f"data {name}", shape) for name, shape in theirs().items()]
    cases = [
        pytest.param(shape, id=name)
        for name, shape in found
        if (shape[0].gpu_count > MAX_TABLE_GPUS) == large
    ]
    if not theirs():
        skip = pytest.mark.skip(reason="REAL MATRICES DID NOT RUN: GPULOOM_DATA has no topologies.json")
        cases.append(pytest.param(None, marks=skip, id="data"))
    return pytest.mark.parametrize("shape", cases)


class Exhaustive:
    """The values of all sets of one shape, and the best by trying every set."""

    def __init__(self, shape: Shape, preference: TopologyPreference) -> None:
        self._brute = BruteForce(*shape)
        self._preference = preference
        self._gpus = range(shape[0].gpu_count)

    @cached_property
    def _values(self) -> dict[int, tuple[float, int, bool]]:
        return {mask: self._value(mask) for mask in range(1 << len(self._gpus))}

    def _value(self, mask: int) -> tuple[float, int, bool]:
        gpus = tuple(gpu for gpu in self._gpus if mask >> gpu & 1)
        return (
            self._brute.wished(gpus, self._preference),
            self._brute.link_score(gpus),
            self._brute.satisfied(gpus, self._preference),
        )

    def best(self, free: int, count: int, required: bool) -> int:
        positions = [gpu for gpu in self._gpus if free >> gpu & 1]
        found, best = 0, (-1.0, -1, -1)
        for chosen in combinations(positions, count):
            mask = sum(1 << gpu for gpu in chosen)
            wished, links, satisfied = self._values[mask]
            order = (wished, links, self._values[free ^ mask][1])
            if (satisfied or not required) and order > best:
                found, best = mask, order
        return found


@pytest.mark.parametrize("preference", list(TopologyPreference))
@shapes(large=False)
def test_every_choice_is_the_exhaustive_optimum(shape: Shape, preference: TopologyPreference) -> None:
    table, exhaustive = TopologyTable.for_shape(*shape), Exhaustive(shape, preference)

    for free in range(1, 1 << table.gpu_count):
        for count in range(1, free.bit_count() + 1):
            for required in (False, True):
                expected = exhaustive.best(free, count, required)
                assert table.best(free, count, preference, required) == expected, (bin(free), count, required)


@shapes(large=True)
def test_sampled_choices_of_large_machines_are_the_optimum(shape: Shape) -> None:
    random = Random(7)
    table = TopologyTable.for_shape(*shape)

    for preference in (TopologyPreference.NONE, random.choice(list(TopologyPreference))):
        brute = BruteForce(*shape)
        for _ in range(SAMPLED_QUESTIONS):
            positions = sorted(random.sample(range(table.gpu_count), random.randint(1, 12)))
            count, required = random.randint(1, len(positions)), random.random() < 0.5
            expected = brute.best(positions, count, preference, required)
            free = sum(1 << gpu for gpu in positions)
            chosen = table.best(free, count, preference, required)
            assert chosen == sum(1 << gpu for gpu in expected), (positions, count, required)
