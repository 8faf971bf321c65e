import math
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuloom.clients.cluster_arrays import (
    FIRST_ROWS,
    HEALTH_CODES,
    MODE_CODES,
    NO_NODE,
    NO_NUMA_NODE,
    ClusterArrays,
)
from gpuloom.model.allocation import AllocatedDevice
from gpuloom.model.gpu import DeviceRef, Gpu, GpuHealth, GpuUsage
from gpuloom.model.node import Delivery, Holder, HolderSource, NodeMode, NodeState, PodRef
from gpuloom.model.snapshot import ClosedGpu, NodeFacts, NodePlace, PodAllocation
from tests.effort import examples
from tests.strategies import NODE_FACTS

UIDS = ["u1", "u2", "u3"]
DELTAS = st.lists(st.tuples(st.sampled_from(UIDS), st.none() | NODE_FACTS), max_size=12)

_TEXTS = {"region", "zone", "rack", "nvlink_domain", "capacity_type", "instance_type", "model"}


@settings(max_examples=examples(40))
@given(DELTAS)
def test_arrays_of_any_deltas_equal_arrays_of_the_final_state(
    deltas: list[tuple[str, NodeFacts | None]],
) -> None:
    arrays, final = ClusterArrays(), dict[str, NodeFacts]()

    for uid, facts in deltas:
        arrays.observe(uid, facts)
        final.pop(uid, None)
        if facts is not None:
            final[uid] = facts

    assert as_values(arrays) == as_values(built_fresh(final))
    assert int(arrays.nodes.live.sum()) == len(final)
    assert int(arrays.gpus.live.sum()) == sum(len(facts.state.gpus) for facts in final.values())


@settings(max_examples=examples(40))
@given(DELTAS)
def test_a_row_stays_while_its_node_and_gpu_are_there(deltas: list[tuple[str, NodeFacts | None]]) -> None:
    arrays, rows = ClusterArrays(), dict[tuple[str, str], int]()

    for uid, facts in deltas:
        arrays.observe(uid, facts)
        now = rows_of(arrays, [name for name in UIDS if arrays.node_row(name) is not None])
        assert all(now[key] == row for key, row in rows.items() if key in now)
        assert len(set(now.values())) == len(now)
        rows = now


@settings(max_examples=examples(40))
@given(DELTAS)
def test_rows_that_nobody_has_are_blank(deltas: list[tuple[str, NodeFacts | None]]) -> None:
    arrays = ClusterArrays()

    for uid, facts in deltas:
        arrays.observe(uid, facts)
    for uid in UIDS:
        arrays.observe(uid, None)

    blank = ClusterArrays()
    for columns, empty in ((arrays.nodes, blank.nodes), (arrays.gpus, blank.gpus)):
        for column in fields(columns):
            np.testing.assert_array_equal(getattr(columns, column.name), getattr(empty, column.name))


def test_a_gpu_row_says_what_is_known_of_the_gpu() -> None:
    arrays = ClusterArrays()

    arrays.observe("u1", a_busy_node())
    first, second = arrays.gpu_rows("u1")

    gpus = arrays.gpus
    assert arrays.node_uid(int(gpus.node_row[first])) == "u1"
    assert (gpus.index[first], gpus.memory_mib[first], gpus.numa_node[first]) == (0, 81920, 1)
    assert arrays.texts.text(gpus.model[first]) == "A100"
    assert (gpus.health[first], gpus.health[second]) == (
        HEALTH_CODES[GpuHealth.HEALTHY],
        HEALTH_CODES[GpuHealth.LOST],
    )
    assert (gpus.allocated_milli[first], gpus.allocated_mib[first], gpus.holders[first]) == (750, 60000, 1)
    assert (gpus.closed[first], gpus.closed[second]) == (False, True)
    assert (gpus.utilization_ratio[first], gpus.memory_used_mib[first]) == (0.0, 5.0)
    assert math.isnan(gpus.utilization_ratio[second])
    assert gpus.numa_node[second] == NO_NUMA_NODE


def test_a_node_row_says_what_is_known_of_the_node() -> None:
    arrays = ClusterArrays()

    arrays.observe("u1", a_busy_node())
    row = arrays.node_row("u1")

    assert row is not None
    nodes = arrays.nodes
    assert (nodes.trusted[row], nodes.unschedulable[row], nodes.gpu_count[row]) == (False, True, 2)
    assert nodes.mode[row] == MODE_CODES[NodeMode.GPULOOM]
    assert arrays.texts.text(nodes.zone[row]) == "zone-1"
    assert arrays.texts.find("elsewhere") is None


