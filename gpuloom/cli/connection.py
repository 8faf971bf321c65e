"""How a command reaches a mesh: one that `gpuloom run` started here, or a cluster's.

A run leaves its addresses in its directory; a cluster is named by an option, and its certificates by the same
environment variables that services use.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import orjson
import typer

from gpuloom.errors import DeadlineError, InvalidRequestError, UnavailableError
from gpuloom.model.snapshot import ClusterSnapshot
from gpuloom.runtime.parsers import address

ENDPOINTS_FILE = "endpoints.json"
DEFAULT_TIMEOUT_S = 10.0
_TLS_FILES = {
    "GPULOOM_TLS_CERT_FILE": "certificate",
    "GPULOOM_TLS_KEY_FILE": "key",
    "GPULOOM_TLS_CA_FILE": "authority",
}

DirectoryOption = Annotated[
    Path, typer.Option("--dir", help="Directory of a `gpuloom run`; used unless --discovery is given.")
]
DiscoveryOption = Annotated[
    str,
    typer.Option(
        "--discovery",
        envvar="GPULOOM_DISCOVERY_ADDRESS",
        metavar="HOST:PORT",
        help="Address of a cluster's discovery. Certificates: GPULOOM_TLS_CERT_FILE, …_KEY_FILE, …_CA_FILE.",
    ),
]
TimeoutOption = Annotated[
    float, typer.Option("--timeout", min=0.1, metavar="SECONDS", help="How long to wait for an answer.")
]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where discovery is, and the settings by which this command shows who it is."""

    discovery: str
    tls: Mapping[str, str]


def find_endpoint(discovery: str, directory: Path, environ: Mapping[str, str]) -> Endpoint:
    """Raise InvalidRequestError if nobody says where, UnavailableError if no mesh runs there."""
    if discovery:
        try:
            return Endpoint(str(address(discovery)), {k: v for k, v in environ.items() if k in _TLS_FILES})
        except ValueError as error:
            raise InvalidRequestError(f"--discovery: {error}") from None
    path = directory / ENDPOINTS_FILE
    try:
        document = orjson.loads(path.read_bytes())
        return Endpoint(
            str(document["discovery"]), {name: str(document[key]) for name, key in _TLS_FILES.items()}
        )
    except FileNotFoundError:
        raise UnavailableError(
            f"no mesh runs in {directory}: start one with `gpuloom run`, or name a cluster's discovery "
            "with --discovery"
        ) from None
    except (KeyError, TypeError, ValueError):
        raise InvalidRequestError(f"{path} is not what `gpuloom run` wrote; name --discovery") from None


def read_cluster(endpoint: Endpoint, timeout_s: float) -> ClusterSnapshot:
    """All nodes now. Raise UnavailableError if discovery does not give them in time."""
    return asyncio.run(_read_cluster(endpoint, timeout_s))


async def _read_cluster(endpoint: Endpoint, timeout_s: float) -> ClusterSnapshot:
    # Imported here: they bring gRPC along, and `gpuloom --help` shall be quick.
    from gpuloom.clients.discovery import ClusterMirror, MirrorOptions  # noqa: PLC0415
    from gpuloom.rpc.channel import RpcChannel  # noqa: PLC0415
    from gpuloom.rpc.environment import RpcEnvironment  # noqa: PLC0415
    from gpuloom.rpc.settings import TlsConfig  # noqa: PLC0415
    from gpuloom.runtime.clock import SystemClock  # noqa: PLC0415
    from gpuloom.runtime.config import load_config  # noqa: PLC0415
    from gpuloom.runtime.metrics import new_registry  # noqa: PLC0415

    clock, registry = SystemClock(), new_registry("cli")
    rpc = RpcEnvironment(load_config(TlsConfig, endpoint.tls).files(), registry, clock)
    async with RpcChannel(rpc, endpoint.discovery, "discovery") as channel:
        mirror = ClusterMirror(channel, clock, MirrorOptions(with_usage=True))
        following = asyncio.create_task(mirror.run())
        try:
            await asyncio.wait_for(mirror.wait_synced(), timeout_s)
        except TimeoutError:
            raise DeadlineError(
                f"discovery at {endpoint.discovery} did not answer within {timeout_s:g} s"
            ) from None
        finally:
            following.cancel()
            await asyncio.wait({following})
        return mirror.snapshot()
