"""What the workload controller says of GPUWorkloads."""

from gpuloom.model.workload_row import WorkloadRow
from gpuloom.rpc.channel import RpcChannel
from gpuloom.v1.controller_pb2 import ListWorkloadsRequest, Workload
from gpuloom.v1.controller_pb2_grpc import ControllerServiceStub


async def list_workloads(
    channel: RpcChannel, namespace: str, timeout_s: float
) -> tuple[list[WorkloadRow], int]:
    """Workloads by namespace and name, and how many there are in all."""
    stub = channel.stub(ControllerServiceStub)
    answer = await stub.ListWorkloads(ListWorkloadsRequest(namespace=namespace), timeout=timeout_s)
    return [_row(one) for one in answer.workloads], answer.total


def _row(one: Workload) -> WorkloadRow:
    return WorkloadRow(
        namespace=one.namespace,
        name=one.name,
        model_name=one.model_name,
        gpu_count=one.gpu_count,
        priority=one.priority,
        strategy=one.strategy,
        phase=one.phase,
        node=one.node,
        job=one.job,
        retries=one.retries,
        message=one.message,
        created=one.created.ToDatetime().isoformat() + "Z" if one.HasField("created") else None,
    )
