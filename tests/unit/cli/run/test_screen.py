"""The live screen as text."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.cli.run.bars import WIDE_CELLS, Bar, narrow_bar, wide_bar
from gpuloom.cli.run.observation import MeshView, allocated_milli
from gpuloom.cli.run.screen import Frame, render
from gpuloom.cli.run.tally import PodCounts
from gpuloom.model.allocation import AllocatedDevice
from gpuloom.model.gpu import DeviceRef, Gpu, GpuHealth, GpuUsage
from gpuloom.model.ledger import Decision, EntryState, LedgerEntry, Verdict
from gpuloom.model.node import Delivery, NodeMode, NodeState, PodRef
from gpuloom.model.snapshot import NodeFacts
from gpuloom.sim.machines.audit import AuditReport, Finding, FindingKind
from gpuloom.sim.mesh.fault_plan import FaultKind, PlannedFault
from gpuloom.sim.processes.supervisor import ProcessState, ProcessStatus

NOON = datetime(2026, 1, 1, 12, 0, 5, tzinfo=UTC)
REASON = "Insufficient nvidia.com/gpu"
FRAME = Frame("GPULoom", {"Kubernetes": "kubectl --kubeconfig run/kubeconfig get pods -A"}, duration_s=60)


def a_node(name: str, *, untrusted: tuple[str, ...] = (), broken: bool = False, gpus: int = 4) -> NodeFacts:
    health = GpuHealth.LOST if broken else GpuHealth.HEALTHY
    cards = tuple(Gpu(f"GPU-{name}-{i}", i, "A100-SXM4-40GB", "ampere", 40_960, health) for i in range(gpus))
    usage = tuple(GpuUsage(gpu.uuid, utilization_ratio=0.95) for gpu in cards)
    state = NodeState(name, f"uid-{name}", NodeMode.GPULOOM, Delivery.NRI, cards, usage=usage)
    return NodeFacts(state, untrusted)


def a_view(nodes: int = 3) -> MeshView:
    ref = PodRef("team-a", "train-1", "u1")
    return MeshView(
        elapsed_s=65,
        pods=PodCounts(placed=7, running=5, pending_reasons={"not enough free GPUs: 8 asked": 2}),
        nodes=tuple(a_node(f"node-{index:03d}") for index in range(nodes)),
        allocated_milli={"GPU-node-000-0": 1000, "GPU-node-000-1": 500},
        decisions=(
            Decision(NOON, ref, Verdict.BOUND, "node-000", (a_device("GPU-node-000-0"),)),
            Decision(NOON, PodRef("team-b", "big", "u2"), Verdict.REFUSED, reason="3 not enough free GPUs"),
        ),
        processes=(
            ProcessStatus("discovery", ProcessState.RUNNING, 10, restarts=2),
            ProcessStatus("extender", ProcessState.WAITING, last_exit="was ended by SIGKILL"),
        ),
        audit=AuditReport(machines=3, starts=9, ends=2),
    )


def a_busy_view() -> MeshView:
    """The twelve nodes of `make run` after a long time, with everything there is to tell."""
    down = ProcessStatus("agent-a100-011", ProcessState.WAITING, restarts=1, last_exit="was ended by SIGKILL")
    running = (ProcessStatus(f"process-{number}", ProcessState.RUNNING) for number in range(17))
    modes = {NodeMode.GPULOOM: 60_000, NodeMode.NVIDIA: 63_456}
    model = "A100-SXM4-40GB or A100-SXM4-80GB or A100-PCIE-40GB or A100-PCIE-80GB"
    reasons = {f"node has fewer than 4 GPUs of model {model} outside MIG mode": 12, REASON: 3, "other": 1}
    return replace(
        a_view(),
        elapsed_s=7265,
        pods=PodCounts(123_456, modes, 120_000, 3_333, 0, 99, reasons),
        nodes=tuple(
            a_node(f"a100-{index:03d}", gpus=8, untrusted=("the node agent is silent",) if index == 4 else ())
            for index in range(1, 13)
        ),
        processes=(*running, down),
        audit=AuditReport(machines=12, starts=123_456, ends=120_000),
        fault=PlannedFault(1, 20, FaultKind.GPU, "a100-012", 7, GpuHealth.LOST, "XID 79: GPU has fallen off"),
    )


def a_device(uuid: str, milli: int = 1000) -> AllocatedDevice:
    return AllocatedDevice(DeviceRef(uuid), milli, 1024)


def text_of(view: MeshView, width: int = 120, height: int = 40) -> str:
    return "\n".join(line.plain for line in render(FRAME, view, width, height))


def red_parts(view: MeshView) -> list[str]:
    """What is red on the screen."""
    lines = render(FRAME, view, 120, 40)
    parts = [(line.plain, str(line.style)) for line in lines]
    parts += [(line.plain[s.start : s.end], str(s.style)) for line in lines for s in line.spans]
    return [text.strip() for text, style in parts if "red" in style.split()]


@given(st.integers(1, 250), st.integers(1, 100), st.integers(0, 120))
def test_a_frame_always_fits_the_terminal(width: int, height: int, nodes: int) -> None:
    lines = render(FRAME, a_view(nodes), width, height)

    assert len(lines) <= height
    assert all(line.cell_len <= width for line in lines)


def test_nodes_decisions_reasons_and_processes_are_on_the_screen() -> None:
    text = text_of(a_view())

    assert "node-000  gpuloom  A100-SXM4-40GB  ████ ██·· ···· ····" in text
    assert "bound        team-a/train-1  node-000  1 GPU" in text
    assert "refused      team-b/big" in text
    assert "2  not enough free GPUs: 8 asked" in text
    assert "Audit 0 double bookings in 9 starts   Processes 1/2 running, 2 restarts" in text
    assert "extender is down, it was ended by SIGKILL" in text
    assert "kubectl --kubeconfig run/kubeconfig get pods -A" in text
    assert "1:05 of 1:00" in text


def test_more_nodes_than_rows_are_shown_side_by_side_and_the_rest_counted() -> None:
    text = text_of(a_view(100), width=80, height=24)

    assert "node-000 g █▄··  node-001 g ····" in text
    assert "more nodes" in text


def test_an_untrusted_node_and_a_broken_gpu_are_marked() -> None:
    untrusted = a_node("node-a", untrusted=("the agent has been silent for 31 s",))
    view = MeshView(elapsed_s=1, nodes=(untrusted, a_node("node-b", broken=True)))

    text = text_of(view)

    assert "node-a: the agent has been silent for 31 s" in text
    assert "???? ???? ???? ????" in text
    assert "xxxx xxxx xxxx xxxx" in text
    assert "node-b: GPU 3 lost" in text


@pytest.mark.parametrize("height", [24, 50])
def test_80_columns_cut_nothing_that_matters(height: int) -> None:
    text = text_of(a_busy_view(), 80, height)

    assert "…" not in text
    assert "99 running   123333 finished (3333 failed)   16 pending" in text
    assert "Audit 0 double bookings in 123456 starts   Processes 17/18 running, 1 restarts" in text
    assert "agent-a100-011 is down, it was ended by SIGKILL" in text
    assert "injected fault, heals by itself: GPU 7 of a100-012 lost: XID 79" in text
    assert "a100-004: the node agent is silent" in text
    assert all(f"a100-{index:03d}" in text for index in range(1, 13))
    assert "  12  node has fewer than 4 GPUs of model" in text
    assert "A100-PCIE-80GB outside MIG mode" in " ".join(text.split())
    assert REASON in text
    assert "kubectl --kubeconfig run/kubeconfig get pods -A" in text


def test_red_is_what_is_broken_and_nothing_else() -> None:
    ordinary = replace(a_busy_view(), processes=(ProcessStatus("extender", ProcessState.RUNNING),))
    failed_bind = Decision(NOON, PodRef("a", "b", "u"), Verdict.BIND_FAILED, "n1", reason="conflict")
    ordinary = replace(ordinary, decisions=(*ordinary.decisions, failed_bind))
    finding = Finding(FindingKind.TWO_WHOLE_OWNERS, "a100-001", 7, "2 owners of the whole card")

    double = replace(ordinary, audit=AuditReport(12, 9, 3, findings=(finding,)))
    lost = replace(ordinary, nodes=(a_node("n1", broken=True, gpus=1),))

    assert red_parts(ordinary) == []
    assert red_parts(a_busy_view()) == ["agent-a100-011 is down, it was ended by SIGKILL", "17/18 running"]
    assert red_parts(double) == [
        "a100-001: two-whole-owners: 2 owners of the whole card",
        "1 double bookings",
    ]
    assert red_parts(lost) == ["n1: GPU 0 lost", "xxxx"]


def test_silence_of_discovery_is_said() -> None:
    assert "discovery is silent" in text_of(MeshView(elapsed_s=1, facts_age_s=20))


@given(st.floats(0, 1))
def test_a_bar_looks_full_or_empty_only_if_it_is(ratio: float) -> None:
    wide, narrow = wide_bar(Bar(ratio, 0.5)).plain, narrow_bar(Bar(ratio, 0.5)).plain

    assert len(wide) == WIDE_CELLS
    assert (wide == "████") == (narrow == "█") == (ratio == 1)
    assert (wide == "····") == (narrow == "·") == (ratio == 0)


def test_shares_of_a_card_add_up_and_an_owner_of_unknown_devices_counts_nowhere() -> None:
    pod = PodRef("ns", "a", "u")
    entries = [
        LedgerEntry(pod, "n", "uid", EntryState.OBSERVED, (a_device("GPU-1", 300),)),
        LedgerEntry(pod, "n", "uid", EntryState.IN_FLIGHT, (a_device("GPU-1", 500), a_device("GPU-2"))),
        LedgerEntry(pod, "n", "uid", EntryState.OBSERVED, None),
    ]

    assert allocated_milli(entries) == {"GPU-1": 800, "GPU-2": 1000}
