"""Who holds which device of a node, held against who was given it. Pure.

On a `gpuloom` node the allocation says exactly which devices a pod may hold. On an `nvidia` node the kubelet
chooses, so only the number of devices and their owner are compared; a prediction is never an owner.
That a pod does not hold yet what it was given is no disagreement: its image may take long to come.
Who else could have given a device is not asked here: see `authorities.py`.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping

from gpuloom.model.allocation import Allocation
from gpuloom.model.gpu import GPU_UUID, MILLI_PER_GPU, DeviceRef
from gpuloom.model.node import Holder, HolderSource, NodeMode, NodeState
from services.discovery.core.findings import Cause, Finding
from services.discovery.core.pods import NodePod


class Holdings:
    """The holders of a node that speaks for itself, beside its pods."""

    def __init__(self, state: NodeState, live: Mapping[str, NodePod], ended: Collection[str] = ()) -> None:
        """`live` are the pods that have not ended, by UID; `ended` are the UIDs of the others."""
        self._state = state
        self._live = live
        self._ended = ended
        self._plugged: dict[str, set[DeviceRef]] = defaultdict(set)
        """What each pod was shown to have by anybody but the list of processes."""
        self._plugged_count: Counter[str] = Counter()
        """How many devices plugins gave it as requests count them: replicas of one GPU are several."""
        self._claimed: dict[str, set[DeviceRef]] = defaultdict(set)
        """What of that it has by resource claims: nobody here gave it that, and it does not ask us for it."""
        for holder in state.holders:
            if holder.source is HolderSource.PROCESS:
                continue
            self._plugged[holder.pod.uid].update(holder.devices)
            if holder.source is HolderSource.CLAIM:
                self._claimed[holder.pod.uid].update(holder.devices)
            else:
                self._plugged_count[holder.pod.uid] += holder.count

    def findings(self) -> Iterator[Finding]:
        known = {gpu.uuid for gpu in self._state.gpus}
        yield from self._unknown_devices(known)
        yield from self._second_owners(known)
        for holder in self._state.holders:
            cause = _stranger(holder, self._live, self._ended)
            for device in holder.devices:
                if device.gpu_uuid in known:
                    yield from self._of_held(holder, device, cause)
        if self._state.mode is NodeMode.NVIDIA:
            for uid, pod in self._live.items():
                plugged = self._plugged.get(uid, set()) - self._claimed.get(uid, set())
                yield from _wrong_count(pod, plugged, self._plugged_count[uid], known)

    def _unknown_devices(self, known: set[str]) -> Iterator[Finding]:
        for holder in self._state.holders:
            for device in holder.devices:
                if device.gpu_uuid not in known and holder.source is not HolderSource.CLAIM:
                    yield _unknown(device, f"{_who(holder)} holds {device.gpu_uuid}")
        shown = {holder.pod.uid for holder in self._state.holders}
        for uid, pod in self._live.items():
            given = pod.given_on(self._state.node_uid)
            # A prediction means nothing any more once the kubelet has shown its choice.
            if given is None or (given.advisory and uid in shown):
                continue
            for allocated in given.devices:
                if allocated.device.gpu_uuid not in known:
                    yield _unknown(allocated.device, f"pod {pod.ref} was given {allocated.device.gpu_uuid}")

    def _second_owners(self, known: set[str]) -> Iterator[Finding]:
        milli: dict[str, dict[DeviceRef, dict[str, int]]] = defaultdict(lambda: defaultdict(dict))
        for uid, pod in self._live.items():
            for device, share in self._exactly_given(pod).items():
                milli[device.gpu_uuid][device][uid] = share
        for holder in self._state.holders:
            pod_held = self._live.get(holder.pod.uid)
            if pod_held is None or not self._proves_ownership(holder):
                continue
            given = self._exactly_given(pod_held)
            for device in holder.devices:
                if not _covers(given, device, holder.source):
                    milli[device.gpu_uuid][device][holder.pod.uid] = MILLI_PER_GPU
        for gpu_uuid in sorted(known & milli.keys()):
            if _is_contested(gpu_uuid, milli[gpu_uuid]):
                uids = {uid for shares in milli[gpu_uuid].values() for uid in shares}
                owners = sorted(str(self._live[uid].ref) for uid in uids)
                yield Finding(
                    Cause.SECOND_OWNER, gpu_uuid, detail=f"owned by {', '.join(owners)} beyond its capacity"
                )

    def _of_held(self, holder: Holder, device: DeviceRef, cause: Cause | None) -> Iterator[Finding]:
        uid, gpu_uuid = holder.pod.uid, device.gpu_uuid
        if cause is not None:
            # Processes come and go; that there is always one on this GPU is one finding.
            subject = "" if cause is Cause.FOREIGN_PROCESS else uid or str(holder.pod)
            yield Finding(cause, gpu_uuid, subject, f"held by {_who(holder)}")
        elif uid in self._live and not self._may_hold(holder, device):
            yield Finding(
                Cause.HELD_WITHOUT_ALLOCATION,
                gpu_uuid,
                uid,
                f"held by {_who(holder)}, which was not given it",
            )

    def _may_hold(self, holder: Holder, device: DeviceRef) -> bool:
        pod = self._live[holder.pod.uid]
        if _covers(self._claimed.get(holder.pod.uid, set()), device, holder.source):
            return True
        if self._state.mode is NodeMode.NVIDIA:
            # What the kubelet gave it was the kubelet's to choose; a process proves more than that.
            return _covers(self._plugged.get(holder.pod.uid, set()), device, holder.source)
        given = pod.given_on(self._state.node_uid)
        if given is None:
            # A record that can't be read or believed is a finding of its own.
            return bool(pod.problem or pod.allocation)
        return given.advisory or _covers(self._exactly_given(pod), device, holder.source)

    def _exactly_given(self, pod: NodePod) -> dict[DeviceRef, int]:
        given = pod.given_on(self._state.node_uid) or self._given_before(pod)
        if given is None or given.advisory:
            return {}
        return {allocated.device: allocated.milli for allocated in given.devices}

    def _given_before(self, pod: NodePod) -> Allocation | None:
        """What it was given on this machine under another node UID: no other machine has these GPUs.

        That it names another node is a finding of its own; whether two own one GPU is another matter.
        """
        given, known = pod.allocation, {gpu.uuid for gpu in self._state.gpus}
        if given is None or given.pod_uid != pod.ref.uid:
            return None
        return given if known.issuperset(item.device.gpu_uuid for item in given.devices) else None

    def _proves_ownership(self, holder: Holder) -> bool:
        """On an `nvidia` node a process may be seen before the kubelet lists it; the grace covers that."""
        return self._state.mode is NodeMode.GPULOOM or holder.source is not HolderSource.PROCESS


def _stranger(holder: Holder, live: Mapping[str, NodePod], ended: Collection[str]) -> Cause | None:
    """Why this holder is nobody who could have been given anything here."""
    if not holder.pod.uid and holder.source is HolderSource.PROCESS:
        return Cause.FOREIGN_PROCESS
    if holder.pod.uid in live:
        return None
    # Some kubelets list a pod that ended until it is deleted; it uses nothing any more.
    if holder.pod.uid in ended and holder.source is HolderSource.KUBELET:
        return None
    return Cause.HOLDER_WITHOUT_POD


def _wrong_count(pod: NodePod, plugged: set[DeviceRef], count: int, known: set[str]) -> Iterator[Finding]:
    """Compared once the kubelet shows the pod at all. Too few: where the others are is not known."""
    if not plugged or pod.asked is None:
        return
    detail = f"pod {pod.ref} holds {count} devices and asks for {pod.asked.lasting}"
    if count > pod.asked.most:
        for gpu_uuid in sorted({device.gpu_uuid for device in plugged} & known):
            yield Finding(Cause.WRONG_COUNT, gpu_uuid, pod.ref.uid, detail)
    elif count < pod.asked.lasting:
        yield Finding(Cause.WRONG_COUNT, "", pod.ref.uid, detail)


def _is_contested(gpu_uuid: str, milli: Mapping[DeviceRef, Mapping[str, int]]) -> bool:
    whole = milli.get(DeviceRef(gpu_uuid), {})
    sliced = [shares.keys() for device, shares in milli.items() if device.mig is not None]
    if len(whole) > 1 and sum(whole.values()) > MILLI_PER_GPU:
        return True
    if any(len(owners) > 1 for owners in sliced):
        return True
    return bool(whole) and any(owners - whole.keys() for owners in sliced)


def _covers(given: Mapping[DeviceRef, int] | set[DeviceRef], device: DeviceRef, source: HolderSource) -> bool:
    if device in given:
        return True
    # The driver may show a process on a card without saying on which of its instances.
    by_card = source is HolderSource.PROCESS and device.mig is None
    return by_card and any(mine.gpu_uuid == device.gpu_uuid for mine in given)


def _unknown(device: DeviceRef, detail: str) -> Finding:
    """A GPU that its UUID tells apart is none of the node's; anything else may be one, or a part of it."""
    told_apart = GPU_UUID.fullmatch(device.gpu_uuid) is not None
    return Finding(Cause.UNKNOWN_DEVICE, device.gpu_uuid if told_apart else "", device.gpu_uuid, detail)


def _who(holder: Holder) -> str:
    pids = f" (processes {', '.join(map(str, holder.pids[:8]))})" if holder.pids else ""
    if holder.pod.uid or holder.pod.name:
        return f"pod {holder.pod}{pids}"
    return f"a process outside any pod{pids}"
