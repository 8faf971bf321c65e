"""The live screen as text."""

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from gpuloom.cli.bars import WIDE_CELLS, Bar, narrow_bar, wide_bar
from gpuloom.cli.observation import MeshView, allocated_milli
from gpuloom.cli.screen import Frame, render
from gpuloom.cli.tally import PodCounts
from gpuloom.model.allocation import AllocatedDevice
from gpuloom.model.gpu import DeviceRef, Gpu, GpuHealth, GpuUsage
from gpuloom.model.ledger import Decision, EntryState, LedgerEntry, Verdict
from gpuloom.model.node import Delivery, NodeMode, NodeState, PodRef
from gpuloom.model.snapshot import NodeFacts
from gpuloom.sim.supervisor import ProcessState, ProcessStatus

FRAME = Frame("GPULoom", {"Kubernetes": "kubectl --kubeconfig run/kubeconfig get pods -A"}, duration_s=60)


def a_node(name: str, *, untrusted: tuple[str, ...] = (), broken: bool = False) -> NodeFacts:
    health = GpuHealth.LOST if broken else GpuHealth.HEALTHY
    gpus = tuple(Gpu(f"GPU-{name}-{i}", i, "A100-SXM4-40GB", "ampere", 40_960, health) for i in range(4))
    usage = tuple(GpuUsage(gpu.uuid, utilization_ratio=0.7) for gpu in gpus)
    state = NodeState(name, f"uid-{name}", NodeMode.GPULOOM, Delivery.NRI, gpus, usage=usage)
    return NodeFacts(state, untrusted)


def a_view(nodes: int = 3) -> MeshView:
    ref = PodRef("team-a", "train-1", "u1")
    when = datetime(2026, 1, 1, 12, 0, 5, tzinfo=UTC)
    return MeshView(
        elapsed_s=65,
        pods=PodCounts(placed=7, running=5, pending_reasons={"not enough free GPUs: 8 asked": 2}),
        nodes=tuple(a_node(f"node-{index:03d}") for index in range(nodes)),
        allocated_milli={"GPU-node-000-0": 1000, "GPU-node-000-1": 500},
        decisions=(
            Decision(when, ref, Verdict.BOUND, "node-000", (a_device("GPU-node-000-0"),)),
            Decision(when, PodRef("team-b", "big", "u2"), Verdict.REFUSED, reason="3 not enough free GPUs"),
        ),
        processes=(
            ProcessStatus("discovery", ProcessState.RUNNING, 10, restarts=2),
            ProcessStatus("extender", ProcessState.WAITING, last_exit="was ended by SIGKILL"),
        ),
    )


def a_device(uuid: str, milli: int = 1000) -> AllocatedDevice:
    return AllocatedDevice(DeviceRef(uuid), milli, 1024)


def text_of(view: MeshView, width: int = 120, height: int = 40) -> str:
    return "\n".join(line.plain for line in render(FRAME, view, width, height))


@given(st.integers(1, 250), st.integers(1, 100), st.integers(0, 120))
def test_a_frame_always_fits_the_terminal(width: int, height: int, nodes: int) -> None:
    lines = render(FRAME, a_view(nodes), width, height)

    assert len(lines) <= height
    assert all(line.cell_len <= width for line in lines)


def test_nodes_decisions_reasons_and_processes_are_on_the_screen() -> None:
    text = text_of(a_view())

    assert "node-000  gpuloom  A100-SXM4-40GB          ████ ██·· ···· ····" in text
    assert "bound        team-a/train-1                on node-000: 1 GPU" in text
    assert "refused      team-b/big" in text
    assert "2  not enough free GPUs: 8 asked" in text
    assert "1 of 2 running   discovery restarted 2 times   extender waiting, it was ended by SIGKILL" in text
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

    assert "???? ???? ???? ????  the agent has been silent for 31 s" in text
    assert "xxxx xxxx xxxx xxxx" in text


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
