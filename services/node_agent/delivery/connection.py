"""The agent's connection to the container runtime: opens it, answers calls on it, and opens it again.

Whatever the other side sends, the worst that happens is that the connection is closed and opened anew later.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpuloom.errors import GpuloomError, NotAllowedError, UnavailableError
from gpuloom.names import NRI_PLUGIN
from gpuloom.nri.nri_pb2 import RegisterPluginRequest
from gpuloom.runtime.backoff import Backoff
from gpuloom.runtime.clock import Clock, deadline
from services.node_agent.delivery.core import ttrpc
from services.node_agent.delivery.core.deliveries import Deliveries
from services.node_agent.delivery.core.mux import (
    PLUGIN_CONNECTION,
    RUNTIME_CONNECTION,
    Frame,
    FrameDecoder,
    WireError,
    encode_frame,
)
from services.node_agent.delivery.metrics import DeliveryMetrics
from services.node_agent.delivery.plugin import Plugin, UnknownCallError

_log = logging.getLogger(__name__)

PLUGIN_INDEX = "10"

_RUNTIME_SERVICE = "nri.pkg.api.v1alpha1.Runtime"
_REGISTER_STREAM = 1
_READ_BYTES = 64 * 1024
_CONNECT_TIMEOUT_S = 5.0
# The runtime gives a plugin five seconds from its first byte to the end of Synchronize.
_SYNCHRONIZE_TIMEOUT_S = 15.0
_FIRST_DELAY_S = 0.2
_LONGEST_DELAY_S = 10.0


@dataclass(frozen=True, slots=True)
class ConnectionParts:
    """`changed` is called when delivery starts and when it ends."""

    socket: Path
    clock: Clock
    metrics: DeliveryMetrics
    changed: Callable[[bool], None]


class RuntimeConnection:
    def __init__(self, parts: ConnectionParts, plugin: Plugin, deliveries: Deliveries) -> None:
        self._parts = parts
        self._plugin = plugin
        self._deliveries = deliveries
        self._connected = False

    @property
    def connected(self) -> bool:
        """Whether the runtime asks us about every container that it creates."""
        return self._connected

    async def run(self) -> None:
        """Never ends: a runtime that is not there, or restarts, is tried again and again."""
        backoff = Backoff(_FIRST_DELAY_S, _LONGEST_DELAY_S)
        said = ""
        while True:
            try:
                await self._serve(backoff)
                reason = "the container runtime closed the connection"
            except (GpuloomError, OSError, TimeoutError) as error:
                reason = f"no connection to the container runtime: {error}"
            finally:
                self._set_connected(False)
                self._deliveries.forget("the container runtime is not connected")
            if reason != said:
                _log.warning("devices can't be delivered", extra={"reason": reason})
            said = reason
            await self._parts.clock.sleep(backoff.next_delay_s())

    async def _serve(self, backoff: Backoff) -> None:
        """One connection, until it ends. Raise WireError, UnavailableError, OSError or TimeoutError."""
        async with deadline(self._parts.clock, _CONNECT_TIMEOUT_S):
            reader, writer = await asyncio.open_unix_connection(self._parts.socket)
        session = _Session(writer, self._plugin, self._parts)
        try:
            await session.register()
            async with deadline(self._parts.clock, _SYNCHRONIZE_TIMEOUT_S):
                while not self._deliveries.synchronized:
                    if not await session.take(await reader.read(_READ_BYTES)):
                        return
            backoff.reset()
            self._set_connected(True)
            while await session.take(await reader.read(_READ_BYTES)):
                pass
        finally:
            writer.close()
            try:
                await writer.wait_closed()
            except OSError:
                # It is gone either way.
                pass

    def _set_connected(self, connected: bool) -> None:
        if connected == self._connected:
            return
        self._connected = connected
        self._parts.metrics.connected.set(connected)
        self._parts.changed(connected)


class _Session:
    """The state of one open connection."""

    def __init__(self, writer: asyncio.StreamWriter, plugin: Plugin, parts: ConnectionParts) -> None:
        self._writer = writer
        self._plugin = plugin
        self._parts = parts
        self._frames = FrameDecoder()
        self._calls = ttrpc.MessageDecoder()
        self._answers = ttrpc.MessageDecoder()

    async def register(self) -> None:
        request = RegisterPluginRequest(plugin_name=NRI_PLUGIN, plugin_idx=PLUGIN_INDEX)
        call = ttrpc.call(_REGISTER_STREAM, _RUNTIME_SERVICE, "RegisterPlugin", request.SerializeToString())
        await self._send(RUNTIME_CONNECTION, call)

    async def take(self, received: bytes) -> bool:
        """Act on what came; False if the other side has closed. Raise WireError or UnavailableError."""
        for frame in self._frames.feed(received):
            await self._take_frame(frame)
        return bool(received)

    async def _take_frame(self, frame: Frame) -> None:
        if frame.connection == PLUGIN_CONNECTION:
            for message in self._calls.feed(frame.content):
                await self._answer(message)
        elif frame.connection == RUNTIME_CONNECTION:
            for message in self._answers.feed(frame.content):
                _refuse_failure(message)
        else:
            raise WireError(f"connection {frame.connection} is not known")

    async def _answer(self, message: ttrpc.Message) -> None:
        if message.kind is not ttrpc.Kind.REQUEST:
            raise WireError("an answer came where calls are expected")
        started_s = self._parts.clock.monotonic()
        call = ttrpc.read_call(message)
        try:
            payload = self._plugin.answer(call.service, call.method, call.payload)
            answer = ttrpc.answer(message.stream, payload)
        except UnknownCallError as error:
            answer = ttrpc.failure(message.stream, ttrpc.Code.UNIMPLEMENTED, str(error))
        except NotAllowedError as error:
            answer = ttrpc.failure(message.stream, ttrpc.Code.FAILED_PRECONDITION, str(error))
        self._parts.metrics.answer_duration.observe(self._parts.clock.monotonic() - started_s)
        await self._send(PLUGIN_CONNECTION, answer)

    async def _send(self, connection: int, message: ttrpc.Message) -> None:
        self._writer.write(encode_frame(connection, ttrpc.encode_message(message)))
        await self._writer.drain()


def _refuse_failure(message: ttrpc.Message) -> None:
    response = ttrpc.read_answer(message)
    if response.status.code:
        reason = response.status.message[:200]
        raise UnavailableError(f"the container runtime does not take us as its plugin: {reason}")