def test_arrays_grow_with_the_cluster() -> None:
    arrays = ClusterArrays()
    count = FIRST_ROWS + 1

    for number in range(count):
        arrays.observe(f"u{number}", a_busy_node())

    assert int(arrays.nodes.live.sum()) == count
    assert len(arrays.gpus.live) >= 2 * count
    assert all(
        len(getattr(arrays.gpus, column.name)) == len(arrays.gpus.live) for column in fields(arrays.gpus)
    )


def test_a_freed_row_is_given_again() -> None:
    arrays = ClusterArrays()
    arrays.observe("u1", a_busy_node())
    arrays.observe("u2", a_busy_node())

    arrays.observe("u1", None)
    arrays.observe("u3", a_busy_node())

    assert (arrays.node_row("u2"), arrays.node_row("u3")) == (1, 0)
    assert arrays.gpu_rows("u3").tolist() == [0, 1]
    assert arrays.gpus.node_row[:4].tolist() == [0, 0, 1, 1]


def test_a_copy_stays_as_it_was() -> None:
    arrays = ClusterArrays()
    arrays.observe("u1", a_busy_node())

    copy = arrays.copy()
    arrays.observe("u1", None)

    assert (copy.node_row("u1"), bool(copy.nodes.live[0])) == (0, True)
    assert arrays.gpus.node_row[0] == NO_NODE


def test_what_is_too_large_for_a_column_is_cut() -> None:
    arrays = ClusterArrays()
    facts = a_busy_node()

    arrays.observe("u1", replace(facts, place=NodePlace(memory_bytes=2**64 - 1)))

    assert arrays.nodes.memory_bytes[0] == 2**63 - 1


def a_busy_node() -> NodeFacts:
    first = Gpu("GPU-a", 0, "A100", "ampere", 81920, GpuHealth.HEALTHY, numa_node=1)
    second = Gpu("GPU-b", 1, "A100", "ampere", 81920, GpuHealth.LOST)
    shares = tuple(AllocatedDevice(DeviceRef("GPU-a"), milli, milli * 80) for milli in (500, 250))
    pod = PodRef("team", "train", "p1")
    state = NodeState(
        node_name="n1",
        node_uid="u1",
        mode=NodeMode.GPULOOM,
        delivery=Delivery.NRI,
        gpus=(first, second),
        holders=(Holder(pod, "main", (DeviceRef("GPU-a"),), HolderSource.RUNTIME),),
        usage=(GpuUsage("GPU-a", utilization_ratio=0.0, memory_used_mib=5),),
    )
    return NodeFacts(
        state=state,
        untrusted_reasons=("it broke",),
        closed_gpus=(ClosedGpu("GPU-b", "two owners"),),
        place=NodePlace(zone="zone-1", unschedulable=True),
        allocations=(PodAllocation(pod, "main", shares),),
    )


def built_fresh(nodes: Mapping[str, NodeFacts]) -> ClusterArrays:
    arrays = ClusterArrays()
    for uid, facts in nodes.items():
        arrays.observe(uid, facts)
    return arrays


def rows_of(arrays: ClusterArrays, uids: list[str]) -> dict[tuple[str, str], int]:
    """The rows of all GPUs by node UID and GPU UUID."""
    return {(uid, str(arrays.gpu_uuid(row))): row for uid in uids for row in arrays.gpu_rows(uid).tolist()}


def as_values(arrays: ClusterArrays) -> dict[Any, dict[str, Any]]:
    """Every row by identity, without the numbers of rows and texts."""
    found: dict[Any, dict[str, Any]] = {}
    for row in np.flatnonzero(arrays.nodes.live).tolist():
        found[arrays.node_uid(row)] = _row(arrays, arrays.nodes, row)
    for row in np.flatnonzero(arrays.gpus.live).tolist():
        values = _row(arrays, arrays.gpus, row)
        node_uid = arrays.node_uid(values.pop("node_row"))
        found[node_uid, arrays.gpu_uuid(row)] = values
    return found


def _row(arrays: ClusterArrays, columns: Any, row: int) -> dict[str, Any]:
    values = {column.name: getattr(columns, column.name)[row].item() for column in fields(columns)}
    for name in _TEXTS & values.keys():
        values[name] = arrays.texts.text(values[name])
    return {
        name: None if isinstance(value, float) and math.isnan(value) else value
        for name, value in values.items()
    }
