"""What the agent answers to the container runtime. Everything from memory: a container's start waits for it.

Decides nothing itself: `verify` says whether a container gets devices, `cdi_folders` how.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from google.protobuf.message import DecodeError, Message

from gpuloom.codec.allocation import encode_allocation
from gpuloom.errors import GpuloomError, NotAllowedError, NotFoundError
from gpuloom.model.allocation import Allocation
from gpuloom.model.node import PodRef
from gpuloom.names import ANNOTATION_ALLOCATION, ANNOTATION_DELIVERED
from gpuloom.nri import nri_pb2 as pb
from gpuloom.placement.keeping import Enforcement
from services.node_agent.delivery.core.adjustment import adjustment
from services.node_agent.delivery.core.deliveries import Deliveries
from services.node_agent.delivery.core.edits import Edits, combine
from services.node_agent.delivery.core.enforcement import mps_edits
from services.node_agent.delivery.core.handlers import HandlerRules
from services.node_agent.delivery.core.verify import Asking, Delivered, NodeFacts, device_names, verify
from services.node_agent.delivery.known_pods import PodSource
from services.node_agent.delivery.metrics import DeliveryMetrics, Outcome

_log = logging.getLogger(__name__)

PLUGIN_SERVICE = "nri.pkg.api.v1alpha1.Plugin"

_EVENTS = (
    pb.CREATE_CONTAINER,
    pb.STOP_CONTAINER,
    pb.REMOVE_CONTAINER,
    pb.STOP_POD_SANDBOX,
    pb.REMOVE_POD_SANDBOX,
)


class UnknownCallError(GpuloomError):
    """The runtime calls what we do not have."""


class DeviceSource(Protocol):
    def edits(self, kind: str, names: tuple[str, ...]) -> Edits:
        """What giving these devices changes about a container. Raise NotFoundError if one is not there."""


@dataclass(frozen=True, slots=True)
class DeliveryParts:
    """`facts` and `pods` tell, at once and from memory, what the agent knows about its node."""

    facts: Callable[[], NodeFacts]
    pods: PodSource
    devices: DeviceSource
    device_kind: str
    metrics: DeliveryMetrics
    handlers: HandlerRules = field(default_factory=HandlerRules)
    mps_dir: str = "/run/gpuloom/mps"
    enforcement: Enforcement = Enforcement.MPS


class Plugin:
    """Answers the calls of one runtime; what it learns from them goes into `deliveries`."""

    def __init__(self, parts: DeliveryParts, deliveries: Deliveries) -> None:
        self._parts = parts
        self._deliveries = deliveries
        self._methods: dict[str, Callable[[bytes], Message]] = {
            "Configure": self._configure,
            "Synchronize": self._synchronize,
            "CreateContainer": self._create_container,
            "StopContainer": self._container_ended,
            "RemoveContainer": self._container_ended,
            "StopPodSandbox": self._pod_ended,
            "RemovePodSandbox": self._pod_ended,
            "StateChange": self._state_change,
            "Shutdown": _shut_down,
        }

    def answer(self, service: str, method: str, payload: bytes) -> bytes:
        """Raise NotAllowedError if a container must not be created, UnknownCallError, or another error."""
        handler = self._methods.get(method) if service == PLUGIN_SERVICE else None
        if handler is None:
            raise UnknownCallError(f"{service[:100]}/{method[:100]} is not known here")
        try:
            return handler(payload).SerializeToString()
        except DecodeError:
            raise NotAllowedError(f"the call {method} can't be decoded") from None

    def _configure(self, payload: bytes) -> Message:
        asked = pb.ConfigureRequest.FromString(payload)
        fields = {"runtime": asked.runtime_name, "version": asked.runtime_version}
        _log.info("the container runtime accepts us", extra=fields)
        return pb.ConfigureResponse(events=sum(1 << (event - 1) for event in _EVENTS))

    def _synchronize(self, payload: bytes) -> Message:
        part = pb.SynchronizeRequest.FromString(payload)
        self._deliveries.take_part(part.pods, part.containers)
        if not part.more:
            elsewhere = {given.pod.uid for given in self._parts.pods.given_by_environment()}
            without = [pod for pod in self._deliveries.complete() if pod.uid not in elsewhere]
            self._parts.metrics.without_devices.set(len(without))
            for pod in without:
                fields = {"pod": str(pod), "pod_uid": pod.uid}
                _log.warning("a pod started without its devices while no agent ran; delete it", extra=fields)
            known = {
                "containers_with_devices": len(self._deliveries.all()),
                "reason": self._deliveries.unknown_reason,
            }
            _log.info("the container runtime told what runs", extra=known)
        return pb.SynchronizeResponse(more=part.more)

    def _create_container(self, payload: bytes) -> Message:
        call = pb.CreateContainerRequest.FromString(payload)
        pod, container = call.pod, call.container
        asking = Asking(
            PodRef(pod.namespace, pod.name, pod.uid),
            container.name,
            pod.annotations.get(ANNOTATION_ALLOCATION),
        )
        fields = {"pod": str(asking.pod), "pod_uid": pod.uid, "container": container.name}
        try:
            self._refuse_handler(pod.runtime_handler, asking.pod)
            allocation, edits = self._decide(asking, pod.annotations)
        except (NotAllowedError, NotFoundError) as error:
            self._parts.metrics.count(Outcome.REFUSED)
            _log.warning("a container is not created", extra={**fields, "reason": str(error)})
            raise NotAllowedError(f"gpuloom: {error}") from None
        if allocation is None:
            self._parts.metrics.count(Outcome.NOTHING)
            return pb.CreateContainerResponse()
        given = Delivered(asking.pod, asking.container, allocation.devices)
        self._deliveries.add(container.id, pod.id, given)
        self._parts.metrics.count(Outcome.DELIVERED)
        _log.info("a container gets its devices", extra={**fields, "devices": len(allocation.devices)})
        marks = {ANNOTATION_DELIVERED: encode_allocation(allocation)}
        return pb.CreateContainerResponse(adjust=adjustment(edits, marks))

    def _refuse_handler(self, handler: str, pod: PodRef) -> None:
        found = self._parts.handlers.refusal(handler, pod, lambda: self._parts.pods.service_account(pod.uid))
        if found:
            raise NotAllowedError(found)

    def _decide(self, asking: Asking, annotations: Mapping[str, str]) -> tuple[Allocation | None, Edits]:
        if asking.allocation is None:
            return None, Edits()
        if self._deliveries.unknown_reason:
            raise NotAllowedError(self._deliveries.unknown_reason)
        facts = self._parts.facts()
        asking = replace(asking, requested=self._parts.pods.requested(asking.pod.uid))
        allocation = verify(asking, facts, self._held())
        if allocation is None:
            return None, Edits()
        if ANNOTATION_DELIVERED in annotations:
            # Where the runtime shows a pod's annotations on its containers, ours could not be told from it.
            raise NotAllowedError(
                f"the pod carries {ANNOTATION_DELIVERED}, which only the node agent writes; take it out"
            )
        names = device_names(allocation, facts.gpus)
        gpus = {gpu.uuid: gpu for gpu in facts.gpus}
        parts = self._parts
        sharing = mps_edits(allocation, gpus, annotations, parts.mps_dir, parts.enforcement)
        return allocation, combine((self._parts.devices.edits(self._parts.device_kind, names), sharing))

    def _held(self) -> tuple[Delivered, ...]:
        """Who has devices, by us or by environment; a pod counts once."""
        ours = self._deliveries.all()
        uids = {given.pod.uid for given in ours}
        others = (one for one in self._parts.pods.given_by_environment() if one.pod.uid not in uids)
        return (*ours, *others)

    def _container_ended(self, payload: bytes) -> Message:
        self._deliveries.drop_container(pb.StopContainerRequest.FromString(payload).container.id)
        return pb.Empty()

    def _pod_ended(self, payload: bytes) -> Message:
        self._deliveries.drop_pod(pb.StopContainerRequest.FromString(payload).pod.id)
        return pb.Empty()

    def _state_change(self, payload: bytes) -> Message:
        change = pb.StateChangeEvent.FromString(payload)
        if change.event in (pb.STOP_CONTAINER, pb.REMOVE_CONTAINER):
            self._deliveries.drop_container(change.container.id)
        if change.event in (pb.STOP_POD_SANDBOX, pb.REMOVE_POD_SANDBOX):
            self._deliveries.drop_pod(change.pod.id)
        return pb.Empty()


def _shut_down(payload: bytes) -> Message:
    """The connection ends right after; that is what we go by."""
    return pb.Empty()
