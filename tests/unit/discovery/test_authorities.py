"""What another authority gave out closes the node: in the mode before, or by a DRA driver."""

import pytest

from gpuloom.model.gpu import DeviceRef
from gpuloom.model.node import Holder, HolderSource, NodeMode, NodeState
from services.discovery.core.authorities import authority_findings
from services.discovery.core.findings import Cause
from services.discovery.core.pods import NodePod
from services.discovery.core.trust import Case, Judgement, Voice, judge
from tests.unit.discovery.builders import (
    GRACE_S,
    a_gpuloom_node,
    a_node,
    a_plugged_pod,
    a_pod,
    a_ref,
    an_allocation,
    held,
    share,
    two_gpus,
)

NVIDIA, GPULOOM = NodeMode.NVIDIA, NodeMode.GPULOOM

EXACT = a_pod("train", share("a"))
PREDICTED = a_pod("train", allocation=an_allocation("train", share("a"), advisory=True))
PLUGGED = a_plugged_pod("train")


def found(state: NodeState, *pods: NodePod, ended: tuple[str, ...] = ()) -> set[tuple[Cause, str, str]]:
    live = {pod.ref.uid: pod for pod in pods}
    return {(one.cause, one.gpu_uuid, one.subject) for one in authority_findings(state, live, ended)}


def settled(state: NodeState, *pods: NodePod) -> Judgement:
    node = a_node() if state.mode is NVIDIA else a_gpuloom_node()
    case = Case(node, state, Voice.HEARD, {pod.ref.uid: pod for pod in pods})
    return judge(case, judge(case, {}, 0.0, GRACE_S).since_s, GRACE_S, GRACE_S)


@pytest.mark.parametrize(
    ("mode", "pod", "closes"),
    [
        (NVIDIA, EXACT, True),
        (NVIDIA, PREDICTED, False),
        (NVIDIA, PLUGGED, False),
        (GPULOOM, EXACT, False),
        (GPULOOM, PREDICTED, True),
        (GPULOOM, PLUGGED, True),
        (GPULOOM, a_pod("plain"), False),
    ],
)
def test_a_pod_that_was_given_gpus_in_the_other_mode_closes_the_node(
    mode: NodeMode, pod: NodePod, closes: bool
) -> None:
    expected = {(Cause.MODE_CHANGED, "", pod.ref.uid)} if closes else set()

    assert found(two_gpus(mode=mode), pod) == expected


@pytest.mark.parametrize("mode", [NVIDIA, GPULOOM])
@pytest.mark.parametrize("source", list(HolderSource))
def test_a_container_closes_the_node_if_another_authority_gave_it_its_gpu(
    mode: NodeMode, source: HolderSource
) -> None:
    cause = {
        (GPULOOM, HolderSource.KUBELET): Cause.MODE_CHANGED,
        (NVIDIA, HolderSource.RUNTIME): Cause.MODE_CHANGED,
        (NVIDIA, HolderSource.ENVIRONMENT): Cause.MODE_CHANGED,
        (NVIDIA, HolderSource.CLAIM): Cause.CLAIMED_GPU,
        (GPULOOM, HolderSource.CLAIM): Cause.CLAIMED_GPU,
    }.get((mode, source))

    causes = {one for one, _, _ in found(two_gpus(held("gone", source=source), mode=mode))}

    assert causes == ({cause} if cause else set())


def test_a_pod_that_ended_may_stay_in_the_kubelet_s_list() -> None:
    state = two_gpus(held("old", source=HolderSource.KUBELET))

    assert found(state, ended=("uid-old",)) == set()


@pytest.mark.parametrize("mode", [NVIDIA, GPULOOM])
def test_a_gpu_that_was_claimed_is_held_against_its_pod_in_no_other_way(mode: NodeMode) -> None:
    """It may compute there, it does not count among what it asks us for, and an unknown name is no GPU."""
    device = DeviceRef("gpu.nvidia.com/n1/gpu-7")
    unknown = Holder(a_ref("claims"), "main", (device,), HolderSource.CLAIM)
    claim = held("claims", "b", source=HolderSource.CLAIM)
    computes = held("claims", "b", source=HolderSource.PROCESS)

    judgement = settled(two_gpus(claim, unknown, computes, mode=mode), a_pod("claims"))

    assert {finding.cause for finding in judgement.findings} == {Cause.CLAIMED_GPU}
    assert len(judgement.untrusted_reasons) == 1
    assert not judgement.closed_gpus


def test_the_detail_names_pod_and_device_and_says_so_if_it_can_not_be_told_which_gpu_that_is() -> None:
    device = DeviceRef("gpu.nvidia.com/n1/gpu-7")

    judgement = settled(
        two_gpus(Holder(a_ref("claims"), "main", (device,), HolderSource.CLAIM)), a_pod("claims")
    )

    assert judgement.details == (
        "pod team/claims holds gpu.nvidia.com/n1/gpu-7 (which GPU that is can't be told) by a resource claim",
    )
