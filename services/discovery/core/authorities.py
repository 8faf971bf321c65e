"""Who gave out what is held on a node, held against who gives out its GPUs now. Pure.

A GPU has one authority. What another one gave out, the present one does not know of and would give out again:
before the node changed its mode, or beside it by a DRA driver. So each such holder closes the whole node.
"""

from collections.abc import Collection, Iterator, Mapping

from gpuloom.model.gpu import DeviceRef
from gpuloom.model.node import HolderSource, NodeMode, NodeState
from services.discovery.core.findings import Cause, Finding
from services.discovery.core.pods import NodePod


def authority_findings(
    state: NodeState, live: Mapping[str, NodePod], ended: Collection[str] = ()
) -> Iterator[Finding]:
    """`state` is of a node that speaks for itself; `live` are its pods that have not ended, by UID."""
    for uid, pod in live.items():
        mode = _mode_of(pod, state.node_uid)
        if mode not in (state.mode, NodeMode.UNKNOWN):
            yield Finding(Cause.MODE_CHANGED, "", uid, f"pod {pod.ref} was given GPUs in mode {mode}")
    known = {gpu.uuid for gpu in state.gpus}
    for holder in state.holders:
        uid, mode = holder.pod.uid, holder.source.mode
        if holder.source is HolderSource.CLAIM:
            named = ", ".join(_named(device, known) for device in holder.devices)
            detail = f"pod {holder.pod} holds {named} by a resource claim"
            yield Finding(Cause.CLAIMED_GPU, "", uid or str(holder.pod), detail)
        elif mode not in (state.mode, NodeMode.UNKNOWN) and uid not in ended:
            detail = f"pod {holder.pod} holds GPUs that were given in mode {mode}"
            yield Finding(Cause.MODE_CHANGED, "", uid or str(holder.pod), detail)


def _mode_of(pod: NodePod, node_uid: str) -> NodeMode:
    """What it was given counts before what it asks for. A request to GPULoom alone gives it nothing."""
    given = pod.given_on(node_uid)
    if given is not None:
        return given.mode
    return NodeMode.NVIDIA if pod.asked is not None and pod.asked.most else NodeMode.UNKNOWN


def _named(device: DeviceRef, known: Collection[str]) -> str:
    if device.gpu_uuid in known:
        return device.gpu_uuid
    return f"{device.gpu_uuid} (which GPU that is can't be told)"
