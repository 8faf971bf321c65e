from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.kube.objects import JsonObject
from gpuloom.model.gpu import GpuHealth
from gpuloom.model.node import NodeMode
from gpuloom.model.spot import SpotNotice, SpotNoticeKind
from gpuloom.sim.kubeapi.objects.patches import merge
from services.discovery.core.desired import Desired, GpuFault
from services.discovery.writer.core.patch import node_patch

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
OURS = Desired(NodeMode.GPULOOM, 8, 8 * 40_960)
END = SpotNotice(SpotNoticeKind.INTERRUPTION, datetime(2026, 3, 1, 12, 2, tzinfo=UTC), "aws", "terminate")
HINT = SpotNotice(SpotNoticeKind.REBALANCE, NOW, "aws")
READY = {"type": "Ready", "status": "True"}


def a_node(**status: Any) -> JsonObject:
    return {"metadata": {"name": "n1", "labels": {"zone": "a"}}, "status": {"conditions": [READY], **status}}


def after(node: JsonObject, desired: Desired, now: datetime = NOW) -> Any:
    patch = node_patch(node, desired, now)
    return node if patch is None else merge(node, patch)


def condition_of(node: JsonObject) -> JsonObject:
    return next(entry for entry in node["status"]["conditions"] if entry["type"] == "GpusHealthy")


def test_a_new_node_gets_its_mode_its_resources_and_its_health_at_once() -> None:
    node = after(a_node(capacity={"cpu": "4"}), OURS)

    assert node["metadata"]["labels"] == {"zone": "a", "gpuloom.dev/mode": "gpuloom"}
    offered = {"gpuloom.dev/gpu-milli": "8000", "gpuloom.dev/gpu-memory-mib": str(8 * 40_960)}
    assert node["status"]["capacity"] == {"cpu": "4", **offered}
    assert node["status"]["allocatable"] == offered
    assert READY in node["status"]["conditions"]
    assert condition_of(node)["status"] == "True"


def test_an_amount_in_another_spelling_is_the_same_amount() -> None:
    node = after(a_node(), OURS)
    for field in ("capacity", "allocatable"):
        node["status"][field] = {"gpuloom.dev/gpu-milli": "8k", "gpuloom.dev/gpu-memory-mib": "327680"}

    assert node_patch(node, OURS, NOW) is None


def test_resources_that_were_lost_are_offered_again_and_nothing_else_is_touched() -> None:
    node = after(a_node(), OURS)
    del node["status"]["allocatable"]["gpuloom.dev/gpu-milli"]

    patch = node_patch(node, OURS, NOW)

    assert patch == {"status": {"allocatable": {"gpuloom.dev/gpu-milli": "8000"}}}


def test_where_a_device_plugin_gives_out_gpus_ours_are_taken_away() -> None:
    node = after(a_node(), OURS)

    node = after(node, Desired(NodeMode.NVIDIA, 8, 8 * 40_960))

    assert node["metadata"]["labels"]["gpuloom.dev/mode"] == "nvidia"
    assert node["status"]["capacity"] == {}
    assert node["status"]["allocatable"] == {}


def test_a_driver_that_shows_no_gpu_takes_nothing_away() -> None:
    node = after(a_node(), OURS)

    node = after(node, Desired(NodeMode.GPULOOM, 0, 0, driver_problem="no driver is loaded"))

    assert node["status"]["allocatable"]["gpuloom.dev/gpu-milli"] == "8000"
    assert condition_of(node)["status"] == "Unknown"
    assert condition_of(node)["message"] == "no driver is loaded"


@pytest.mark.parametrize(
    ("health", "status"),
    [(GpuHealth.UNHEALTHY, "False"), (GpuHealth.LOST, "False"), (GpuHealth.UNKNOWN, "Unknown")],
)
def test_the_condition_says_which_gpu_and_why_and_since_when(health: GpuHealth, status: str) -> None:
    healthy = after(a_node(), OURS)
    fault = GpuFault("GPU-a", 3, health, "XID 79")

    node = after(healthy, Desired(NodeMode.GPULOOM, 8, 8 * 40_960, faults=(fault,)), datetime.now(UTC))

    condition = condition_of(node)
    assert condition["status"] == status
    assert condition["message"] == f"GPU 3 (GPU-a) {health}: XID 79"
    assert condition["lastTransitionTime"] != condition_of(healthy)["lastTransitionTime"]
    assert node["status"]["capacity"] == healthy["status"]["capacity"]


def test_a_changed_message_is_no_transition() -> None:
    first = Desired(NodeMode.GPULOOM, 8, 1, faults=(GpuFault("GPU-a", 3, GpuHealth.LOST, "gone"),))
    second = Desired(NodeMode.GPULOOM, 8, 1, faults=(GpuFault("GPU-a", 3, GpuHealth.LOST, "still gone"),))
    node = after(a_node(), first)

    later = after(node, second, datetime(2026, 3, 2, tzinfo=UTC))

    assert condition_of(later)["lastTransitionTime"] == condition_of(node)["lastTransitionTime"]
    assert condition_of(later)["lastHeartbeatTime"] != condition_of(node)["lastHeartbeatTime"]


def test_a_notice_warns_with_its_time_and_goes_when_it_is_taken_back() -> None:
    warned = after(a_node(), Desired(NodeMode.GPULOOM, 8, 1, END))
    cleared = after(warned, Desired(NodeMode.GPULOOM, 8, 1))

    assert warned["metadata"]["annotations"] == {
        "gpuloom.dev/spot-notice": "aws",
        "gpu-autoscaler.io/spot-interruption-warning": "true",
        "gpu-autoscaler.io/spot-termination-time": "2026-03-01T12:02:00Z",
    }
    assert not cleared["metadata"].get("annotations")


def test_a_notice_without_a_time_counts_from_when_it_was_first_written() -> None:
    untold = SpotNotice(SpotNoticeKind.INTERRUPTION, None, "gcp", "preempt")
    desired = Desired(NodeMode.GPULOOM, 8, 1, untold)
    node = after(a_node(), desired)

    assert (
        node["metadata"]["annotations"]["gpu-autoscaler.io/spot-termination-time"] == "2026-03-01T12:00:30Z"
    )
    assert node_patch(node, desired, datetime(2026, 3, 1, 13, tzinfo=UTC)) is None


def test_a_hint_is_not_written_and_a_warning_of_people_stays() -> None:
    by_hand = {"gpu-autoscaler.io/spot-interruption-warning": "true"}
    node = a_node()
    node["metadata"]["annotations"] = dict(by_hand)

    hinted = after(node, Desired(NodeMode.GPULOOM, 8, 1, HINT))

    assert hinted["metadata"]["annotations"] == by_hand


_DESIRED = st.builds(
    Desired,
    st.sampled_from([NodeMode.NVIDIA, NodeMode.GPULOOM]),
    st.integers(0, 16),
    st.integers(0, 10**6),
    st.sampled_from([None, END, HINT]),
    st.lists(
        st.builds(GpuFault, st.just("GPU-a"), st.integers(0, 7), st.sampled_from(list(GpuHealth)), st.text()),
        max_size=2,
    ).map(tuple),
)


@given(st.lists(_DESIRED, min_size=1, max_size=4))
def test_one_patch_is_always_enough(wishes: list[Desired]) -> None:
    node = a_node()
    for desired in wishes:
        node = after(node, desired)

    assert node_patch(node, wishes[-1], NOW) is None
