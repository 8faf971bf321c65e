"""Who uses a GPU of this node: by what was delivered, by the kubelet, by pods' allocations, by processes.

Everything is asked anew, and what can't be asked makes the answer unknown: a layout is changed only where
nobody uses it for certain.
"""

from collections.abc import Iterable, Iterator

from gpuloom.codec.allocation import decode_allocation
from gpuloom.codec.pod import bound_node, kubelet_reports_end, pod_ref
from gpuloom.errors import GpuloomError, InvalidRequestError
from gpuloom.kube.objects import JsonObject, metadata_of
from gpuloom.model.gpu import DeviceRef
from gpuloom.model.mig import MigPlacement
from gpuloom.names import ANNOTATION_ALLOCATION
from services.node_agent.adapters.pod_index import PodIndex
from services.node_agent.attribution.census import Census
from services.node_agent.layout.core.admission import Usage
from services.node_agent.node import Node
from services.node_agent.ports import GpuDriver, Runtime


class NodeUsers:
    """Before the node was sampled nothing is delivered, so that only processes can use a GPU."""

    def __init__(
        self, node: Node, driver: GpuDriver, runtime: Runtime, pods: PodIndex, census: Census
    ) -> None:
        self._node = node
        self._driver = driver
        self._runtime = runtime
        self._pods = pods
        self._census = census

    async def of(self, gpu_uuid: str) -> Usage:
        try:
            users, unknown = await self._all(gpu_uuid)
        except GpuloomError as error:
            return Usage({}, str(error))
        found: dict[MigPlacement | None, str] = {}
        for device, who in users:
            if device.gpu_uuid == gpu_uuid:
                found.setdefault(device.mig, who)
        return Usage(found, unknown)

    async def _all(self, gpu_uuid: str) -> tuple[list[tuple[DeviceRef, str]], str]:
        listed, unanswered = await self._driver.list_processes()
        processes = await self._census.without_servers(listed)
        users = [(process.device, f"process {process.pid}") for process in processes]
        state, unknown = self._node.state, unanswered.get(gpu_uuid, "")
        if not self._node.looked_at:
            return users, unknown
        delivered = await self._runtime.holders()
        for holder in (*delivered, *state.holders):
            users += [(device, f"pod {holder.pod}") for device in holder.devices]
        if not self._pods.informer.synced:
            return users, "the pods of the node are not known yet"
        own = self._pods.of(state.node_name).pods.values()
        users += allocated((entry.pod for entry in own), state.node_name)
        return users, unknown or state.holders_unknown_reason


def allocated(pods: Iterable[JsonObject], node_name: str) -> Iterator[tuple[DeviceRef, str]]:
    """What pods of the node were given by their allocation, whether or not a container of them runs yet."""
    for pod in pods:
        if bound_node(pod) != node_name or kubelet_reports_end(pod):
            continue
        text = (metadata_of(pod).get("annotations") or {}).get(ANNOTATION_ALLOCATION)
        if not isinstance(text, str):
            continue
        try:
            allocation = decode_allocation(text)
        except InvalidRequestError:
            # It can't be delivered either.
            continue
        if not allocation.advisory and allocation.pod_uid == pod_ref(pod).uid:
            yield from ((device.device, f"pod {pod_ref(pod)}") for device in allocation.devices)
