"""Which containers have devices, as the runtime tells it. In memory; the runtime is the one that knows.

What a container was given is written on the container itself, so that it is known again after a restart. A
container without that mark has no device of ours, whatever its pod's allocation says.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from gpuloom.codec.allocation import decode_allocation
from gpuloom.errors import InvalidRequestError, UnavailableError
from gpuloom.model.allocation import AllocatedDevice
from gpuloom.model.node import Holder, HolderSource, PodRef
from gpuloom.names import ANNOTATION_ALLOCATION, ANNOTATION_DELIVERED
from gpuloom.nri import nri_pb2 as pb
from services.node_agent.delivery.core.verify import Delivered

MAX_LISTED = 20_000
"""Pods and containers of one node, stopped ones too; far beyond what a kubelet runs."""

_NOT_CONNECTED = "the container runtime has not said yet what runs"


@dataclass(frozen=True, slots=True)
class _Entry:
    sandbox_id: str
    given: Delivered


@dataclass(frozen=True, slots=True)
class _Pod:
    """`container` is the one that its allocation names; empty if it has no allocation of its own.

    `is_marked`: it carries our mark itself, as only its owner can have written it. Some runtimes show that on
    its containers, too; we never deliver to such a pod.
    """

    ref: PodRef
    container: str
    is_marked: bool = False


_NOBODY = _Pod(PodRef("", "", ""), "")


class Deliveries:
    def __init__(self) -> None:
        self.synchronized = False
        self._reason = _NOT_CONNECTED
        self._delivered: dict[str, _Entry] = {}
        self._unreadable: dict[str, _Entry] = {}
        self._pods: dict[str, _Pod] = {}
        self._arriving: list[pb.Container] = []

    @property
    def unknown_reason(self) -> str:
        """Why nothing may be concluded from what is known here; empty if all is known."""
        if not self.synchronized:
            return self._reason
        for entry in self._unreadable.values():
            return f"what container {entry.given.container} of {entry.given.pod} was given can't be read"
        return ""

    def forget(self, reason: str) -> None:
        """Nobody tells us any more what happens."""
        self.synchronized, self._reason = False, reason
        for known in (self._delivered, self._unreadable, self._pods):
            known.clear()
        self._arriving.clear()

    def take_part(self, pods: Iterable[pb.PodSandbox], containers: Iterable[pb.Container]) -> None:
        """A part of what runs; nothing is known until `complete`. Raise UnavailableError if too much."""
        self.synchronized = False
        self._pods |= {pod.id: _pod(pod) for pod in pods}
        self._arriving += containers
        if len(self._pods) + len(self._arriving) > MAX_LISTED:
            self.forget("the container runtime lists more than a node can run")
            raise UnavailableError(self._reason)

    def complete(self) -> tuple[PodRef, ...]:
        """All parts have come; they replace what was known.

        The answer has the pods that run without the devices of their allocation: they started while nobody
        delivered, and only a new start gives them their devices.
        """
        self._delivered, self._unreadable = {}, {}
        without = []
        for container in self._arriving:
            if container.state == pb.CONTAINER_STOPPED:
                continue
            pod = self._pods.get(container.pod_sandbox_id, _NOBODY)
            mark = None if pod.is_marked else container.annotations.get(ANNOTATION_DELIVERED)
            if mark is None:
                without += [pod.ref] if pod.container == container.name else []
                continue
            devices = _devices(mark) if pod.ref.uid else ()
            entry = _Entry(container.pod_sandbox_id, Delivered(pod.ref, container.name, devices))
            (self._delivered if devices else self._unreadable)[container.id] = entry
        self._arriving, self._pods = [], {}
        self.synchronized = True
        return tuple(without)

    def add(self, container_id: str, sandbox_id: str, given: Delivered) -> None:
        """This container is about to start with devices; an earlier try of the same one is over."""
        same = (given.pod.uid, given.container)
        earlier = [
            known
            for known, entry in self._delivered.items()
            if (entry.given.pod.uid, entry.given.container) == same
        ]
        for known in earlier:
            del self._delivered[known]
        self._delivered[container_id] = _Entry(sandbox_id, given)

    def drop_container(self, container_id: str) -> None:
        self._delivered.pop(container_id, None)
        self._unreadable.pop(container_id, None)

    def drop_pod(self, sandbox_id: str) -> None:
        for known in (self._delivered, self._unreadable):
            for container_id in [key for key, entry in known.items() if entry.sandbox_id == sandbox_id]:
                del known[container_id]

    def all(self) -> tuple[Delivered, ...]:
        return tuple(entry.given for entry in self._delivered.values())

    async def holders(self) -> tuple[Holder, ...]:
        """The agent's Runtime port. Raise UnavailableError while it is not known what runs."""
        if self.unknown_reason:
            raise UnavailableError(self.unknown_reason)
        return tuple(
            Holder(
                pod=given.pod,
                container=given.container,
                devices=tuple(allocated.device for allocated in given.devices),
                source=HolderSource.RUNTIME,
            )
            for given in self.all()
        )


def _pod(pod: pb.PodSandbox) -> _Pod:
    ref, is_marked = PodRef(pod.namespace, pod.name, pod.uid), ANNOTATION_DELIVERED in pod.annotations
    try:
        allocation = decode_allocation(pod.annotations.get(ANNOTATION_ALLOCATION, ""))
    except InvalidRequestError:
        return _Pod(ref, "", is_marked)
    return _Pod(ref, allocation.container if allocation.pod_uid == pod.uid else "", is_marked)


def _devices(mark: str) -> tuple[AllocatedDevice, ...]:
    """Empty if the mark can't be read, for instance because a newer agent wrote it."""
    try:
        return decode_allocation(mark).devices
    except InvalidRequestError:
        return ()
