"""A connection to one service that outlives its certificates.

Decides when the connection is replaced: when the certificate files have changed and a stub is asked for.
Calls that run on the old connection finish there.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, TypeVar, cast

import grpc
from grpc import aio

from gpuloom.rpc.active_calls import ActiveCalls
from gpuloom.rpc.environment import RpcEnvironment
from gpuloom.rpc.identity import server_name
from gpuloom.rpc.interceptors import (
    ClientSide,
    StreamClientInterceptor,
    UnaryClientInterceptor,
    UnreachableError,
)
from gpuloom.rpc.methods import describe_method
from gpuloom.rpc.server import MAX_MESSAGE_BYTES
from gpuloom.rpc.tls import channel_credentials
from gpuloom.runtime.clock import deadline

_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # A server that vanished is noticed within about 20 s.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 8_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # gRPC would answer small messages with pings that measure the link: a good part of what it costs to
    # follow a thousand agents. It gets a window wide enough for the state of a large node instead.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 256 * 1024),
    # gRPC would wait up to two minutes before it tries a server that came back. The "min" is how long one
    # attempt to connect may take.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 3_000),
    ("grpc.min_reconnect_backoff_ms", 5_000),
    # Only the interceptor retries, by its own rule.
    ("grpc.enable_retries", 0),
    ("grpc.service_config_disable_resolution", 1),
    # The mesh is never reached through a proxy, whatever the environment says.
    ("grpc.enable_http_proxy", 0),
    # A new channel must make a new connection, with the new certificate.
    ("grpc.use_local_subchannel_pool", 1),
)

_RETIREMENT_S = 1.0
"""An old connection stays at least this long, for a call that has its stub but has not begun."""

Stub = TypeVar("Stub")
Message = TypeVar("Message")


@dataclass(slots=True)
class _Connection:
    generation: int
    channel: aio.Channel
    calls: ActiveCalls
    stubs: dict[object, object] = field(default_factory=dict)


class RpcChannel:
    """Calls to one service at one address. `service` is its name; its certificate must prove it."""

    def __init__(self, environment: RpcEnvironment, target: str, service: str) -> None:
        self.target = target
        self.service = service
        self._environment = environment
        self._connection: _Connection | None = None
        self._retiring: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._connection = self._connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for task in self._retiring:
            task.cancel()
        await asyncio.gather(*self._retiring, return_exceptions=True)
        await self._current().channel.close()

    def stub(self, make: Callable[[aio.Channel], Stub]) -> Stub:
        """The generated stub on the present connection. Ask for it at each call: it ends with its connection.

        Unary calls take `timeout` in seconds and raise our errors; a stream goes through `open_stream`.
        """
        connection = self._renewed()
        if make not in connection.stubs:
            connection.stubs[make] = make(connection.channel)
        return cast(Stub, connection.stubs[make])

    async def wait_ready(self, timeout_s: float) -> None:
        """Return when connected. Raise UnreachableError if that takes longer."""
        channel = self._renewed().channel
        try:
            async with deadline(self._environment.clock, timeout_s):
                state = channel.get_state(try_to_connect=True)
                while state is not grpc.ChannelConnectivity.READY:
                    await channel.wait_for_state_change(state)
                    state = channel.get_state(try_to_connect=True)
        except TimeoutError as error:
            raise UnreachableError(
                self.service, f"no connection to {self.target} within {timeout_s:g} s"
            ) from error

    def _current(self) -> _Connection:
        if self._connection is None:
            raise ValueError("the channel has not been opened")
        return self._connection

    def _renewed(self) -> _Connection:
        connection = self._current()
        if self._certificates_generation() != connection.generation:
            task = asyncio.create_task(self._retire(connection))
            self._retiring.add(task)
            task.add_done_callback(self._retiring.discard)
            self._connection = connection = self._connect()
        return connection

    async def _retire(self, connection: _Connection) -> None:
        try:
            await self._environment.clock.sleep(_RETIREMENT_S)
            await connection.calls.idle()
        finally:
            await connection.channel.close()

    def _certificates_generation(self) -> int:
        certificates = self._environment.certificates
        return 0 if certificates is None else certificates.current().generation

    def _connect(self) -> _Connection:
        calls = ActiveCalls()
        side = ClientSide(
            service=self.service,
            metrics=self._environment.metrics,
            clock=self._environment.clock,
            chance=self._environment.chance,
            describe=describe_method,
            calls=calls,
        )
        interceptors = [UnaryClientInterceptor(side), StreamClientInterceptor(side)]
        if self._environment.certificates is None:
            return _Connection(
                0, aio.insecure_channel(self.target, _OPTIONS, interceptors=interceptors), calls
            )
        certificates = self._environment.certificates.current()
        channel = aio.secure_channel(
            self.target,
            channel_credentials(certificates),
            (*_OPTIONS, ("grpc.ssl_target_name_override", server_name(self.service))),
            interceptors=interceptors,
        )
        return _Connection(certificates.generation, channel, calls)


@asynccontextmanager
async def open_stream(call: aio.UnaryStreamCall[Any, Message]) -> AsyncIterator[AsyncIterator[Message]]:
    """The messages of a server stream. Leaving the block ends the stream; iterating raises our errors."""
    try:
        yield call.__aiter__()
    finally:
        call.cancel()
