"""Who holds which device, from what was given and from what runs. Pure.

What the kubelet or the container runtime gave is the truth about allocation. Processes add to it: they say
which pod it was when its name does not, and they show who computes on a device without having been given it.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from gpuloom.codec.device import MAX_PIDS_PER_HOLDER
from gpuloom.model.gpu import DeviceRef
from gpuloom.model.node import Holder, HolderSource, PodRef
from services.node_agent.attribution.core.ownership import OwnedProcess
from services.node_agent.ports import PodDevices, PodNames

_NOBODY = PodRef("", "", "")


@dataclass(frozen=True, slots=True)
class Listing:
    """What the kubelet listed, and whose the names were before it was asked and after it answered.

    A name that came to mean another pod in between says nothing: the answer may be of either.
    """

    pods: tuple[PodDevices, ...]
    before: PodNames
    after: PodNames


def kubelet_holders(listing: Listing, processes: Iterable[OwnedProcess]) -> tuple[Holder, ...]:
    """What the kubelet gave, joined to pod UIDs. A pod that can't be identified holds its devices anyway."""
    running = [owned for owned in processes if owned.runs]
    alive = {owned.pod.uid for owned in running if owned.pod is not None}
    times = Counter((entry.namespace, entry.name, entry.container) for entry in listing.pods)
    # A kubelet may list a pod and its predecessor of the same name; nothing in the list tells them apart.
    doubled = {(namespace, name) for (namespace, name, _), count in times.items() if count > 1}
    holders: list[Holder] = []
    for entry in listing.pods:
        is_doubled = (entry.namespace, entry.name) in doubled
        uid, over = ("", False) if is_doubled else _identify(entry, listing)
        if over and uid not in alive:
            continue
        uid = uid or _uid_by_process(entry, listing, running)
        pod = PodRef(entry.namespace, entry.name, uid)
        holders += [
            Holder(pod, entry.container, devices, source, given=given)
            for devices, source, given in (
                (entry.devices, HolderSource.KUBELET, entry.given),
                (entry.claimed, HolderSource.CLAIM, 0),
            )
            if devices
        ]
    return tuple(holders)


def unlisted_holders(listing: Listing, known: Iterable[Holder]) -> tuple[Holder, ...]:
    """Who held devices a moment ago, runs on, and is missing in the list.

    A kubelet that has just started answers for a while without the pods that it has not looked at yet. What
    it gave them stays theirs for as long as they run.
    """
    listed = {(entry.namespace, entry.name) for entry in listing.pods}
    return tuple(
        holder
        for holder in known
        if holder.source in (HolderSource.KUBELET, HolderSource.CLAIM)
        and (holder.pod.namespace, holder.pod.name) not in listed
        and _runs_on(holder.pod, listing)
    )


def _runs_on(pod: PodRef, listing: Listing) -> bool:
    named = listing.after.get((pod.namespace, pod.name))
    return named is not None and named.runs and bool(pod.uid) and named.uid == pod.uid


def process_holders(processes: Iterable[OwnedProcess], given: Iterable[Holder]) -> tuple[Holder, ...]:
    """One for each pod and device on which it computes without having been given it.

    Processes of no pod are one holder per device, without a pod.
    """
    given = tuple(given)
    found: dict[tuple[PodRef, DeviceRef], list[OwnedProcess]] = {}
    for owned in processes:
        if owned.runs and not owned.infrastructure and not _is_covered(owned, given):
            found.setdefault((owned.pod or _NOBODY, owned.process.device), []).append(owned)
    return tuple(_process_holder(pod, device, group) for (pod, device), group in found.items())


def _identify(entry: PodDevices, listing: Listing) -> tuple[str, bool]:
    """The UID, empty if it is not certain, and whether that pod is over.

    Old kubelets list a pod that completed until it is deleted, although its devices are free for others.
    """
    key = entry.namespace, entry.name
    before, after = listing.before.get(key), listing.after.get(key)
    if before is None or after is None or before.uid != after.uid:
        return "", False
    return after.uid, after.over and bool(after.uid)


def _uid_by_process(entry: PodDevices, listing: Listing, running: Iterable[OwnedProcess]) -> str:
    """The UID of the one pod of this name that computes on these devices.

    Or of the one pod without a known name there, if these devices were given to nobody else: the kubelet and
    the control group then tell two halves of one pod that Kubernetes does not show, or not yet.
    """
    there = [owned.pod for owned in running if owned.pod is not None and _is_on(owned, entry.all_devices)]
    uids = {pod.uid for pod in there if (pod.namespace, pod.name) == (entry.namespace, entry.name)}
    if not uids and not _is_shared(entry, listing):
        uids = {pod.uid for pod in there if not pod.name}
    return uids.pop() if len(uids) == 1 else ""


def _is_shared(entry: PodDevices, listing: Listing) -> bool:
    return any(
        _overlap(mine, device)
        for other in listing.pods
        if (other.namespace, other.name) != (entry.namespace, entry.name)
        for device in other.all_devices
        for mine in entry.all_devices
    )


def _is_covered(owned: OwnedProcess, given: tuple[Holder, ...]) -> bool:
    if owned.pod is None:
        return False
    # The runtime knows a static pod by its hash, Kubernetes by its mirror's UID.
    uids = {owned.pod.uid, owned.cgroup_uid}
    return any(holder.pod.uid in uids and _is_on(owned, holder.devices) for holder in given)


def _is_on(owned: OwnedProcess, devices: Iterable[DeviceRef]) -> bool:
    return any(_overlap(owned.process.device, device) for device in devices)


def _overlap(one: DeviceRef, other: DeviceRef) -> bool:
    """A process of which the driver tells the GPU but not the instance may be on any of them."""
    return one.gpu_uuid == other.gpu_uuid and (one.mig == other.mig or one.mig is None or other.mig is None)


def _process_holder(pod: PodRef, device: DeviceRef, group: list[OwnedProcess]) -> Holder:
    containers = {owned.process.container for owned in group}
    pids = sorted({owned.process.pid for owned in group})
    return Holder(
        pod=pod,
        container=containers.pop() if len(containers) == 1 else "",
        devices=(device,),
        source=HolderSource.PROCESS,
        pids=tuple(pids[:MAX_PIDS_PER_HOLDER]),
    )
