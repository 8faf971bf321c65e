"""What a GPU of a node costs, by what discovery tells of the node."""

from gpuloom.clients.discovery import ClusterMirror
from gpuloom.clients.gpu_prices import GpuPrices


class NodePrices:
    def __init__(self, gpu: GpuPrices, mirror: ClusterMirror) -> None:
        self.gpu = gpu
        self._mirror = mirror

    def nano_usd_per_gpu_hour(self, node_name: str) -> int | None:
        for facts in self._mirror.snapshot().nodes.values():
            if facts.state.node_name == node_name:
                return self.gpu.nano_usd_per_gpu_hour(facts)
        return None
