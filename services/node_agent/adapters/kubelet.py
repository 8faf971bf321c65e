"""The kubelet's PodResources API on its unix socket."""

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from grpc import aio

from gpuloom.errors import UnavailableError
from gpuloom.kubelet.podresources_pb2 import ListPodResourcesRequest, PodResources
from gpuloom.kubelet.podresources_pb2_grpc import PodResourcesListerStub
from gpuloom.model.gpu import DeviceRef
from gpuloom.names import RESOURCE_NVIDIA_GPU, RESOURCE_NVIDIA_MIG_PREFIX
from services.node_agent.ports import PodDevices

_TIMEOUT_S = 5.0
_OPTIONS = (
    ("grpc.max_receive_message_length", 16 * 1024 * 1024),
    ("grpc.enable_http_proxy", 0),
    # gRPC would wait up to two minutes before it tries a kubelet that came back.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)

DeviceOfId = Callable[[str], DeviceRef]


class PodResourcesKubelet:
    """`device_of_id` turns a device plugin's id into a device; ids it does not know are GPU UUIDs."""

    def __init__(self, socket: Path, device_of_id: DeviceOfId = DeviceRef) -> None:
        self._socket = socket
        self._device_of_id = device_of_id
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
        return tuple(entry for pod in answer.pod_resources for entry in self._of_pod(pod) if entry.devices)

    def _of_pod(self, pod: PodResources) -> list[PodDevices]:
        return [
            PodDevices(
                namespace=pod.namespace,
                name=pod.name,
                container=container.name,
                devices=tuple(
                    self._device_of_id(device_id)
                    for given in container.devices
                    if _is_gpu(given.resource_name)
                    for device_id in given.device_ids
                ),
            )
            for container in pod.containers
        ]


def _is_gpu(resource_name: str) -> bool:
    return resource_name == RESOURCE_NVIDIA_GPU or resource_name.startswith(RESOURCE_NVIDIA_MIG_PREFIX)
