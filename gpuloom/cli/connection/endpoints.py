"""How a command reaches a mesh: one that `gpuloom run` started here, or a cluster's.

A run leaves its addresses in its directory; a cluster is named by an option, and its certificates by the same
environment variables that services use.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import orjson
import typer

from gpuloom.errors import DeadlineError, InvalidRequestError, UnavailableError
from gpuloom.model.snapshot import ClusterSnapshot
from gpuloom.roster import ROSTER
from gpuloom.runtime.parsers import address

if TYPE_CHECKING:
    from gpuloom.rpc.channel import RpcChannel
    from gpuloom.rpc.environment import RpcEnvironment

Answer = TypeVar("Answer")

ENDPOINTS_FILE = "endpoints.json"
DEFAULT_TIMEOUT_S = 10.0
_TLS_FILES = {
    "GPULOOM_TLS_CERT_FILE": "certificate",
    "GPULOOM_TLS_KEY_FILE": "key",
    "GPULOOM_TLS_CA_FILE": "authority",
}

DirectoryOption = Annotated[
    Path, typer.Option("--dir", help="Directory of a `gpuloom run`; used unless an address is given.")
]


def address_option(service: str) -> Any:
    """The option that names where a cluster's service is."""
    row = ROSTER[service]
    return typer.Option(
        f"--{row.short}",
        envvar=row.address_setting,
        metavar="HOST:PORT",
        help=f"gRPC address of a cluster's {row.short}. Certificates: {', '.join(_TLS_FILES)}.",
    )


DiscoveryOption = Annotated[str, address_option("discovery")]
CostOption = Annotated[str, address_option("cost_engine")]
ExtenderOption = Annotated[str, address_option("scheduler_extender")]
TimeoutOption = Annotated[
    float, typer.Option("--timeout", min=0.1, metavar="SECONDS", help="How long to wait for an answer.")
]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a service is, and the settings by which this command shows who it is."""

    service: str
    address: str
    tls: Mapping[str, str]


def find_endpoint(service: str, given: str, directory: Path, environ: Mapping[str, str]) -> Endpoint:
    """Of that service: the address given, else the one of the run in that directory.

    Raise InvalidRequestError if the address is none, UnavailableError if nothing runs there.
    """
    if not given:
        return _of_run(service, directory)
    try:
        tls = {name: value for name, value in environ.items() if name in _TLS_FILES}
        return Endpoint(service, str(address(given)), tls)
    except ValueError as error:
        raise InvalidRequestError(f"--{ROSTER[service].short}: {error}") from None


_TRANSPORT_WORDS = {
    "connection refused": ": connection refused",
    "handshake": ": the TLS handshake failed, check the certificates",
    "certificate": ": the TLS handshake failed, check the certificates",
    "dns": ": its name can't be resolved",
}


def _of_run(service: str, directory: Path) -> Endpoint:
    # Imported here: it brings gRPC along, and `gpuloom --help` shall be quick.
    from gpuloom.sim.mesh.run_directory import is_in_use  # noqa: PLC0415

    short = ROSTER[service].short
    path = directory / ENDPOINTS_FILE
    instead = f"start one with `gpuloom run`, or name a cluster's {short} with --{short}"
    try:
        document = orjson.loads(path.read_bytes())
        tls = {name: str(document[key]) for name, key in _TLS_FILES.items()}
        endpoint = Endpoint(service, str(document[service]), tls)
    except FileNotFoundError:
        raise UnavailableError(f"no mesh runs in {directory}: {instead}") from None
    except (KeyError, TypeError, ValueError):
        raise InvalidRequestError(f"{path} is not what `gpuloom run` wrote; name --{short}") from None
    if not is_in_use(directory):
        raise UnavailableError(f"no mesh runs in {directory}, the last run there has ended: {instead}")
    return endpoint


def read_cluster(endpoint: Endpoint, timeout_s: float) -> ClusterSnapshot:
    """All nodes now. Raise UnavailableError if discovery does not give them in time."""
    return asyncio.run(read_cluster_async(endpoint, timeout_s))


async def read_cluster_async(endpoint: Endpoint, timeout_s: float) -> ClusterSnapshot:
    # Imported here: they bring gRPC along, and `gpuloom --help` shall be quick.
    from gpuloom.clients.discovery import ClusterMirror, MirrorOptions  # noqa: PLC0415
    from gpuloom.rpc.channel import RpcChannel  # noqa: PLC0415

    rpc = _environment(endpoint)
    async with RpcChannel(rpc, endpoint.address, endpoint.service) as channel:
        mirror = ClusterMirror(channel, rpc.clock, MirrorOptions(with_usage=True))
        following = asyncio.create_task(mirror.run())
        try:
            await asyncio.wait_for(mirror.wait_synced(), timeout_s)
        except TimeoutError:
            raise DeadlineError(
                f"discovery at {endpoint.address} did not answer within {timeout_s:g} s"
            ) from None
        finally:
            following.cancel()
            await asyncio.wait({following})
        return mirror.snapshot()


def ask(endpoint: Endpoint, question: "Callable[[RpcChannel], Awaitable[Answer]]") -> Answer:
    """One call to the service. It raises what the call raises; the call has its own deadline."""
    return asyncio.run(_ask(endpoint, question))


async def _ask(endpoint: Endpoint, question: "Callable[[RpcChannel], Awaitable[Answer]]") -> Answer:
    from gpuloom.rpc.channel import RpcChannel  # noqa: PLC0415
    from gpuloom.rpc.interceptors import UnreachableError  # noqa: PLC0415

    async with RpcChannel(_environment(endpoint), endpoint.address, endpoint.service) as channel:
        try:
            return await question(channel)
        except UnreachableError as error:
            raise UnavailableError(unreachable_text(endpoint, str(error))) from None


def unreachable_text(endpoint: Endpoint, transport_text: str) -> str:
    """In words: what gRPC says names its own layers and addresses in its own notation."""
    why = next((words for sign, words in _TRANSPORT_WORDS.items() if sign in transport_text.lower()), "")
    return f"{endpoint.service} at {endpoint.address} can't be reached{why}"


def _environment(endpoint: Endpoint) -> "RpcEnvironment":
    from gpuloom.rpc.environment import RpcEnvironment  # noqa: PLC0415
    from gpuloom.rpc.settings import TlsConfig  # noqa: PLC0415
    from gpuloom.runtime.clock import SystemClock  # noqa: PLC0415
    from gpuloom.runtime.config import load_config  # noqa: PLC0415
    from gpuloom.runtime.metrics import new_registry  # noqa: PLC0415

    return RpcEnvironment(load_config(TlsConfig, endpoint.tls).files(), new_registry("cli"), SystemClock())
