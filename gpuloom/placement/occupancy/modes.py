"""Who gave out what is held on a node: NVIDIA's device plugin, GPULoom, or a DRA driver. Pure.

A GPU has one authority, so a node is in one mode. While somebody holds a device that another authority gave
out, the present one does not know of it and would give it out again: the node is closed until nobody does.
It never judges which mode is right, and rests on what pods carry and nodes show, not on who changed the mode.
"""

from collections.abc import Iterable

from gpuloom.model.allocation import Allocation
from gpuloom.model.node import Holder, HolderSource, NodeMode, PodRef
from gpuloom.model.request import Authority, PodRequest

_BY_AUTHORITY = {Authority.NVIDIA: NodeMode.NVIDIA, Authority.GPULOOM: NodeMode.GPULOOM}

_NAMED = 3


def mode_of_pod(request: PodRequest | None, allocation: Allocation | None) -> NodeMode:
    """What it was given counts before what it asks for; UNKNOWN if neither can be read."""
    if allocation is not None:
        return allocation.mode
    return NodeMode.UNKNOWN if request is None else _BY_AUTHORITY[request.gpu.authority]


def mode_conflict(
    mode: NodeMode, owners: Iterable[tuple[PodRef, NodeMode]], holders: Iterable[Holder]
) -> str:
    """Why nothing of a node in this mode may be given out beside these owners; empty if it may."""
    others = [(pod, given) for pod, given in owners if given not in (mode, NodeMode.UNKNOWN)]
    if others:
        before, named = others[0][1], _named(pod for pod, _ in others)
        return f"the node changed from {before} to {mode} while {named}; drain them"
    claiming = [holder.pod for holder in holders if holder.source is HolderSource.CLAIM]
    if claiming:
        return (
            f"a DRA driver gives out GPUs of this {mode} node: by resource claims {_named(claiming)}; "
            "delete them, or take GPULoom or the DRA driver off the node"
        )
    return ""


def vanished_reason(mode: NodeMode, pods: Iterable[PodRef]) -> str:
    """Why pods that Kubernetes does not show, but that compute on GPUs, close a node; empty if they don't.

    Where we choose the devices it is enough that theirs are taken. NVIDIA's plugin has taken them back, or
    never knew of them: they were given out before the node changed its mode, say.
    """
    gone = tuple(pods)
    if mode is not NodeMode.NVIDIA or not gone:
        return ""
    return (
        f"{_named(gone)}, which NVIDIA's device plugin may give out again, though Kubernetes has no such "
        "pod: end its containers on the node (crictl ps)"
    )


def _named(pods: Iterable[PodRef]) -> str:
    names = sorted({str(pod) for pod in pods})
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    listed = ", ".join(names[:_NAMED]) + more
    return f"pod {listed} holds GPUs" if len(names) == 1 else f"pods {listed} hold GPUs"
