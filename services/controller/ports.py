"""What the controller needs from outside."""

from collections.abc import Sequence
from typing import Protocol

from gpuloom.kube.objects import JsonObject
from gpuloom.model.optimization import WasteReport
from services.controller.core.manifests import Image
from services.controller.core.nodes import GpuNode
from services.controller.core.waste import GpuPod, Pursuit


class WorkloadApi(Protocol):
    """Writes of the controller. Each raises NotReadyError when it does not lead, and ConflictError,
    NotFoundError or UnavailableError and its like as the API server answers."""

    async def create_job(self, manifest: JsonObject) -> JsonObject | None:
        """The new Job; None if one of that name was there already."""

    async def read_job(self, namespace: str, name: str) -> JsonObject | None:
        """As it is now; None if there is none."""

    async def delete_job(self, namespace: str, name: str, uid: str | None) -> None:
        """With its pods. Nothing happens if it is gone."""

    async def patch(self, workload: JsonObject, patch: JsonObject) -> JsonObject: ...

    async def patch_status(self, workload: JsonObject, patch: JsonObject) -> JsonObject: ...


class Cluster(Protocol):
    """What is observed beside the workloads themselves."""

    def jobs_of(self, uid: str) -> Sequence[JsonObject]: ...

    def pods_of(self, workload_uid: str) -> Sequence[JsonObject]: ...

    def gives_shares(self) -> bool:
        """Whether GPULoom itself gives out the GPUs of all ready nodes that have any."""

    def gpu_memory_mib(self) -> frozenset[int]:
        """How much memory GPUs have that GPULoom gives out; empty where the controller may not read nodes."""

    def nodes(self, made: Sequence[JsonObject] = ()) -> Sequence[GpuNode]:
        """Nodes with GPUs; empty where the controller may not read nodes.

        `made`: Jobs that may not be observed yet. What they and others ask of a node is not free there.
        """

    def image_of(self, model: str) -> Image | None:
        """What is configured for the model, else the default image, else None."""


class WasteSource(Protocol):
    async def waste(self, namespace: str | None, min_score: float) -> WasteReport:
        """Of all GPU pods, those with at least this score. Raise GpuloomError if nobody knows."""


class WasteApi(Protocol):
    """Writes raise NotReadyError when it does not lead, NotFoundError or ConflictError if the pod is gone."""

    def gpu_pods(self) -> Sequence[GpuPod]:
        """All on nodes, as observed."""

    async def tell(self, pod: GpuPod, reason: str, topic: str, message: str) -> None:
        """An Event of the pod, written once for this reason and topic as long as the server keeps it."""

    async def annotate(self, pod: GpuPod, recommendation: str) -> None: ...


class PursuitStore(Protocol):
    """Neither raises a GpuloomError: without it only savings are not told of."""

    async def load(self) -> tuple[Pursuit, ...]: ...

    async def save(self, pursuits: Sequence[Pursuit]) -> None: ...
