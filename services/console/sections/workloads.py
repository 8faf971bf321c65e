"""GPUWorkloads and how they stand, from the controller."""

from collections.abc import Mapping
from dataclasses import asdict

from gpuloom.clients.controller import list_workloads
from gpuloom.rpc.channel import RpcChannel
from services.console.core.sight import of_a_namespace
from services.console.core.state import Items
from services.console.ports import Source

INTERVAL_S = 5.0
TIMEOUT_S = 5.0
WORKLOADS = "workloads"


def workloads_source(channel: RpcChannel) -> Source:
    async def read() -> Mapping[str, Items]:
        rows, _ = await list_workloads(channel, "", TIMEOUT_S)
        return {WORKLOADS: {f"{row.namespace}/{row.name}": asdict(row) for row in rows}}

    return Source("controller", {WORKLOADS: of_a_namespace}, INTERVAL_S, read)
