from dataclasses import replace

import pytest

from gpuloom.cli.nodes import status
from gpuloom.cli.nodes.node_rows import allocated_milli, links_text, node_row, totals_of
from gpuloom.cli.nodes.status import problem_lines, status_lines
from gpuloom.cli.nodes.topology_document import topology_document
from gpuloom.cli.nodes.topology_picture import mig_bar, node_picture, shape_pictures
from gpuloom.model.allocation import AllocatedDevice
from gpuloom.model.gpu import DeviceRef, Gpu, GpuHealth, GpuUsage
from gpuloom.model.mig import MigInstance, MigPlacement
from gpuloom.model.node import Delivery, Holder, HolderSource, NodeMode, NodeState, PodRef
from gpuloom.model.snapshot import ClosedGpu, ClusterSnapshot, NodeFacts, NodePlace, PodAllocation
from gpuloom.model.topology import PcieLevel, Topology
from gpuloom.model.version import StreamVersion

MODEL = "A100-SXM4-40GB"
POD = PodRef("team", "train", "p1")


def a_gpu(index: int, **fields: object) -> Gpu:
    gpu = Gpu(f"GPU-{index}", index, MODEL, "ampere", 40_960, GpuHealth.HEALTHY, numa_node=index // 2)
    return replace(gpu, **fields)  # type: ignore[arg-type]


def a_node(name: str = "n1", *gpus: Gpu, **fields: object) -> NodeFacts:
    cards = gpus or (a_gpu(0), a_gpu(1))
    pairs = len(cards) * (len(cards) - 1) // 2
    links = Topology(len(cards), (PcieLevel.PIX,) * pairs, (12,) + (0,) * (pairs - 1) if pairs else ())
    state = NodeState(name, f"uid-{name}", NodeMode.GPULOOM, Delivery.NRI, tuple(cards), links)
    return replace(NodeFacts(state), **fields)  # type: ignore[arg-type]


def given(*devices: AllocatedDevice, advisory: bool = False) -> tuple[PodAllocation, ...]:
    return (PodAllocation(POD, "main", devices, advisory),)


def shown(facts: list[NodeFacts]) -> str:
    rows = [node_row(item) for item in facts]
    return "\n".join(status_lines(rows, totals_of(rows)))


def test_a_share_counts_with_its_part_and_a_prediction_until_the_kubelet_shows_its_choice() -> None:
    half = AllocatedDevice(DeviceRef("GPU-0"), 500, 20_480)
    whole = AllocatedDevice(DeviceRef("GPU-0"), 1000, 40_960)
    chosen = (Holder(POD, "main", (DeviceRef("GPU-1"),), HolderSource.KUBELET),)
    predicted = a_node(allocations=given(whole, advisory=True))
    decided = replace(predicted, state=replace(predicted.state, holders=chosen))

    assert allocated_milli(a_node(allocations=given(half))) == {"GPU-0": 500}
    assert allocated_milli(predicted) == {"GPU-0": 1000}
    assert allocated_milli(decided) == {"GPU-1": 1000}


def test_a_delivered_allocation_is_not_counted_twice_and_a_foreign_process_takes_the_card() -> None:
    half = AllocatedDevice(DeviceRef("GPU-0"), 500, 20_480)
    delivered = Holder(POD, "main", (DeviceRef("GPU-0"),), HolderSource.RUNTIME)
    foreign = Holder(PodRef("", "", ""), "", (DeviceRef("GPU-1"),), HolderSource.PROCESS, (42,))
    facts = a_node(allocations=given(half))
    facts = replace(facts, state=replace(facts.state, holders=(delivered, foreign)))

    assert allocated_milli(facts) == {"GPU-0": 500, "GPU-1": 1000}


def test_what_is_not_measured_is_a_dash_and_no_zero() -> None:
    silent, telling = a_node("n1"), a_node("n2")
    usage = (GpuUsage("GPU-0", 0.5, 1024), GpuUsage("GPU-1", 1.0, 2048))
    telling = replace(telling, state=replace(telling.state, usage=usage))

    table = shown([silent, telling])

    lines = [line.split() for line in table.splitlines()]
    assert lines[0] == ["NODE", "MODE", "MODEL", "GPUS", "ALLOCATED", "UTIL", "MEMORY", "HEALTH"]
    assert lines[1][5:] == ["-", "-/80", "GiB", "ok"]
    assert lines[2][5:] == ["75%", "3/80", "GiB", "ok"]
    assert lines[3] == ["2", "nodes", "4", "0", "75%", "3/160", "GiB", "ok"]


def test_what_keeps_a_node_from_being_used_is_said_below_the_table() -> None:
    lost = a_gpu(1, health=GpuHealth.LOST, health_reason="it fell off the bus")
    ill = a_node("n1", a_gpu(0), lost, closed_gpus=(ClosedGpu("GPU-0", "two owners"),))
    untrusted = a_node("n2", untrusted_reasons=("the node agent is silent",))

    lines = problem_lines([node_row(ill), node_row(untrusted)])

    assert lines == [
        "n1: GPU 1 lost: it fell off the bus",
        "n1: GPU 0 closed: two owners",
        "n2: the node agent is silent",
    ]
    assert "1/2 healthy" in shown([ill])
    assert "untrusted" in shown([untrusted])


@pytest.mark.parametrize(
    ("topology", "text"),
    [
        (None, ""),
        (Topology(1, (), ()), ""),
        (Topology(2, (PcieLevel.PIX,), (12,)), "NV12"),
        (Topology(3, (PcieLevel.PIX, PcieLevel.SYS, PcieLevel.SYS), (0, 0, 0)), "PIX to SYS"),
        (Topology(3, (PcieLevel.PIX, PcieLevel.SYS, PcieLevel.SYS), (4, 0, 0)), "NV4 to SYS"),
        (Topology(2, (PcieLevel.SYS,), (18,), nvswitch=True), "NVSwitch"),
        (Topology(2, (PcieLevel.UNKNOWN,), (0,)), "?"),
    ],
)
def test_links_are_told_from_the_best_to_the_worst(topology: Topology | None, text: str) -> None:
    assert links_text(topology) == text


def test_a_closed_gpu_is_counted_though_it_is_healthy() -> None:
    assert "1/2 closed" in shown([a_node("n1", closed_gpus=(ClosedGpu("GPU-0", "two owners"),))])


@pytest.mark.parametrize("columns", ["40", "80"])
def test_nothing_is_cut_in_a_pipe_however_narrow_the_terminal_was(
    columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name, reason = "a-node-with-quite-a-long-name-in-zone-a", "the node agent is silent"
    snapshot = ClusterSnapshot(StreamVersion("e", 1), {"u": a_node(name, untrusted_reasons=(reason,))})
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr(status, "find_endpoint", lambda *_: None)
    monkeypatch.setattr(status, "read_cluster", lambda *_: snapshot)

    status.status()

    header, row, _, problem = capsys.readouterr().out.splitlines()
    assert header.split()[:3] == ["NODE", "MODE", "MODEL"]
    assert row.split() == [name, "gpuloom", MODEL, "2", "0", "-", "-/80", "GiB", "untrusted"]
    assert problem == f"{name}: {reason}"


def test_a_program_gets_every_pair_of_gpus_and_every_slice() -> None:
    cut = a_gpu(1, mig_enabled=True, mig_instances=(MigInstance(MigPlacement(0, "1g.5gb"), 1, 4_864),))

    (node,) = topology_document([a_node("n1", a_gpu(0), cut)])["nodes"]

    assert (node["node"], node["mode"], node["nvswitch"]) == ("n1", "gpuloom", False)
    assert node["links"] == [{"gpus": [0, 1], "nvlinks": 12, "pcie": "PIX"}]
    assert [gpu["mig_enabled"] for gpu in node["gpus"]] == [False, True]
    assert node["gpus"][1]["mig_instances"][0]["profile"] == "1g.5gb"


def test_links_that_are_not_known_are_null_for_a_program() -> None:
    facts = a_node("n1")

    (node,) = topology_document([replace(facts, state=replace(facts.state, topology=None))])["nodes"]

    assert node["links"] is None


def test_an_empty_cluster_is_a_table_too() -> None:
    assert shown([]).split()[-8:] == ["0", "nodes", "0", "0", "-", "-/0", "GiB", "ok"]
    assert shape_pictures([]) == ["no GPU nodes"]


def test_a_node_is_drawn_with_owners_links_and_numa_nodes() -> None:
    half = AllocatedDevice(DeviceRef("GPU-0"), 500, 20_480)
    place = NodePlace(zone="zone-a", capacity_type="spot")
    cards = tuple(a_gpu(index) for index in range(3))

    picture = node_picture(a_node("n1", *cards, allocations=given(half), place=place))

    text = "\n".join(picture)
    assert picture[0] == f"n1  3 x {MODEL}, mode gpuloom, zone-a, spot"
    assert "NUMA node 0" in text
    assert "NUMA node 1" in text
    assert "GPU 0  GPU-0  40 GiB  50% allocated" in text
    assert "team/train  500 milli" in text
    assert [line.split() for line in picture if line.startswith("  GPU0 ")] == [["GPU0", "X", "NV12", "PIX"]]
    assert picture[-1] == "  NV#: # NVLinks, PIX: one PCIe switch"


def test_the_kubelets_choice_is_drawn_in_place_of_the_prediction() -> None:
    predicted = a_node(allocations=given(AllocatedDevice(DeviceRef("GPU-0"), 1000, 40_960), advisory=True))
    chosen = (Holder(POD, "main", (DeviceRef("GPU-1"),), HolderSource.KUBELET),)
    decided = replace(predicted, state=replace(predicted.state, holders=chosen))

    before, after = "\n".join(node_picture(predicted)), "\n".join(node_picture(decided))

    assert "team/train  1000 milli  (predicted)" in before
    assert "(predicted)" not in after
    assert after.index("GPU-1") < after.index("team/train  1000 milli")


def test_slices_are_drawn_where_they_are_and_free_ones_too() -> None:
    cut = a_gpu(
        0,
        mig_enabled=True,
        mig_instances=(
            MigInstance(MigPlacement(4, "3g.20gb"), 4, 20_096),
            MigInstance(MigPlacement(0, "1g.5gb"), 1, 4_864, fault="XID 95"),
        ),
    )

    bar = mig_bar(cut)
    picture = "\n".join(node_picture(a_node("n1", cut)))

    cells = [cell.strip("·! ") for cell in bar.strip("[]").split("|")]
    assert cells == ["1g.5gb", "free", "3g.20gb"]
    assert len(bar) == 2 + 8 * 9 + 7
    assert "1g.5gb at 0: XID 95" in picture


def test_nodes_that_are_built_alike_share_one_picture() -> None:
    nodes = [a_node(f"n{number}") for number in range(6)] + [a_node("other", a_gpu(0))]

    text = "\n".join(shape_pictures(nodes))

    assert f"6 x 2 x {MODEL}, mode gpuloom" in text
    assert "n0, n1, n2, n3 and 2 more" in text
    assert f"1 x 1 x {MODEL}, mode gpuloom" in text
