"""Serves the kubelet's PodResources API for one machine on a unix socket, as far as published."""

import random
from collections.abc import Iterable
from pathlib import Path

import grpc

from gpuloom.errors import InvalidRequestError
from gpuloom.kubelet import podresources_pb2 as pb
from gpuloom.kubelet.podresources_pb2_grpc import (
    PodResourcesListerServicer,
    add_PodResourcesListerServicer_to_server,
)
from gpuloom.model.allocation import AllocatedDevice
from gpuloom.model.node import NodeMode
from gpuloom.sim.kubelet.host import Host
from gpuloom.sim.machines.hardware import Hardware, plugin_resource
from gpuloom.sim.machines.machine import HostedClaim, HostedPod

MAX_SOCKET_PATH_BYTES = 107

ListContext = grpc.aio.ServicerContext[pb.ListPodResourcesRequest, pb.ListPodResourcesResponse]
AllocatableContext = grpc.aio.ServicerContext[pb.AllocatableResourcesRequest, pb.AllocatableResourcesResponse]
GetContext = grpc.aio.ServicerContext[pb.GetPodResourcesRequest, pb.GetPodResourcesResponse]


class PodResourcesServer:
    """`start` takes the socket over from a kubelet that was killed."""

    def __init__(self, host: Host) -> None:
        self._path = host.machine.socket_path.absolute()
        self._server = grpc.aio.server()
        add_PodResourcesListerServicer_to_server(_Lister(host), self._server)

    async def start(self) -> None:
        """Raise InvalidRequestError if the socket can't be made there."""
        check_socket_path(self._path)
        self._path.unlink(missing_ok=True)
        try:
            bound = self._server.add_insecure_port(f"unix://{self._path}")
        except RuntimeError as error:
            raise InvalidRequestError(f"can't listen on {self._path}: {error}") from None
        if not bound:
            raise InvalidRequestError(f"can't listen on {self._path}")
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(grace=0)


def check_socket_path(path: Path) -> None:
    length = len(str(path.absolute()).encode())
    if length > MAX_SOCKET_PATH_BYTES:
        raise InvalidRequestError(
            f"{path} is {length} bytes long; a unix socket's path has at most {MAX_SOCKET_PATH_BYTES}: "
            "put the machines in a directory with a shorter name"
        )


class _Lister(PodResourcesListerServicer):
    def __init__(self, host: Host) -> None:
        self._host = host
        # A kubelet keeps devices in maps, so their order means nothing and changes from list to list.
        self._order = random.Random()

    async def List(
        self, request: pb.ListPodResourcesRequest, context: ListContext
    ) -> pb.ListPodResourcesResponse:
        hardware = self._host.machine.hardware
        pods = [_pod_resources(hardware, hosted) for hosted in self._host.published()]
        for container in (container for pod in pods for container in pod.containers):
            given = list(container.devices)
            self._order.shuffle(given)
            del container.devices[:]
            container.devices.extend(given)
        return pb.ListPodResourcesResponse(pod_resources=pods)

    async def GetAllocatableResources(
        self, request: pb.AllocatableResourcesRequest, context: AllocatableContext
    ) -> pb.AllocatableResourcesResponse:
        hardware = self._host.machine.hardware
        faulty = self._host.machine.faults().gpus
        healthy = (
            device
            for devices in hardware.plugin_devices().values()
            for device in devices
            if device.device.gpu_uuid not in faulty
        )
        return pb.AllocatableResourcesResponse(devices=_container_devices(hardware, healthy))

    async def Get(
        self, request: pb.GetPodResourcesRequest, context: GetContext
    ) -> pb.GetPodResourcesResponse:
        for hosted in self._host.published():
            if (hosted.pod.namespace, hosted.pod.name) == (request.pod_namespace, request.pod_name):
                return pb.GetPodResourcesResponse(
                    pod_resources=_pod_resources(self._host.machine.hardware, hosted)
                )
        await context.abort(grpc.StatusCode.NOT_FOUND, f"pod {request.pod_name} not found")
        raise AssertionError("abort returned")


def _pod_resources(hardware: Hardware, hosted: HostedPod) -> pb.PodResources:
    return pb.PodResources(
        name=hosted.pod.name,
        namespace=hosted.pod.namespace,
        containers=[
            pb.ContainerResources(
                name=container.name,
                devices=_container_devices(hardware, container.devices),
                dynamic_resources=[_dynamic_resource(hardware, hosted, claim) for claim in container.claims],
            )
            for container in hosted.containers
        ],
    )


def _dynamic_resource(hardware: Hardware, hosted: HostedPod, claim: HostedClaim) -> pb.DynamicResource:
    """As NVIDIA's driver names its devices; it has one pool per node."""
    device = pb.ClaimResource(
        cdi_devices=[pb.CDIDevice(name=f"k8s.{claim.driver}/device={claim.device}")],
        driver_name=claim.driver,
        pool_name=hardware.spec.node,
        device_name=claim.device,
    )
    name = f"{hosted.pod.name}-{claim.device}"
    return pb.DynamicResource(claim_name=name, claim_namespace=hosted.pod.namespace, claim_resources=[device])


def _container_devices(hardware: Hardware, devices: Iterable[AllocatedDevice]) -> list[pb.ContainerDevices]:
    """One entry per device, as NVIDIA's plugin shows up. What GPULoom gave is no plugin's device."""
    if hardware.spec.mode is not NodeMode.NVIDIA:
        return []
    return [
        pb.ContainerDevices(
            resource_name=plugin_resource(held.device), device_ids=[hardware.device_id(held.device)]
        )
        for held in devices
    ]
