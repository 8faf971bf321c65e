"""Which pods are on the node, held against what is seen to run there. Pure."""

from collections.abc import Collection, Iterable
from dataclasses import replace

from gpuloom.model.node import Holder, HolderSource, PodPresence
from services.node_agent.attribution.core.ownership import OwnedProcess
from services.node_agent.ports import PodDirectory, PodNames

_GIVEN = frozenset(
    {HolderSource.KUBELET, HolderSource.RUNTIME, HolderSource.ENVIRONMENT, HolderSource.CGROUP}
)


def running_pods(holders: Iterable[Holder], processes: Iterable[OwnedProcess]) -> set[str]:
    """UIDs of pods that surely have a control group: the runtime or a process of theirs shows them."""
    runs = {holder.pod.uid for holder in holders if holder.source is HolderSource.RUNTIME}
    return (runs | {owned.cgroup_uid for owned in processes if owned.runs}) - {""}


def checked(found: PodPresence, running: Collection[str], pods: PodDirectory) -> PodPresence:
    """As it was found, if it has all that runs; static pods by the UIDs of their mirrors, too.

    Control groups that lack a pod that runs are not those of this host, or not all of them.
    """
    present = set(found.pod_uids)
    missing = sorted(set(running) - present)
    if missing:
        reason = f"pod {missing[0]} runs, and its control group is not where those of pods are looked for"
        return replace(found, unknown_reason=reason)
    known = (pods.pod_of(uid) for uid in found.pod_uids)
    mirrors = {pod.uid for pod in known if pod is not None}
    return replace(found, pod_uids=tuple(sorted(present | mirrors)))


def lingering_holders(
    given: Iterable[Holder], known: Iterable[Holder], presence: PodPresence, names: PodNames
) -> tuple[Holder, ...]:
    """Who had devices until now, is listed by nobody any more, and is still on the node.

    A kubelet drops a force-deleted pod from its list at once, Kubernetes does as well, and the runtime lists
    no container between two runs. A pod that ended by its kubelet's word has given its devices back.
    """
    listed = {(holder.pod.uid, holder.container) for holder in given}
    over = {pod.uid for pod in names.values() if pod.over}
    still = set(presence.pod_uids) - over
    return tuple(
        replace(holder, source=HolderSource.CGROUP)
        for holder in known
        if holder.source in _GIVEN
        and holder.pod.uid in still
        and (holder.pod.uid, holder.container) not in listed
    )
