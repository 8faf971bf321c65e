"""What the extender needs from Kubernetes beside its informers."""

from typing import Protocol

from gpuloom.kube.client import PodBinding
from gpuloom.kube.objects import JsonObject


class Binder(Protocol):
    async def bind(self, binding: PodBinding, *, timeout_s: float) -> None:
        """One Binding.

        ConflictError, NotFoundError, InvalidRequestError, NotAllowedError: not applied, and never will be.
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
