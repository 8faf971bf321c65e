"""What every gRPC service repeats: its settings, and serving until the process drains.

grpc: ServingConfig = grpc_group("discovery")
...
rpc = rpc_environment(app, config.grpc.tls)
await serve(app, config.grpc, rpc, Served(servicer, add_to_server, SERVICE, ALLOWED_CALLERS))
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from google.protobuf.descriptor import ServiceDescriptor
from grpc import aio

from gpuloom.roster import GRPC, ROSTER, Roster
from gpuloom.rpc.environment import RpcEnvironment
from gpuloom.rpc.server import RpcServer, ServerOptions
from gpuloom.rpc.settings import TlsConfig
from gpuloom.runtime.app import App
from gpuloom.runtime.config import REQUIRED, group, setting
from gpuloom.runtime.parsers import Address, address, boolean, port, text

DRAIN_S = 2.0

Servicer = TypeVar("Servicer")


@dataclass(frozen=True)
class ServingConfig:
    """Where gRPC is served and with which certificates; `grpc_group` knows the port of each service."""

    host: str = setting(
        "GPULOOM_GRPC_HOST",
        default="0.0.0.0",  # noqa: S104 - other services come from outside the pod
        parse=text,
        help="Address to serve gRPC on",
    )
    port: int = setting("GPULOOM_GRPC_PORT", default=REQUIRED, parse=port, help="Port to serve gRPC on")
    reflection: bool = setting(
        "GPULOOM_GRPC_REFLECTION", default=False, parse=boolean, help="Serve gRPC reflection"
    )
    tls: TlsConfig = group(TlsConfig)


def grpc_group(service: str) -> ServingConfig:
    """Declare the field of a service's configuration that holds these settings."""
    return group(_serving_config(ROSTER[service].port(GRPC).number))


def peer_setting(service: str, roster: Roster = ROSTER) -> Address:
    """Declare the field with the address of a service that this one calls: the same variable everywhere."""
    name = roster[service].address_setting
    return setting(name, default=REQUIRED, parse=address, help=f"host:port of {roster[service].short}")


@dataclass(frozen=True, slots=True)
class Served(Generic[Servicer]):
    """A service as its stubs describe it, and who may call each of its RPCs."""

    servicer: Servicer
    add_to_server: Callable[[Servicer, aio.Server], None]
    descriptor: ServiceDescriptor
    allowed_callers: Mapping[str, frozenset[str]]


def rpc_environment(app: App, tls: TlsConfig) -> RpcEnvironment:
    """What all servers and channels of this process share. Raise TlsError if the files can't be used."""
    return RpcEnvironment(tls.files(), app.registry, app.clock)


async def serve(
    app: App,
    config: ServingConfig,
    rpc: RpcEnvironment,
    *served: Served[Any],
    name: str = "grpc",
    drain_s: float = DRAIN_S,
) -> RpcServer:
    """Serve until the process ends; `name` tells servers of one process apart.

    At a stop, streams end at once and unary calls get `drain_s`. Raise ListenError if the port is taken.
    """
    server = RpcServer(rpc, config.host, config.port, ServerOptions(reflection=config.reflection))
    for each in served:
        server.add(each.servicer, each.add_to_server, each.descriptor, each.allowed_callers)
    await app.enter(server)
    app.on_drain(name, lambda: server.drain(grace_s=drain_s))
    return server


def _serving_config(default_port: int) -> type[ServingConfig]:
    @dataclass(frozen=True)
    class Config(ServingConfig):
        port: int = setting(
            "GPULOOM_GRPC_PORT", default=default_port, parse=port, help="Port to serve gRPC on"
        )

    return Config
