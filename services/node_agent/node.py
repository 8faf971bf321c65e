"""The node's present state, what is shown beside it, and the feed of its changes."""

from collections.abc import Callable
from dataclasses import replace

from gpuloom.codec.node import node_delta_to_proto
from gpuloom.model.gpu import Gpu
from gpuloom.model.node import Delivery, NodeState
from gpuloom.model.process import GpuProcess
from gpuloom.model.spot import SpotNotice
from gpuloom.model.wiring import GpuWiring
from gpuloom.rpc.streams import VersionedFeed
from gpuloom.runtime.clock import Clock
from gpuloom.v1.node_agent_pb2 import NodeStateDelta
from services.node_agent.core.picture import Picture
from services.node_agent.core.readings import DriverReading


class Node:
    """State and feed move together, without an await between: a reader never sees one without the other."""

    def __init__(self, state: NodeState, clock: Clock, max_age_s: float) -> None:
        """A state is vouched for until nobody has looked at the node for `max_age_s`."""
        self.state = state
        self.feed: VersionedFeed[NodeStateDelta] = VersionedFeed(clock)
        self.picture: Picture | None = None
        """The last sample; None before the first."""
        self.wiring: tuple[GpuWiring, ...] = ()
        """As the driver told it last: it does not change while the driver is silent."""
        self.marking: Callable[[tuple[Gpu, ...]], tuple[Gpu, ...]] = _as_they_are
        """What is shown of GPUs beyond what the driver says: changes of their layouts."""
        self._clock = clock
        self._max_age_s = max_age_s
        self._looked_at_s = clock.monotonic()
        self._handlers: list[Callable[[Picture], None]] = []

    @property
    def looked_at(self) -> bool:
        return self.picture is not None

    def stale_reason(self) -> str | None:
        """A sample that hangs is the one way in which the sampler can fail without dying."""
        age_s = self._clock.monotonic() - self._looked_at_s
        return f"the node was last sampled {age_s:.0f} s ago" if age_s > self._max_age_s else None

    def move_to(
        self,
        state: NodeState,
        reading: DriverReading | None = None,
        processes: tuple[GpuProcess, ...] = (),
    ) -> None:
        """The node was looked at: its state, and what the driver said, if it did."""
        self._looked_at_s = self._clock.monotonic()
        self.picture = Picture(state, reading, processes, self._looked_at_s)
        if reading is not None:
            self.wiring = reading.wiring
        self._publish(state)
        for handler in self._handlers:
            handler(self.picture)

    def on_sample(self, handler: Callable[[Picture], None]) -> None:
        """Hear of every sample from now on."""
        self._handlers.append(handler)

    def deliver_by(self, delivery: Delivery) -> None:
        """From now on devices reach containers this way. Nobody looked at the node for that."""
        self._publish(replace(self.state, delivery=delivery))

    def take_notice(self, notice: SpotNotice | None) -> None:
        """From now on the cloud says this about the machine's end, or nothing."""
        self._publish(replace(self.state, spot=notice))

    def show_marks(self) -> None:
        """What is being changed on the GPUs is other than before. Nobody looked at the node for that."""
        self._publish(self.state)

    def _publish(self, state: NodeState) -> None:
        state = replace(state, gpus=self.marking(state.gpus))
        delta = node_delta_to_proto(self.state, state)
        self.state = state
        if self.picture is not None:
            self.picture = replace(self.picture, state=state)
        if delta is not None:
            self.feed.publish(delta)


def _as_they_are(gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    return gpus
