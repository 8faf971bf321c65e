"""Holds in the model: GPUHolds in Kubernetes, what holders were promised, and moves that take and end them.

A holder that was answered may rely on what it holds until it gives it up, its object is deleted, or
Kubernetes is set back to a time before it. Until then the machine owes it to nobody else, and nobody who
serves may believe it to be free.
"""

from collections.abc import Awaitable, Callable
from copy import deepcopy
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gpuloom.codec.hold import hold_from_object, hold_to_object
from gpuloom.errors import ConflictError, GpuloomError, NotFoundError
from gpuloom.kube.cache import Change
from gpuloom.kube.errors import AlreadyExistsError
from gpuloom.kube.parse import format_time
from gpuloom.model.allocation import AllocatedDevice
from gpuloom.model.claims import HoldOwner
from gpuloom.model.gpu import MILLI_PER_GPU, DeviceRef
from gpuloom.model.ledger import Hold
from gpuloom.model.node import NodeMode, PodRef
from gpuloom.model.request import Authority, GpuRequest, RequestKind
from services.scheduler_extender.holds.holding import Holding
from tests.unit.scheduler_extender.builders import HandClock, JsonObject
from tests.unit.scheduler_extender.model.calls import Call, Task
from tests.unit.scheduler_extender.model.machines import Machine, Owed

NAMES = ("h1", "h2", "h3")
TTL_S = 20
HOLDER = "mig_controller"


class HoldObjects:
    """GPUHolds of the API server, and a log of them for watchers."""

    def __init__(self) -> None:
        self.objects: dict[str, JsonObject] = {}
        self.log: list[Change] = []
        self.deleted_by_hand: set[str] = set()
        self._serial = 0

    def create(self, hold: Hold) -> JsonObject:
        if hold.name in self.objects:
            raise AlreadyExistsError(f"there is a GPUHold {hold.name}")
        made = hold_to_object(hold)
        made["metadata"]["uid"] = f"uid-hold-{self._serial}"
        return self._commit(hold.name, made)

    def get(self, name: str) -> JsonObject:
        if name not in self.objects:
            raise NotFoundError(f"no GPUHold {name}")
        return self.objects[name]

    def renew(self, hold: Hold, expires: datetime | None) -> JsonObject:
        changed = deepcopy(self.get(hold.name))
        if hold.uid and changed["metadata"]["uid"] != hold.uid:
            raise NotFoundError("another one")
        changed["spec"]["expiresAt"] = None if expires is None else format_time(expires)
        return self._commit(hold.name, changed)

    def delete(self, name: str, uid: str = "", version: str = "") -> None:
        metadata = self.get(name)["metadata"]
        if uid not in ("", metadata["uid"]) or version not in ("", metadata["resourceVersion"]):
            raise ConflictError("another one, or changed")
        self._serial += 1
        self.log.append(Change(self.objects.pop(name), None))

    def delete_by_hand(self, name: str) -> None:
        self.deleted_by_hand.add(self.get(name)["metadata"]["uid"])
        self.delete(name)

    def restore(self, objects: dict[str, JsonObject]) -> None:
        """Of this no watch shows anything; whoever follows lists again."""
        self.objects = deepcopy(objects)

    def _commit(self, name: str, obj: JsonObject) -> JsonObject:
        self._serial += 1
        obj["metadata"]["resourceVersion"] = str(self._serial)
        self.log.append(Change(self.objects.get(name), obj))
        self.objects[name] = obj
        return obj


class HoldWriter:
    """The API as the extender's writes reach it: each stops until a test lets it go on."""

    def __init__(self, objects: HoldObjects) -> None:
        self._objects = objects

    async def create(self, hold: Hold, *, timeout_s: float) -> Hold:
        return await _answered(lambda: self._objects.create(hold))

    async def read(self, name: str) -> Hold:
        return await _answered(lambda: self._objects.get(name))

    async def renew(self, hold: Hold, expires: datetime | None, *, timeout_s: float) -> Hold:
        return await _answered(lambda: self._objects.renew(hold, expires))

    async def delete(self, hold: Hold, *, timeout_s: float, at_version: bool = False) -> None:
        version = hold.version if at_version else ""
        await Call(lambda: self._objects.delete(hold.name, hold.uid, version))


@dataclass
class Promise:
    """`until_s` is how long its taker may rely on it, by what it was told last."""

    hold: Hold
    until_s: float


