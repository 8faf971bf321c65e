from dataclasses import replace

from gpuloom.cli.nodes.top import row_lines
from gpuloom.cli.nodes.top_rows import Order, gpu_rows, namespace_rows, pod_rows
from gpuloom.model.allocation import AllocatedDevice
from gpuloom.model.gpu import DeviceRef, GpuUsage
from gpuloom.model.node import Holder, HolderSource, PodRef
from gpuloom.model.snapshot import NodeFacts, PodAllocation
from tests.unit.cli.nodes.test_node_pictures import a_node

FIRST, SECOND = PodRef("team", "a", "u1"), PodRef("team", "b", "u2")


def allocation(pod: PodRef, uuid: str, milli: int) -> PodAllocation:
    return PodAllocation(pod, "main", (AllocatedDevice(DeviceRef(uuid), milli, 1024),))


def a_busy_node(*allocations: PodAllocation) -> NodeFacts:
    facts = a_node(allocations=allocations)
    usage = (GpuUsage("GPU-0", 0.25, 2048, 80.0, 40.0), GpuUsage("GPU-1", 0.75, 4096))
    return replace(facts, state=replace(facts.state, usage=usage))


def test_gpus_come_busiest_first_and_unknown_ones_last() -> None:
    idle = a_node("n0")

    rows = gpu_rows([idle, a_busy_node(allocation(FIRST, "GPU-1", 1000))], Order.UTIL)

    assert [(row.node, row.index) for row in rows] == [("n1", 1), ("n1", 0), ("n0", 0), ("n0", 1)]
    assert rows[0].pods == ("team/a",)
    assert rows[2].utilization_ratio is None


def test_pods_that_share_a_card_are_told_the_whole_cards_use_and_marked() -> None:
    facts = a_busy_node(allocation(FIRST, "GPU-0", 500), allocation(SECOND, "GPU-0", 250))

    rows = pod_rows([facts], Order.NAME)
    lines = list(row_lines(rows, 10, wide=False))

    assert [(row.pod, row.gpus, row.utilization_ratio, row.shared) for row in rows] == [
        ("a", 0.5, 0.25, True),
        ("b", 0.25, 0.25, True),
    ]
    assert "25%*" in lines[1]
    assert lines[-1].startswith("* of the whole card")


def test_where_the_kubelet_chose_its_choice_counts_and_not_the_prediction() -> None:
    predicted = replace(allocation(FIRST, "GPU-0", 1000), advisory=True)
    facts = a_busy_node(predicted)
    chosen = Holder(FIRST, "main", (DeviceRef("GPU-1"),), HolderSource.KUBELET)

    (row,) = pod_rows([replace(facts, state=replace(facts.state, holders=(chosen,)))], Order.UTIL)

    assert row.utilization_ratio == 0.75


def test_a_namespace_is_weighted_by_what_its_pods_hold() -> None:
    facts = a_busy_node(allocation(FIRST, "GPU-0", 1000), allocation(SECOND, "GPU-1", 500))

    (row,) = namespace_rows(pod_rows([facts], Order.UTIL), Order.UTIL)

    assert (row.pods, row.gpus) == (2, 1.5)
    assert row.utilization_ratio == (0.25 + 0.75 * 0.5) / 1.5


def test_more_rows_than_wanted_are_counted() -> None:
    rows = gpu_rows([a_busy_node()], Order.UTIL)

    assert list(row_lines(rows, 1, wide=True))[-1] == "1 more; --most 2 shows all"
