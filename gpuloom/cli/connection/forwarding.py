"""`gpuloom --kube`: a cluster's services through its API server, as the settings that commands read.

Lets kubectl forward a port of this machine to every service, and takes the command line's certificate out of
the cluster, both for as long as the command runs. Decides nothing about what is asked.
"""

import base64
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from gpuloom.errors import NotFoundError, UnavailableError
from gpuloom.roster import GRPC, ROSTER, Kind, Roster

TIMEOUT_S = 30.0
OURS = "app.kubernetes.io/part-of=gpuloom"
_TLS_FILES = {
    "GPULOOM_TLS_CERT_FILE": "tls.crt",
    "GPULOOM_TLS_KEY_FILE": "tls.key",
    "GPULOOM_TLS_CA_FILE": "ca.crt",
}
_FORWARDED = re.compile(rb"Forwarding from (127\.0\.0\.1:\d+) ->")


@dataclass(frozen=True, slots=True)
class Target:
    """A Service to which a port is forwarded, and the setting that gets the address here."""

    namespace: str
    name: str
    port: int
    setting: str


@contextmanager
def cluster_environment(kubectl: Sequence[str], wanted: Iterable[str] = ()) -> Iterator[dict[str, str]]:
    """Settings for the services that `kubectl` reaches; `wanted` names some; default: all.

    Raise UnavailableError if kubectl does not reach it, NotFoundError if GPULoom is not there.
    """
    services = _read(kubectl, "get", "services", "--all-namespaces", "--selector", OURS, "-o", "json")
    targets = [target for target in targets_of(services["items"]) if not wanted or target.setting in wanted]
    if not targets:
        raise NotFoundError("no service of GPULoom is in this cluster: `gpuloom doctor` says what is missing")
    secret = _certificate(kubectl, targets[0].namespace)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpuloom-")))
        for name in _TLS_FILES.values():
            (folder / name).write_bytes(base64.b64decode(secret["data"][name]))
        started = [(target, stack.enter_context(_forwarding(kubectl, target))) for target in targets]
        # All of them start side by side; each then tells its port.
        addresses = {
            target.setting: here for target, process in started if (here := _address(process, target))
        }
        yield addresses | {setting: str(folder / name) for setting, name in _TLS_FILES.items()}


def targets_of(services: Iterable[Mapping[str, Any]], roster: Roster = ROSTER) -> list[Target]:
    """The Services with a gRPC port; agents, of which there are many, are not asked this way."""
    known = {row.extra: row for row in roster if row.kind is not Kind.DAEMON and row.has_port(GRPC)}
    found = []
    for service in services:
        metadata = service["metadata"]
        row = known.get((metadata.get("labels") or {}).get("app.kubernetes.io/name", ""))
        ports = [port["port"] for port in service["spec"].get("ports") or () if port.get("name") == GRPC]
        if row is not None and ports:
            found.append(Target(metadata["namespace"], metadata["name"], ports[0], row.address_setting))
    return found


def _certificate(kubectl: Sequence[str], namespace: str) -> dict[str, Any]:
    secrets = _read(kubectl, "-n", namespace, "get", "secrets", "-o", "json")["items"]
    for secret in secrets:
        if secret["metadata"]["name"].endswith("-cli-tls") and set(_TLS_FILES.values()) <= set(
            secret["data"]
        ):
            return dict(secret)
    raise NotFoundError(
        f"namespace {namespace} has no Secret <release>-cli-tls with the command line's certificate"
    )


def _read(kubectl: Sequence[str], *arguments: str) -> dict[str, Any]:
    command = (*kubectl, *arguments)
    try:
        # Arguments are ours; kubectl is whichever the user has.
        done = subprocess.run(command, capture_output=True, check=True, timeout=TIMEOUT_S)  # noqa: S603
    except FileNotFoundError:
        raise UnavailableError(f"--kube needs kubectl, and there is no command {kubectl[0]}") from None
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"{' '.join(command)} did not end within {TIMEOUT_S:g} s") from None
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip().splitlines()
        raise UnavailableError(f"{' '.join(command)}: {said[-1] if said else 'failed'}") from None
    return dict(orjson.loads(done.stdout))


@contextmanager
def _forwarding(kubectl: Sequence[str], target: Target) -> Iterator["subprocess.Popen[bytes]"]:
    place = (f"service/{target.name}", f":{target.port}", "--address", "127.0.0.1")
    process = subprocess.Popen(  # noqa: S603
        (*kubectl, "-n", target.namespace, "port-forward", *place),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _address(process: "subprocess.Popen[bytes]", target: Target) -> str:
    """Where it forwards from; empty, and told, if it does not, as for a service without a ready pod."""
    said = b""
    for line in process.stdout or ():
        if match := _FORWARDED.search(line):
            return match[1].decode()
        said = line
    text = said.decode(errors="replace").strip() or "it ended"
    sys.stderr.write(f"gpuloom: no way to {target.namespace}/{target.name}: {text}\n")
    return ""
