"""A gRPC server whose every RPC has an allow-list, a deadline and a way to end.

Decides how connections are kept and how the server stops. What callers see of errors is the interceptor's.
"""

import asyncio
import inspect
import logging
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

from google.protobuf.descriptor import ServiceDescriptor
from grpc import aio

from gpuloom.errors import GpuloomError
from gpuloom.rpc import health
from gpuloom.rpc.environment import RpcEnvironment
from gpuloom.rpc.interceptors import MethodPolicy, ServerInterceptor, ServerSide
from gpuloom.rpc.methods import facts_of, method_path
from gpuloom.rpc.tls import server_credentials

_log = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = 32 * 1024 * 1024

_OPTIONS = (
    # A second process on this port must fail, not share it silently.
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # A peer that vanished is noticed within about 20 s; clients may ping as often as ours do.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 8_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
)

Servicer = TypeVar("Servicer")


class ListenError(GpuloomError):
    """The server can't listen where it was told to; the text says where and why."""


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """`max_concurrent_rpcs` counts open streams too. Reflection needs the `reflection` extra."""

    max_concurrent_rpcs: int = 2000
    reflection: bool = False


class RpcServer:
    """Serves what was added, from entering the context to `drain` or leaving it."""

    def __init__(
        self, environment: RpcEnvironment, host: str, port: int, options: ServerOptions | None = None
    ) -> None:
        """Port 0 takes any free one; `port` tells which, once started."""
        self.host = host
        self.port = port
        self._environment = environment
        self._options = options or ServerOptions()
        self._policies: dict[str, MethodPolicy] = {}
        self._services: list[str] = []
        self._registrations: list[Callable[[aio.Server], None]] = []
        self._running: _Running | None = None

    def add(
        self,
        servicer: Servicer,
        add_to_server: Callable[[Servicer, aio.Server], None],
        service: ServiceDescriptor,
        allow: Mapping[str, frozenset[str]],
    ) -> None:
        """Serve all RPCs of a service; `allow` names the callers of each.

        Raise ValueError if an RPC has no entry, an entry has no RPC, or a handler is not asynchronous.
        """
        if self._running is not None:
            raise ValueError("services are added before the server starts")
        _check_allow_list(service, allow)
        _check_handlers(service, servicer)
        for method in service.methods:
            policy = MethodPolicy(facts_of(method), allow[method.name])
            self._policies[method_path(service, method.name)] = policy
        self._services.append(service.full_name)
        self._registrations.append(lambda server: add_to_server(servicer, server))

    async def __aenter__(self) -> Self:
        _check_free(self.host, self.port)
        running = self._build()
        address = f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
        try:
            if self._environment.certificates is None:
                _log.warning(
                    "serving without TLS: every caller may call everything", extra={"address": address}
                )
                self.port = running.server.add_insecure_port(address)
            else:
                credentials = server_credentials(self._environment.certificates)
                self.port = running.server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise _listen_error(self.host, self.port, "another process may be using it") from error
        await running.server.start()
        self._running = running
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.drain(grace_s=0.0)

    async def set_serving(self, serving: bool) -> None:
        """What the standard health check answers; true after the start."""
        await self._started().health.set_serving(serving)

    async def drain(self, grace_s: float) -> None:
        """Take no new calls, end streams with "draining", and let unary calls finish within grace_s."""
        running = self._started()
        await running.health.close()
        if not running.draining.done():
            running.draining.set_result(None)
        await running.server.stop(grace_s)

    def _build(self) -> "_Running":
        environment = self._environment
        draining: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        servicer = health.HealthServicer(frozenset(self._services))
        policies = self._policies | _open_policies(health.SERVICE, serves_while_draining=True)
        if self._options.reflection:
            policies |= _open_policies(_reflection().SERVICE, serves_while_draining=False)
        side = ServerSide(
            policies=policies,
            authenticated=environment.certificates is not None,
            draining=draining,
            metrics=environment.metrics,
            clock=environment.clock,
        )
        server = aio.server(
            interceptors=[ServerInterceptor(side)],
            options=_OPTIONS,
            maximum_concurrent_rpcs=self._options.max_concurrent_rpcs,
        )
        for register in self._registrations:
            register(server)
        health.add_to_server(servicer, server)
        if self._options.reflection:
            _reflection().enable(server, self._services)
        return _Running(server, servicer, draining)

    def _started(self) -> "_Running":
        if self._running is None:
            raise ValueError("the server has not been started")
        return self._running


@dataclass(frozen=True, slots=True)
class _Running:
    server: aio.Server
    health: health.HealthServicer
    draining: asyncio.Future[None]


def _check_allow_list(service: ServiceDescriptor, allow: Mapping[str, frozenset[str]]) -> None:
    methods = {method.name for method in service.methods}
    if missing := sorted(methods - allow.keys()):
        raise ValueError(f"{service.full_name}: no allow-list for {', '.join(missing)}")
    if unknown := sorted(allow.keys() - methods):
        raise ValueError(f"{service.full_name}: allow-list for {', '.join(unknown)}, which it does not have")


def _check_handlers(service: ServiceDescriptor, servicer: object) -> None:
    for method in service.methods:
        handler = getattr(servicer, method.name, None)
        if method.client_streaming:
            raise ValueError(f"{service.full_name}: {method.name} streams requests, which is not supported")
        if method.server_streaming and not inspect.isasyncgenfunction(handler):
            raise ValueError(f"{service.full_name}: {method.name} must be an async generator")
        if not method.server_streaming and not inspect.iscoroutinefunction(handler):
            raise ValueError(f"{service.full_name}: {method.name} must be an async function")


def _open_policies(service: ServiceDescriptor, serves_while_draining: bool) -> dict[str, MethodPolicy]:
    return {
        method_path(service, method.name): MethodPolicy(facts_of(method), None, serves_while_draining)
        for method in service.methods
    }


def _check_free(host: str, port: int) -> None:
    """Ask the system first: gRPC tells that binding failed, but not why, and logs lines of its own."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise _listen_error(host, port, error.strerror or str(error)) from error


def _listen_error(host: str, port: int, reason: str) -> ListenError:
    return ListenError(f"can't listen on {host} port {port}: {reason}")


def _reflection() -> Any:
    try:
        from gpuloom.rpc import reflection  # noqa: PLC0415  # an optional extra
    except ImportError as error:
        raise GpuloomError(
            "reflection needs the package grpcio-reflection: install gpuloom[reflection]"
        ) from error
    return reflection
