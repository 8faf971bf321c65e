"""What the extender needs from Kubernetes beside its informers."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from gpuloom.kube.client import PodBinding
from gpuloom.kube.objects import JsonObject
from gpuloom.model.ledger import Hold
from gpuloom.model.node import PodRef
from gpuloom.placement.gangs.victims import DisruptionBudget


class Binder(Protocol):
    async def bind(self, binding: PodBinding, *, timeout_s: float) -> None:
        """One Binding.

        ConflictError, NotFoundError, InvalidRequestError, NotAllowedError: not applied, and never will be; a
        copy that a proxy made of it may have been.
        Any other GpuloomError: it may have been applied, or may still be.
        """


class Pods(Protocol):
    def by_uid(self, uid: str) -> JsonObject | None:
        """The pod as it was last observed."""

    async def read(self, namespace: str, name: str) -> JsonObject:
        """The pod as it is now. Raise NotFoundError, or UnavailableError and its like."""


class Marker(Protocol):
    async def stamp(self, namespace: str, name: str, uid: str, epoch: str) -> None:
        """Write the epoch on the pod, so that its resourceVersion changes. NotFoundError if it is gone."""

    async def touch(self, node_name: str, epoch: str) -> None:
        """Write a new capacity epoch on the node, which wakes pods that wait in kube-scheduler."""


class Evictions(Protocol):
    """How pods are asked to leave. Every call may raise a GpuloomError."""

    async def evict(self, pod: PodRef) -> str:
        """Empty if this very pod is leaving or gone; else why it may not leave now (a disruption budget)."""

    async def request_checkpoint(self, pod: PodRef, at: datetime) -> None:
        """Tell the pod that it will be evicted."""


class Announcer(Protocol):
    """Events about pods; never fails."""

    def tell(self, pod: JsonObject, reason: str, message: str, *, warning: bool = False) -> None: ...


class DisruptionBudgets(Protocol):
    async def list(self) -> Sequence[DisruptionBudget]:
        """All of the cluster, as they are now. Raise a GpuloomError: then nobody is evicted."""


class GangSizes(Protocol):
    async def size_of(self, pod: JsonObject) -> int | None:
        """How many pods its owner makes; None if nobody says."""


class HoldStore(Protocol):
    """GPUHolds in Kubernetes. Every call may raise a GpuloomError, after which it may have acted."""

    async def create(self, hold: Hold, *, timeout_s: float) -> Hold:
        """AlreadyExistsError; InvalidRequestError, NotAllowedError, NotFoundError (no such kind): refused."""

    async def read(self, name: str) -> Hold:
        """As it is now. NotFoundError."""

    async def renew(self, hold: Hold, expires: datetime | None, *, timeout_s: float) -> Hold:
        """That very object, with this expiry. NotFoundError if it is gone."""

    async def delete(self, hold: Hold, *, timeout_s: float, at_version: bool = False) -> None:
        """That very object. NotFoundError if it is gone; ConflictError if it is no longer at its version."""


class Mandate(Protocol):
    def until_s(self) -> float:
        """The monotonic time up to which nobody else can be the leader; in the past: not the leader."""


@dataclass(frozen=True, slots=True)
class Stamped:
    """How many pods a takeover wrote its epoch on, and those that could not be written."""

    pods: int
    unstamped: tuple[PodRef, ...] = ()


class Fence(Protocol):
    """What stands between a new leader and those before it. Every step is tried until it succeeds."""

    async def unbound_pods(self) -> Sequence[JsonObject]:
        """All unbound pods as they are after this call began."""

    async def stamp(self, pods: Sequence[JsonObject]) -> Stamped:
        """Change the version of those that the extender manages.

        Of those that can't be changed, return when no Binding sent before this call can be applied any more.
        """

    async def catch_up(self) -> None:
        """Return when the ledger has heard of everything that happened to pods before this call."""


class LeaderLabel(Protocol):
    """What makes the Service choose this pod."""

    async def put(self) -> None:
        """Put it on, and take it off whoever else wears it. Does nothing if all is so already."""

    async def remove(self) -> None: ...
