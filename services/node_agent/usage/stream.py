"""How a spool is read over gRPC: what is there, then each window as it is closed."""

from collections.abc import AsyncIterator

from gpuloom.codec.usage import position_to_proto
from gpuloom.errors import UnavailableError
from gpuloom.runtime.clock import Clock, deadline
from gpuloom.v1 import node_agent_pb2 as pb
from gpuloom.v1.usage_pb2 import UsageWindow
from services.node_agent.usage.metrics import UsageMetrics
from services.node_agent.usage.recorder import Recorder
from services.node_agent.usage.spools import Chunk

CHUNK_BYTES = 64 * 1024


class UsageStreams:
    def __init__(
        self, recorder: Recorder, heartbeat_interval_s: float, clock: Clock, metrics: UsageMetrics
    ) -> None:
        self._recorder = recorder
        self._heartbeat_interval_s = heartbeat_interval_s
        self._clock = clock
        self._metrics = metrics

    async def stream(self, request: pb.StreamUsageRequest) -> AsyncIterator[pb.StreamUsageResponse]:
        spools = self._recorder.spools
        spool_id = request.spool_id or spools.live_id
        # The first one is 1; before anything was read nothing is missed.
        wanted, started = max(request.from_sequence, 1), request.from_sequence > 0
        with self._metrics.readers.track_inprogress():
            yield self._positions()
            while True:
                news = spools.news()
                chunk = await self._read(spool_id, wanted)
                if chunk is None:
                    return
                if chunk.windows:
                    missed = chunk.first - wanted if started else 0
                    yield _windows(spool_id, chunk, missed)
                    wanted, started = chunk.first + len(chunk.windows), True
                elif chunk.ended:
                    if started and chunk.first > wanted:
                        yield _windows(spool_id, chunk, chunk.first - wanted)
                    return
                else:
                    try:
                        async with deadline(self._clock, self._heartbeat_interval_s):
                            await news.wait()
                    except TimeoutError:
                        yield self._positions()

    async def _read(self, spool_id: str, wanted: int) -> Chunk | None:
        try:
            return await self._recorder.spools.read(spool_id, wanted, CHUNK_BYTES)
        except OSError as error:
            raise UnavailableError(f"usage windows can't be read: {error.strerror}") from error

    def _positions(self) -> pb.StreamUsageResponse:
        positions = [position_to_proto(position) for position in self._recorder.spools.positions()]
        return pb.StreamUsageResponse(spools=positions, problem=self._recorder.problem)


def _windows(spool_id: str, chunk: Chunk, missed: int) -> pb.StreamUsageResponse:
    response = pb.StreamUsageResponse(spool_id=spool_id, missed=missed)
    response.windows.extend(UsageWindow.FromString(window) for window in chunk.windows)
    return response
