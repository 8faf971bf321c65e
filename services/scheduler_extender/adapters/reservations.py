"""GPUReservations in Kubernetes: the informer, their status, and those that people make by command."""

from gpuloom.codec.custom.claims import gpu_reservation_status_to_json
from gpuloom.kube.client import DeleteOptions, KubeClient
from gpuloom.kube.informer import InformerOptions
from gpuloom.kube.objects import JsonObject
from gpuloom.kube.resources import GPU_RESERVATIONS
from gpuloom.model.claims import GpuReservation, GpuReservationStatus
from gpuloom.runtime.clock import Clock
from services.scheduler_extender.adapters.holds import OptionalSource
from services.scheduler_extender.adapters.pod_informer import TrackedInformer


class ReservationFeed(TrackedInformer):
    """Where the kind is not defined there are none."""

    def __init__(self, client: KubeClient, clock: Clock, *, prompt: bool) -> None:
        super().__init__(
            OptionalSource(client, clock), GPU_RESERVATIONS, clock, InformerOptions(), prompt=prompt
        )


class KubernetesReservations:
    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def write(self, reservation: GpuReservation, status: GpuReservationStatus) -> None:
        meta = reservation.meta
        patch = {"metadata": {"uid": meta.uid}, "status": gpu_reservation_status_to_json(status)}
        await self._client.patch_status(GPU_RESERVATIONS, meta.name, meta.namespace, patch)

    async def create(self, obj: JsonObject) -> JsonObject:
        return await self._client.create(GPU_RESERVATIONS, obj)

    async def delete(self, namespace: str, name: str) -> None:
        """NotFoundError if there is none."""
        await self._client.delete(GPU_RESERVATIONS, name, namespace, DeleteOptions())
