"""What becomes of a connection to the runtime: calls are answered, noise ends it, and another follows."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest
from google.protobuf.message import Message as Protobuf
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from gpuloom.errors import GpuloomError, UnavailableError
from gpuloom.nri import nri_pb2 as pb
from gpuloom.runtime.clock import FakeClock, settle
from services.node_agent.delivery.connection import ConnectionParts, RuntimeConnection, _Session
from services.node_agent.delivery.core import ttrpc
from services.node_agent.delivery.core.deliveries import Deliveries
from services.node_agent.delivery.core.mux import (
    PLUGIN_CONNECTION,
    RUNTIME_CONNECTION,
    FrameDecoder,
    encode_frame,
)
from services.node_agent.delivery.metrics import DeliveryMetrics
from services.node_agent.delivery.plugin import PLUGIN_SERVICE
from tests.unit.node_agent.delivery.builders import a_container, a_plugin, a_sandbox, an_allocation, held


class FakeRuntime:
    """The runtime's side of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self._frames = FrameDecoder()
        self._messages = {
            PLUGIN_CONNECTION: ttrpc.MessageDecoder(),
            RUNTIME_CONNECTION: ttrpc.MessageDecoder(),
        }
        self._arrived: list[ttrpc.Message] = []

    async def receive(self) -> ttrpc.Message:
        while not self._arrived:
            received = await self._reader.read(1000)
            if not received:
                raise EOFError
            for frame in self._frames.feed(received):
                self._arrived += self._messages[frame.connection].feed(frame.content)
        return self._arrived.pop(0)

    async def accept(self) -> pb.RegisterPluginRequest:
        """Take the plugin and tell it that nothing runs."""
        message = await self.receive()
        self.writer.write(
            encode_frame(RUNTIME_CONNECTION, ttrpc.encode_message(ttrpc.answer(message.stream, b"")))
        )
        await self.call("Configure", pb.ConfigureRequest())
        await self.call("Synchronize", pb.SynchronizeRequest())
        return pb.RegisterPluginRequest.FromString(ttrpc.read_call(message).payload)

    async def call(self, method: str, call: Protobuf) -> pb.Response:
        message = ttrpc.call(1, PLUGIN_SERVICE, method, call.SerializeToString())
        encoded = ttrpc.encode_message(message)
        # In two frames: a message may be cut anywhere.
        self.writer.write(encode_frame(PLUGIN_CONNECTION, encoded[:7]))
        self.writer.write(encode_frame(PLUGIN_CONNECTION, encoded[7:]))
        return ttrpc.read_answer(await self.receive())


Behaviour = Callable[[FakeRuntime], Awaitable[None]]


