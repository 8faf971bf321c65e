"""What is found of a node when it is judged, at once and when no lag explains anything any more."""

from typing import Any

from gpuloom.model.node import Holder, HolderSource, NodeMode, NodeState
from services.discovery.core.findings import Cause
from services.discovery.core.nodes import ClusterNode
from services.discovery.core.pods import NodePod
from services.discovery.core.trust import Case, Judgement, Voice, judge
from tests.unit.discovery.builders import GRACE_S, a_gpuloom_node, a_node, two_gpus

KUBELET, PROCESS = HolderSource.KUBELET, HolderSource.PROCESS


def judged(
    state: NodeState | None,
    *pods: NodePod,
    node: ClusterNode | None = None,
    voice: Voice = Voice.HEARD,
    waited_s: float = 0.0,
) -> Judgement:
    """The judgement after the same has been seen for so long."""
    node = node or (a_node() if state is not None and state.mode is NodeMode.NVIDIA else a_gpuloom_node())
    case = Case(node, state, voice, {pod.ref.uid: pod for pod in pods})
    first = judge(case, {}, 100.0, GRACE_S)
    return judge(case, first.since_s, 100.0 + waited_s, GRACE_S)


def causes(judgement: Judgement) -> set[tuple[Cause, str]]:
    return {(finding.cause, finding.gpu_uuid) for finding in judgement.findings}


def settled(state: NodeState | None, *pods: NodePod, **options: Any) -> set[tuple[Cause, str]]:
    """What is found once no lag explains anything any more."""
    return causes(judged(state, *pods, waited_s=GRACE_S, **options))


def at_once(state: NodeState | None, *pods: NodePod, **options: Any) -> set[tuple[Cause, str]]:
    return causes(judged(state, *pods, **options))


def plugged(*holders: Holder) -> NodeState:
    return two_gpus(*holders, mode=NodeMode.NVIDIA)
