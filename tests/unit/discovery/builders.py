"""Small nodes and agents' reports, as Kubernetes and an agent would tell them."""

from dataclasses import replace
from typing import Any

from gpuloom.model.gpu import Gpu, GpuHealth, GpuUsage
from gpuloom.model.node import Delivery, NodeMode, NodeState
from services.discovery.cluster import ClusterNode

TTL_S = 30.0


def a_node(name: str = "n1", **changes: Any) -> ClusterNode:
    node = ClusterNode(name, f"uid-{name}", NodeMode.NVIDIA, offers_nvidia=True)
    return replace(node, **changes)


def a_state(name: str = "n1", utilization: float = 0.0, **changes: Any) -> NodeState:
    gpu = Gpu("GPU-a", 0, "T4", "turing", 15360, GpuHealth.HEALTHY)
    state = NodeState(
        node_name=name,
        node_uid=f"uid-{name}",
        mode=NodeMode.NVIDIA,
        delivery=Delivery.DEVICE_PLUGIN,
        gpus=(gpu,),
        usage=(GpuUsage("GPU-a", utilization_ratio=utilization),),
    )
    return replace(state, **changes)