class Stage:
    """A runtime that behaves as told, connection after connection, and a plugin that is connected to it."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.changes: list[bool] = []
        self.deliveries = Deliveries()
        self.plugin = a_plugin(self.deliveries)
        self.over = asyncio.Event()

    async def pass_time(self, until: Callable[[], bool]) -> None:
        """Seconds pass on the plugin's clock; the sockets need a moment of the machine's own."""
        for _ in range(2000):
            if until():
                return
            await asyncio.sleep(0.001)
            await self.clock.advance(0.05)
        raise AssertionError("it did not come to that")


@asynccontextmanager
async def a_stage(socket: Path, *behaviours: Behaviour) -> AsyncIterator[Stage]:
    stage, waiting = Stage(), list(behaviours)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if waiting:
                await waiting.pop(0)(FakeRuntime(reader, writer))
        except EOFError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_unix_server(serve, socket)
    parts = ConnectionParts(socket, stage.clock, DeliveryMetrics(CollectorRegistry()), stage.changes.append)
    task = asyncio.create_task(RuntimeConnection(parts, stage.plugin, stage.deliveries).run())
    try:
        yield stage
        assert not task.done()
    finally:
        stage.over.set()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        server.close()
        await server.wait_closed()
        await settle()


async def test_we_register_deliver_and_say_so(tmp_path: Path) -> None:
    seen: list[object] = []

    async def runtime(side: FakeRuntime) -> None:
        seen.append(await side.accept())
        call = pb.CreateContainerRequest(pod=a_sandbox("train", an_allocation()), container=a_container())
        seen.append(await side.call("CreateContainer", call))
        forged = pb.CreateContainerRequest(pod=a_sandbox("train", "{"), container=a_container())
        seen.append((await side.call("CreateContainer", forged)).status)
        seen.append((await side.call("Surprise", pb.Empty())).status.code)
        await stage.over.wait()

    async with a_stage(tmp_path / "nri.sock", runtime) as stage:
        await stage.pass_time(lambda: len(seen) == 4)

        assert seen[0] == pb.RegisterPluginRequest(plugin_name="gpuloom", plugin_idx="10")
        assert await held(stage.deliveries) == ["train"]
        assert stage.changes == [True]
        assert seen[2] == pb.Status(
            code=9, message="gpuloom: the allocation can't be read: the allocation is not JSON"
        )
        assert seen[3] == ttrpc.Code.UNIMPLEMENTED


async def test_a_lost_connection_makes_holders_unknown_until_the_next_one(tmp_path: Path) -> None:
    async def leaves(side: FakeRuntime) -> None:
        await side.accept()

    async def stays(side: FakeRuntime) -> None:
        await side.accept()
        await stage.over.wait()

    async with a_stage(tmp_path / "nri.sock", leaves, stays) as stage:
        await stage.pass_time(lambda: stage.changes == [True, False])
        with pytest.raises(UnavailableError, match="not connected"):
            await stage.deliveries.holders()

        await stage.pass_time(lambda: stage.changes == [True, False, True])

        assert await held(stage.deliveries) == []


@pytest.mark.parametrize(
    "noise",
    [
        b"\xff" * 64,
        encode_frame(7, b"x"),
        encode_frame(PLUGIN_CONNECTION, b"\xff" * 20),
        encode_frame(PLUGIN_CONNECTION, ttrpc.encode_message(ttrpc.answer(1, b""))),
        encode_frame(PLUGIN_CONNECTION, b"\0\0\0\2\0\0\0\1\1\0\xff\xff"),
        encode_frame(RUNTIME_CONNECTION, ttrpc.encode_message(ttrpc.failure(1, ttrpc.Code.INTERNAL, "no"))),
    ],
)
async def test_noise_closes_the_connection_and_the_next_one_works(tmp_path: Path, noise: bytes) -> None:
    async def noisy(side: FakeRuntime) -> None:
        side.writer.write(noise)
        while True:
            await side.receive()

    async def stays(side: FakeRuntime) -> None:
        await side.accept()
        await stage.over.wait()

    async with a_stage(tmp_path / "nri.sock", noisy, stays) as stage:
        await stage.pass_time(lambda: stage.changes == [True])


async def test_a_runtime_that_never_says_what_runs_is_left_and_tried_again(tmp_path: Path) -> None:
    async def silent(side: FakeRuntime) -> None:
        while True:
            await side.receive()

    async def stays(side: FakeRuntime) -> None:
        await side.accept()
        await stage.over.wait()

    async with a_stage(tmp_path / "nri.sock", silent, stays) as stage:
        await stage.pass_time(lambda: stage.changes == [True])


async def test_a_missing_socket_is_tried_again_and_again(tmp_path: Path) -> None:
    deliveries = Deliveries()
    clock = FakeClock()
    parts = ConnectionParts(
        tmp_path / "none.sock", clock, DeliveryMetrics(CollectorRegistry()), lambda connected: None
    )
    task = asyncio.create_task(RuntimeConnection(parts, a_plugin(deliveries), deliveries).run())

    for _ in range(5):
        await clock.advance(20.0)

    assert not task.done()
    with pytest.raises(UnavailableError, match="not connected"):
        await deliveries.holders()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


class Sink:
    """A writer that takes everything."""

    def write(self, content: bytes) -> None:
        pass

    async def drain(self) -> None:
        pass


calls = st.builds(
    ttrpc.call,
    st.integers(0, 9),
    st.sampled_from([PLUGIN_SERVICE, "other"]),
    st.sampled_from(["Configure", "Synchronize", "CreateContainer", "StateChange", "Surprise"]),
    st.binary(max_size=60),
)
sent = st.lists(
    st.one_of(
        st.binary(max_size=40),
        st.builds(encode_frame, st.integers(0, 3), st.binary(max_size=40)),
        st.builds(encode_frame, st.integers(0, 3), calls.map(ttrpc.encode_message)),
    ),
    max_size=10,
)


@given(sent)
def test_whatever_comes_is_answered_or_ends_the_connection(pieces: list[bytes]) -> None:
    deliveries = Deliveries()
    parts = ConnectionParts(
        Path("unused"), FakeClock(), DeliveryMetrics(CollectorRegistry()), lambda connected: None
    )
    session = _Session(cast(asyncio.StreamWriter, Sink()), a_plugin(deliveries), parts)

    async def feed() -> None:
        for piece in pieces:
            await session.take(piece)

    try:
        asyncio.run(feed())
    except GpuloomError:
        pass

    assert deliveries.all() == ()
