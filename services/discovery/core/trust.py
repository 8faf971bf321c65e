"""Whether a node's facts can be believed: what its agent, its pods and Kubernetes say of it, held together.

Pure: equal input, equal judgement. Decides which disagreements there are, which of them ordinary lag explains
for a while, and whether one costs a GPU or its whole node the trust. Never says who is right, gives nothing
out and takes nothing away: a disagreement closes capacity until it is gone.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gpuloom.model.node import NodeMode, NodeState
from gpuloom.model.snapshot import CLAIMED_GPU, MODE_CHANGED, ClosedGpu
from gpuloom.model.topology import MAX_GPUS_PER_NODE
from services.discovery.core.authorities import authority_findings
from services.discovery.core.findings import Cause, Finding
from services.discovery.core.holdings import Holdings
from services.discovery.core.nodes import ClusterNode
from services.discovery.core.pods import NodePod

# How long a disagreement that lag can explain is let be. It covers, with room: a pod informer that lists anew
# after trouble (10 s between tries), PodResources that the kubelet shows late, and a force-deleted pod, which
# Kubernetes forgets at once while its containers have 30 s to end. It is safe to wait, because nothing hangs
# on trust alone here: the extender's ledger counts every holder as an owner from the first moment, closes a
# node whose pods it can't account for, and the agent delivers only what an allocation names.
LAG_GRACE_S = 60.0

MAX_DETAILS = 64

REASONS: Mapping[Cause, str] = {
    Cause.AGENT_NOT_HEARD: "the node agent has not reported yet",
    Cause.AGENT_SILENT: "the node agent is silent",
    Cause.NODE_UID_UNKNOWN: "the node agent does not know its node's UID yet",
    Cause.NODE_REPLACED: "the node agent reports for another node of the same name",
    Cause.MODE_UNKNOWN: "the node agent reports no mode",
    Cause.TWO_AUTHORITIES: "the node offers GPUs that its agent does not give out: "
    "two authorities could give one card",
    Cause.MODE_CHANGED: MODE_CHANGED,
    Cause.CLAIMED_GPU: CLAIMED_GPU,
    Cause.HOLDERS_UNKNOWN: "who holds the devices is not known",
    Cause.UNREADABLE_ALLOCATION: "a pod's allocation can't be read",
    Cause.ALLOCATION_OF_ANOTHER_POD: "a pod carries the allocation of another pod",
    Cause.ALLOCATION_OF_ANOTHER_NODE: "a pod carries an allocation on another node",
    Cause.UNKNOWN_DEVICE: "a device is in use that the node does not have",
    Cause.SECOND_OWNER: "a GPU has two owners",
    Cause.FOREIGN_PROCESS: "a process outside any pod holds a GPU",
    Cause.HOLDER_WITHOUT_POD: "a GPU is held by a pod that is not on the node",
    Cause.HELD_WITHOUT_ALLOCATION: "a pod holds a GPU that it was not given",
    Cause.WRONG_COUNT: "a pod holds another number of devices than it asks for",
}

_LAGGING = frozenset(
    {
        Cause.ALLOCATION_OF_ANOTHER_NODE,
        Cause.FOREIGN_PROCESS,
        Cause.HOLDER_WITHOUT_POD,
        Cause.HELD_WITHOUT_ALLOCATION,
        Cause.WRONG_COUNT,
    }
)


class Voice(StrEnum):
    """What is heard of the agent, by our own clock."""

    NEVER = "never"
    HEARD = "heard"
    SILENT = "silent"


@dataclass(frozen=True, slots=True)
class Case:
    """Everything that is said of one node. `pods` are those bound to it, by UID."""

    node: ClusterNode
    state: NodeState | None = None
    voice: Voice = Voice.NEVER
    pods: Mapping[str, NodePod] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Judgement:
    """`findings` are those that count now; `since_s` has when each was first seen, the waiting ones too.

    `due_s` is when the judgement changes though nothing happens; None if it does not.
    """

    untrusted_reasons: tuple[str, ...]
    closed_gpus: tuple[ClosedGpu, ...]
    details: tuple[str, ...]
    findings: tuple[Finding, ...]
    since_s: Mapping[Finding, float]
    due_s: float | None


def judge(case: Case, since_s: Mapping[Finding, float], now_s: float, grace_s: float) -> Judgement:
    """`since_s` is that of the judgement before: a disagreement that was gone in between starts anew."""
    found = findings(case)
    seen_s = {finding: since_s.get(finding, now_s) for finding in found}
    ends_s = {finding: seen_s[finding] + grace_s for finding in found if finding.cause in _LAGGING}
    counting = tuple(finding for finding in found if ends_s.get(finding, now_s) <= now_s)
    causes = {finding.cause for finding in counting if not finding.gpu_uuid}
    return Judgement(
        untrusted_reasons=tuple(REASONS[cause] for cause in Cause if cause in causes),
        closed_gpus=_closed_gpus(counting, case.state),
        details=_details(counting),
        findings=counting,
        since_s=seen_s,
        due_s=min((end_s for end_s in ends_s.values() if end_s > now_s), default=None),
    )


def findings(case: Case) -> tuple[Finding, ...]:
    """Every disagreement there is, whatever may explain it; each once, the gravest cause first."""
    found = [*_of_agent(case), *_of_annotations(case)]
    if case.state is not None and _speaks_for_node(case, case.state):
        live = {uid: pod for uid, pod in case.pods.items() if not pod.terminal}
        ended = case.pods.keys() - live.keys()
        found += authority_findings(case.state, live, ended)
        found += Holdings(case.state, live, ended).findings()
    order = {cause: number for number, cause in enumerate(Cause)}
    # Of what is about the same, one detail is told. By its text: in whatever order pods came, it is that one.
    found.sort(key=lambda one: (order[one.cause], one.gpu_uuid, one.subject, one.detail))
    return tuple(dict.fromkeys(found))


def _of_agent(case: Case) -> Iterator[Finding]:
    node, state = case.node, case.state
    if state is None or case.voice is Voice.NEVER:
        yield Finding(Cause.AGENT_NOT_HEARD)
        return
    if case.voice is Voice.SILENT:
        yield Finding(Cause.AGENT_SILENT)
    if not state.node_uid:
        yield Finding(Cause.NODE_UID_UNKNOWN)
    elif state.node_uid != node.uid:
        yield Finding(Cause.NODE_REPLACED, detail=f"the agent reports for the node with UID {state.node_uid}")
    if state.mode is NodeMode.UNKNOWN:
        yield Finding(Cause.MODE_UNKNOWN)
    offered = [
        name
        for name, offers, authority in (
            ("nvidia.com", node.offers_nvidia, NodeMode.NVIDIA),
            ("gpuloom.dev", node.offers_gpuloom, NodeMode.GPULOOM),
        )
        if offers and state.mode not in (authority, NodeMode.UNKNOWN)
    ]
    if offered or (node.offers_nvidia and node.offers_gpuloom):
        detail = f"the agent works in mode {state.mode}, and the node offers {' and '.join(offered)} GPUs"
        yield Finding(Cause.TWO_AUTHORITIES, detail=detail if offered else "")
    if state.holders_unknown_reason:
        yield Finding(Cause.HOLDERS_UNKNOWN, detail=state.holders_unknown_reason)


def _of_annotations(case: Case) -> Iterator[Finding]:
    """A record that is for somebody else closes the GPUs it names, if the node has them; else the node."""
    known = {gpu.uuid for gpu in case.state.gpus} if case.state is not None else set()
    for pod in case.pods.values():
        if pod.terminal:
            continue
        uid, given = pod.ref.uid, pod.allocation
        if pod.problem:
            yield Finding(Cause.UNREADABLE_ALLOCATION, subject=uid, detail=f"pod {pod.ref}: {pod.problem}")
        if given is None or pod.given_on(case.node.uid) is not None:
            continue
        if given.pod_uid != uid:
            cause, detail = Cause.ALLOCATION_OF_ANOTHER_POD, f"pod {pod.ref} carries that of {given.pod_uid}"
        elif given.advisory and case.state is not None and case.state.mode is NodeMode.NVIDIA:
            # A prediction gives nothing: the kubelet of this node chooses, under whatever UID it registered.
            continue
        else:
            cause, detail = Cause.ALLOCATION_OF_ANOTHER_NODE, f"pod {pod.ref} names node {given.node_uid}"
        named = sorted({allocated.device.gpu_uuid for allocated in given.devices})
        for gpu_uuid in named if known.issuperset(named) else ("",):
            yield Finding(cause, gpu_uuid, uid, detail)


def _speaks_for_node(case: Case, state: NodeState) -> bool:
    """Whether what the agent shows can be held against the pods: it is new, complete and of this machine."""
    return (
        case.voice is Voice.HEARD
        and state.node_uid == case.node.uid
        and state.mode is not NodeMode.UNKNOWN
        and not state.holders_unknown_reason
    )


def _closed_gpus(counting: tuple[Finding, ...], state: NodeState | None) -> tuple[ClosedGpu, ...]:
    """Each with its gravest cause; no more than a reader takes, those that the node has before all others."""
    closed: dict[str, str] = {}
    for finding in counting:
        if finding.gpu_uuid:
            closed.setdefault(finding.gpu_uuid, REASONS[finding.cause])
    shown = set() if state is None else {gpu.uuid for gpu in state.gpus}
    first = sorted(closed, key=lambda uuid: (uuid not in shown, uuid))[:MAX_GPUS_PER_NODE]
    return tuple(ClosedGpu(uuid, closed[uuid]) for uuid in sorted(first))


def _details(counting: tuple[Finding, ...]) -> tuple[str, ...]:
    lines = [
        f"{finding.gpu_uuid}: {finding.detail}" if finding.gpu_uuid else finding.detail
        for finding in counting
        if finding.detail
    ]
    if len(lines) <= MAX_DETAILS:
        return tuple(lines)
    return (*lines[: MAX_DETAILS - 1], f"and {len(lines) - MAX_DETAILS + 1} more")
