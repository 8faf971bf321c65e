"""One sample of the node with everything in it; what is shown beside the state is drawn from it."""

from dataclasses import dataclass

from gpuloom.model.node import NodeState
from gpuloom.model.process import GpuProcess
from services.node_agent.core.readings import DriverReading


@dataclass(frozen=True, slots=True)
class Picture:
    """`reading` is None if the driver did not answer that sample; `processes` are those that it told of.

    `looked_at_s` is by the monotonic clock.
    """

    state: NodeState
    reading: DriverReading | None
    processes: tuple[GpuProcess, ...]
    looked_at_s: float
