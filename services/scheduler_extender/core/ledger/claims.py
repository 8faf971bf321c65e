"""What a pod on a node owns there, as far as the pod and the facts of its node tell. Pure.

Decides what of a pod without a believed allocation is really not known. Where nobody but the agent gives out
devices, such a pod has none. Where the kubelet does, it has as many as it asks for, and which is known once
the kubelet lists them. Whatever else is in doubt may hold any device, and closes the node.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, repeat

from gpuloom.model.allocation import Allocation
from gpuloom.model.ledger import Claim, EntryState
from gpuloom.model.node import Delivery, NodeMode, NodeState, PodRef
from gpuloom.model.request import PluggedDevices, PodRequest
from gpuloom.model.snapshot import NodeFacts
from gpuloom.placement.occupancy.modes import mode_of_pod

OTHER_NODE = "its allocation names another node"
MOST_PLUGGED = 1024
"""Anybody may bind a pod himself that asks for billions of devices; no node has more than so many."""


@dataclass(frozen=True, slots=True)
class Asked:
    """How a bound pod could get devices without a believed allocation.

    `plugged`: from NVIDIA's plugin. `from_agent_only`: it asks for gpuloom.dev/* alone and names no runtime
    class, so only the node agent could give it some, and that gives nothing without an allocation.
    """

    plugged: tuple[PluggedDevices, ...] = ()
    from_agent_only: bool = False


@dataclass(frozen=True, slots=True)
class ObservedPod:
    """A pod that asks for a GPU or carries an allocation, as the informer shows it.

    `problem` says why its request or its allocation can't be believed; such a pod may hold any device of
    its node. `node_name` is empty while it is unbound. `terminal` is its phase, which anybody may write;
    `ended`: its kubelet reported its end. `version` is the resourceVersion it was read at; most of what
    changes it changes nothing else here. `asked` is None while it is unbound, if its containers can't be
    read, and if it carries an allocation that can't be, or carried one before.
    """

    ref: PodRef
    node_name: str
    terminal: bool
    request: PodRequest | None
    allocation: Allocation | None
    problem: str = ""
    version: str = field(default="", compare=False)
    asked: Asked | None = None
    ended: bool = False


def pod_claim(pod: ObservedPod, node_uid: str | None, facts: NodeFacts | None) -> Claim:
    """`node_uid` and `facts` are those of the pod's node, None if they are not known."""
    claim = _claim(pod, node_uid, facts)
    # Who has nothing was given nothing, in whatever mode.
    holds = claim.devices is None or claim.devices or claim.unlisted
    return replace(claim, mode=mode_of_pod(pod.request, pod.allocation)) if holds else claim


def lost_its_record(before: ObservedPod) -> bool:
    """Whether a pod that was like this carried an allocation, if it carries none any more."""
    return bool(before.node_name) and (before.allocation is not None or before.asked is None)


def _claim(pod: ObservedPod, node_uid: str | None, facts: NodeFacts | None) -> Claim:
    state = EntryState.RELEASING if pod.terminal else EntryState.OBSERVED
    wanted = None if pod.request is None else pod.request.gpu.count
    given = pod.allocation
    if given is not None and given.node_uid == node_uid and not pod.problem:
        return Claim(pod.ref, state, given.devices, wanted=wanted, advisory=given.advisory)
    problem = pod.problem or (OTHER_NODE if given is not None else "")
    unknown = Claim(pod.ref, state, None, wanted=wanted, problem=problem)
    if facts is None or not facts.trusted or facts.state.holders_unknown_reason:
        return unknown
    if facts.state.mode is NodeMode.NVIDIA:
        return _given_by_kubelet(pod, unknown)
    return _given_by_agent(pod, unknown, facts.state)


def _given_by_kubelet(pod: ObservedPod, unknown: Claim) -> Claim:
    """The kubelet gives what the containers ask for, whatever else the pod says."""
    asked, given = pod.asked, pod.allocation
    if asked is None or (given is not None and not given.advisory):
        return unknown
    if not asked.plugged and not asked.from_agent_only:
        return unknown
    lasting = sum(devices.lasting for devices in asked.plugged)
    return replace(
        unknown,
        # Of devices that only init containers ask for the kubelet never lists any.
        devices=None if lasting else (),
        wanted=min(lasting, MOST_PLUGGED),
        unlisted=tuple(islice(_unlisted(asked.plugged), MOST_PLUGGED)),
        problem="",
    )


def _unlisted(plugged: Sequence[PluggedDevices]) -> Iterator[str]:
    """The kind of each device that is kept for init containers alone."""
    for devices in plugged:
        # One for each unit would be more than Python counts.
        yield from repeat(devices.kind, min(devices.most - devices.lasting, MOST_PLUGGED))


def _given_by_agent(pod: ObservedPod, unknown: Claim, state: NodeState) -> Claim:
    given = pod.allocation
    if given is None:
        gets_none = state.delivery is Delivery.NRI and pod.asked is not None and pod.asked.from_agent_only
        return replace(unknown, devices=(), problem="") if gets_none else unknown
    # A machine that registers again under another UID is the same: no other has these cards. What runs there
    # has what it was given before, and the agent gives it nothing else.
    here = {gpu.uuid for gpu in state.gpus}.issuperset(item.device.gpu_uuid for item in given.devices)
    if pod.problem or given.advisory or not here:
        return unknown
    return replace(unknown, devices=given.devices, problem="")
