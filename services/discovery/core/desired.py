"""What should stand on a node in Kubernetes, after what its agent says. Pure; writes nothing."""

from dataclasses import dataclass

from gpuloom.model.gpu import GpuHealth
from gpuloom.model.node import NodeMode, NodeState
from gpuloom.model.spot import SpotNotice
from services.discovery.core.nodes import ClusterNode


@dataclass(frozen=True, slots=True)
class GpuFault:
    """A GPU that is not known to be healthy. `health` UNKNOWN: the driver does not answer."""

    gpu_uuid: str
    index: int
    health: GpuHealth
    reason: str


@dataclass(frozen=True, slots=True)
class Desired:
    """`gpu_count` and `memory_mib` (of all together) are of the cards that are there, healthy or not.

    A count of 0 says that the driver has shown none since the agent started, which is no proof that there
    is none: whoever writes leaves a count that stands alone then. `faults` are by index; none: all healthy.
    `driver_problem` says why the GPUs can't be read now, if so.
    """

    mode: NodeMode
    gpu_count: int
    memory_mib: int
    spot: SpotNotice | None = None
    faults: tuple[GpuFault, ...] = ()
    driver_problem: str = ""

    @property
    def healthy(self) -> bool:
        return not self.faults


def desired_of(node: ClusterNode, state: NodeState) -> Desired | None:
    """None if the agent does not speak for this very node, or does not know its mode: nothing is written."""
    if state.node_uid != node.uid or state.mode is NodeMode.UNKNOWN:
        return None
    return Desired(
        mode=state.mode,
        gpu_count=len(state.gpus),
        memory_mib=sum(gpu.memory_mib for gpu in state.gpus),
        spot=state.spot,
        faults=tuple(
            GpuFault(gpu.uuid, gpu.index, gpu.health, gpu.health_reason)
            for gpu in sorted(state.gpus, key=lambda gpu: gpu.index)
            if gpu.health is not GpuHealth.HEALTHY
        ),
        driver_problem=state.driver_problem,
    )
