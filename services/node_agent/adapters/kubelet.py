"""The kubelet's PodResources API on its unix socket.

An answer that can't be understood whole is none: a part of it would make devices look free.
"""

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from grpc import aio

from gpuloom.codec.device import MAX_HELD_DEVICES_PER_NODE, MAX_HOLDERS_PER_NODE, MAX_NAME_LENGTH
from gpuloom.errors import UnavailableError
from gpuloom.kubelet.podresources_pb2 import (
    ContainerResources,
    ListPodResourcesRequest,
    ListPodResourcesResponse,
    PodResources,
)
from gpuloom.kubelet.podresources_pb2_grpc import PodResourcesListerStub
from gpuloom.model.gpu import DeviceRef
from gpuloom.names import RESOURCE_NVIDIA_GPU, RESOURCE_NVIDIA_MIG_PREFIX
from services.node_agent.attribution.core.ownership import device_order
from services.node_agent.core.claims import ClaimedDevice, GpuClaims
from services.node_agent.ports import PodDevices

_TIMEOUT_S = 5.0
_OPTIONS = (
    ("grpc.max_receive_message_length", 16 * 1024 * 1024),
    ("grpc.enable_http_proxy", 0),
    # gRPC would wait up to two minutes before it tries a kubelet that came back.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)

ALL_IDS_ARE_UUIDS = GpuClaims()


class PodResourcesKubelet:
    """`claims` turns names into devices, of device plugins and of DRA drivers."""

    def __init__(self, socket: Path, claims: GpuClaims = ALL_IDS_ARE_UUIDS) -> None:
        self._socket = socket
        self._claims = claims
        self._channel: aio.Channel | None = None

    async def __aenter__(self) -> Self:
        # The kubelet's socket is guarded by its file permissions and speaks no TLS.
        self._channel = aio.insecure_channel(f"unix://{self._socket.absolute()}", _OPTIONS)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._channel is not None:
            await self._channel.close()

    async def pod_devices(self) -> tuple[PodDevices, ...]:
        if self._channel is None:
            raise ValueError("the kubelet's channel has not been opened")
        lister = PodResourcesListerStub(self._channel)
        try:
            answer = await lister.List(ListPodResourcesRequest(), timeout=_TIMEOUT_S)
        except aio.AioRpcError as error:
            raise UnavailableError(f"the kubelet does not answer ({error.code().name})") from error
        # What is no message arrives as None, whatever the stub says.
        if not isinstance(answer, ListPodResourcesResponse):
            raise UnavailableError("the kubelet's answer is no message of the expected type")
        return devices_by_pod(answer, self._claims)


def devices_by_pod(answer: ListPodResourcesResponse, claims: GpuClaims) -> tuple[PodDevices, ...]:
    """Raise UnavailableError if the answer can't be."""
    listed = (
        _given_to(pod, container, claims) for pod in answer.pod_resources for container in pod.containers
    )
    entries = tuple(entry for entry in listed if entry.all_devices)
    if not _is_sound(entries):
        raise UnavailableError("the kubelet's answer names pods or devices that can't be")
    return entries


def _given_to(pod: PodResources, container: ContainerResources, claims: GpuClaims) -> PodDevices:
    """Each device once: several replicas of one GPU are that GPU. In our own order: a kubelet has none."""
    ids = _ids_of(container)
    devices = tuple(sorted({claims.device_of_id(device_id) for device_id in ids}, key=device_order))
    given = len(ids) if len(ids) > len(devices) else 0
    return PodDevices(
        pod.namespace, pod.name, container.name, devices, given=given, claimed=_claimed(container, claims)
    )


def _ids_of(container: ContainerResources) -> set[str]:
    return {
        device_id
        for given in container.devices
        if _is_gpu(given.resource_name)
        for device_id in given.device_ids
    }


def _claimed(container: ContainerResources, claims: GpuClaims) -> tuple[DeviceRef, ...]:
    """Each once: a device that several claims share is that device."""
    named = (
        ClaimedDevice(
            device.driver_name,
            device.pool_name,
            device.device_name,
            tuple(cdi.name for cdi in device.cdi_devices),
        )
        for claim in container.dynamic_resources
        for device in claim.claim_resources
    )
    found = {gpu for gpu in map(claims.gpu_of, named) if gpu is not None}
    return tuple(sorted(found, key=device_order))


def _is_gpu(resource_name: str) -> bool:
    return resource_name == RESOURCE_NVIDIA_GPU or resource_name.startswith(RESOURCE_NVIDIA_MIG_PREFIX)


def _is_sound(entries: Sequence[PodDevices]) -> bool:
    """Whether readers of our state would take it; they refuse a state as a whole."""
    # A container that has devices of both kinds is two holders.
    if sum(bool(entry.devices) + bool(entry.claimed) for entry in entries) > MAX_HOLDERS_PER_NODE:
        return False
    if sum(max(entry.given, len(entry.devices)) + len(entry.claimed) for entry in entries) > (
        MAX_HELD_DEVICES_PER_NODE
    ):
        return False
    return all(
        0 < len(name) <= MAX_NAME_LENGTH
        for entry in entries
        for name in (
            entry.namespace,
            entry.name,
            entry.container,
            *(device.gpu_uuid for device in entry.all_devices),
        )
    )
