"""The pods of this node, from an informer, as delivery needs them. Everything is answered from memory."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from gpuloom.errors import InvalidRequestError, NotAllowedError, UnavailableError
from gpuloom.kube.informer import Informer
from gpuloom.model.node import Holder, HolderSource
from services.node_agent.delivery.core.comparison import Requested
from services.node_agent.delivery.core.pod_specs import (
    GivenByEnvironment,
    Seat,
    given_by_environment,
    requested,
    service_account,
)
from services.node_agent.delivery.core.verify import Delivered
from services.node_agent.delivery.runtime_class import ObjectReader

NOT_SHOWN = (
    "Kubernetes has not shown this pod to the node agent yet, so what it asks for can't be compared with its "
    "allocation. The kubelet tries again by itself"
)


@dataclass(frozen=True, slots=True)
class Cluster:
    """What Kubernetes tells delivery. `pods` holds at least those of this node."""

    pods: Informer
    api: ObjectReader


class PodSource(Protocol):
    def requested(self, uid: str) -> Requested | None:
        """What that pod asks for, None where nobody tells of pods.

        Raise NotAllowedError if it is not known yet, or its spec does not have one container that asks.
        """

    def service_account(self, uid: str) -> str:
        """Under which that pod runs; empty if that is not known."""

    def given_by_environment(self) -> tuple[Delivered, ...]:
        """Who may have devices by environment, as far as they are known."""

    async def holders(self) -> tuple[Holder, ...]:
        """The same, as holders. Raise UnavailableError unless all of them are known."""


class KnownPods:
    def __init__(self, pods: Informer, seat: Callable[[], Seat], unsynced_reason: Callable[[], str]) -> None:
        """`seat` is as it is known now; `unsynced_reason` says why pods can't be concluded from, if so."""
        self._pods = pods
        self._seat = seat
        self._unsynced_reason = unsynced_reason

    def requested(self, uid: str) -> Requested:
        pod = self._pods.by_uid(uid)
        if pod is None:
            raise NotAllowedError(NOT_SHOWN)
        try:
            return requested(pod)
        except InvalidRequestError as error:
            raise NotAllowedError(str(error)) from None

    def service_account(self, uid: str) -> str:
        pod = self._pods.by_uid(uid)
        try:
            return "" if pod is None else service_account(pod)
        except InvalidRequestError:
            return ""

    def given_by_environment(self) -> tuple[Delivered, ...]:
        return self._given().known

    async def holders(self) -> tuple[Holder, ...]:
        unsynced = self._unsynced_reason()
        if unsynced:
            raise UnavailableError(unsynced)
        if not self._seat().node_uid:
            raise UnavailableError("the UID of this node is not known yet")
        given = self._given()
        if given.unreadable:
            raise UnavailableError(f"what pod {given.unreadable} was given can't be read")
        return tuple(holder_by_environment(one) for one in given.known)

    def _given(self) -> GivenByEnvironment:
        return given_by_environment(self._pods.objects(), self._seat())


class UnknownPods:
    """Where nobody tells of pods: containers are judged by their pod's allocation alone."""

    def requested(self, uid: str) -> Requested | None:
        return None

    def service_account(self, uid: str) -> str:
        return ""

    def given_by_environment(self) -> tuple[Delivered, ...]:
        return ()

    async def holders(self) -> tuple[Holder, ...]:
        raise UnavailableError("the pods of this node are not known")


def holder_by_environment(given: Delivered) -> Holder:
    return Holder(
        pod=given.pod,
        container=given.container,
        devices=tuple(allocated.device for allocated in given.devices),
        source=HolderSource.ENVIRONMENT,
    )
