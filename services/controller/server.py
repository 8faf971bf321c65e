"""The controller's gRPC service: workloads as they are observed."""

from collections.abc import Callable, Sequence

from gpuloom.errors import NotReadyError
from gpuloom.kube.objects import JsonObject, key_of
from gpuloom.kube.parse import parse_time
from gpuloom.v1 import controller_pb2 as pb
from gpuloom.v1.controller_pb2_grpc import ControllerServiceServicer

ALLOWED_CALLERS = {"ListWorkloads": frozenset({"console", "cli"})}
SERVICE = pb.DESCRIPTOR.services_by_name["ControllerService"]
MAX_ROWS = 10_000


class ControllerServer(ControllerServiceServicer):
    def __init__(
        self, workloads: Callable[[], Sequence[JsonObject]], unready_reason: Callable[[], str | None]
    ) -> None:
        self._workloads = workloads
        self._unready_reason = unready_reason

    async def ListWorkloads(
        self, request: pb.ListWorkloadsRequest, context: object
    ) -> pb.ListWorkloadsResponse:
        reason = self._unready_reason()
        if reason:
            raise NotReadyError(f"the controller is not synced: {reason}")
        chosen = sorted(
            (
                obj
                for obj in self._workloads()
                if not request.namespace or key_of(obj)[0] == request.namespace
            ),
            key=key_of,
        )
        rows = [_workload(obj) for obj in chosen[:MAX_ROWS]]
        return pb.ListWorkloadsResponse(workloads=rows, total=len(chosen))


def _workload(obj: JsonObject) -> pb.Workload:
    metadata, spec, status = obj.get("metadata") or {}, obj.get("spec") or {}, obj.get("status") or {}
    row = pb.Workload(
        namespace=metadata.get("namespace") or "",
        name=metadata.get("name") or "",
        model_name=spec.get("modelName") or "",
        gpu_count=spec.get("gpuCount") or 0,
        priority=spec.get("priority") or "",
        strategy=spec.get("schedulingStrategy") or "",
        phase=status.get("phase") or "",
        node=status.get("assignedNode") or "",
        job=status.get("jobName") or "",
        retries=status.get("retries") or 0,
        message=status.get("message") or "",
    )
    if metadata.get("creationTimestamp"):
        row.created.FromDatetime(parse_time(metadata["creationTimestamp"]))
    return row