class Promises:
    """What holders rely on, by name."""

    def __init__(self, objects: HoldObjects, clock: HandClock) -> None:
        self._objects = objects
        self._clock = clock
        self._kept: dict[str, Promise] = {}

    def take(self, holding: Holding, wanted: Hold) -> Task:
        async def taking() -> str:
            hold = await holding.take(wanted, TTL_S)
            self._kept[hold.name] = Promise(hold, self._clock.elapsed_s + TTL_S)
            return "taken"

        return Task(_told(taking))

    def release(self, holding: Holding, name: str) -> Task:
        """The holder gives it up before it says so."""
        self._kept.pop(name, None)

        async def releasing() -> str:
            await holding.release(name, HOLDER)
            return "released"

        return Task(_told(releasing))

    def renew(self, holding: Holding, name: str) -> Task:
        async def renewing() -> str:
            hold = await holding.renew(name, TTL_S, HOLDER)
            if name in self._kept and self._kept[name].hold.uid == hold.uid:
                self._kept[name].until_s = self._clock.elapsed_s + TTL_S
            return "renewed"

        return Task(_told(renewing))

    def forget(self) -> None:
        """Kubernetes has another history: what it had of them may be gone."""
        self._kept.clear()

    def owed(self, machine: Machine, owed: list[Owed]) -> list[Owed]:
        """What this machine owes to holders, beside these pods.

        Nobody can keep a promise of a machine that was replaced, or of one where the kubelet chooses by now.
        """
        for name, promise in list(self._kept.items()):
            if promise.hold.node_name == machine.name and not _could_be_kept(promise.hold, machine):
                del self._kept[name]
        return [
            _owed(promise.hold, machine)
            for promise in self._kept.values()
            if self._is_kept(promise, machine) and not _is_used(promise.hold, owed)
        ]

    def _is_kept(self, promise: Promise, machine: Machine) -> bool:
        hold = promise.hold
        if hold.node_name != machine.name or hold.uid in self._objects.deleted_by_hand:
            return False
        metadata = self._objects.objects.get(hold.name, {}).get("metadata", {})
        # One for a pod ends with its use, too.
        relies = not hold.lets_pods_through and self._clock.elapsed_s < promise.until_s
        return metadata.get("uid") == hold.uid or relies


def a_wanted_hold(name: str, machine: Machine, place: int, owner: PodRef | None) -> Hold:
    """A card or a slice of the machine; of the places that it has, the one of this number."""
    places = [DeviceRef(gpu.uuid) for gpu in machine.gpus]
    places += [DeviceRef(gpu.uuid, one.placement) for gpu in machine.gpus for one in gpu.mig_instances]
    device = AllocatedDevice(places[place % len(places)], MILLI_PER_GPU, 0)
    whom = HoldOwner("Service", HOLDER) if owner is None else _pod_owner(owner)
    return Hold(name, machine.name, whom, "model", device=device, taken_by=HOLDER)


def _pod_owner(pod: PodRef) -> HoldOwner:
    return HoldOwner("Pod", pod.name, pod.namespace, pod.uid)


def _owed(hold: Hold, machine: Machine) -> Owed:
    """A card that is held is held whole; a slice alone."""
    assert hold.device is not None
    gpu = next(gpu for gpu in machine.gpus if gpu.uuid == hold.device.device.gpu_uuid)
    devices = {hold.device.device: (MILLI_PER_GPU, gpu.memory_mib)}
    if hold.device.device.mig is None:
        devices |= {DeviceRef(gpu.uuid, one.placement): (0, 0) for one in gpu.mig_instances}
    request = GpuRequest(RequestKind.WHOLE, Authority.GPULOOM)
    return Owed(PodRef("", hold.name, ""), request, devices, 0.0, NodeMode.GPULOOM)


def _could_be_kept(hold: Hold, machine: Machine) -> bool:
    uuids = {gpu.uuid for gpu in machine.gpus}
    held = hold.device is not None and hold.device.device.gpu_uuid in uuids
    return held and machine.mode is NodeMode.GPULOOM


def _is_used(hold: Hold, owed: list[Owed]) -> bool:
    return any(hold.is_for_pod(entry.pod.uid, str(entry.pod)) for entry in owed)


async def _answered(act: Callable[[], JsonObject]) -> Hold:
    answer: JsonObject = await Call(act)
    return hold_from_object(answer)


async def _told(work: Callable[[], Awaitable[str]]) -> Any:
    try:
        return await work()
    except GpuloomError as error:
        return str(error)
