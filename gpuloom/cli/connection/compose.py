"""`gpuloom --compose`: where the services of `docker compose up` are, as the settings that commands read.

Asks Docker for the published ports, and copies the certificate of the command line out of the volume for as
long as the command runs. Decides nothing about what is asked.
"""

import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from gpuloom.errors import UnavailableError
from gpuloom.roster import GRPC, ROSTER, Kind, Roster

TIMEOUT_S = 30.0
_CERTIFICATES = "certificates"
_TLS_FILES = {
    "GPULOOM_TLS_CERT_FILE": "cli.crt",
    "GPULOOM_TLS_KEY_FILE": "cli.key",
    "GPULOOM_TLS_CA_FILE": "ca.crt",
}


@contextmanager
def compose_environment() -> Iterator[dict[str, str]]:
    """Raise UnavailableError if Docker can't be asked or no mesh runs here."""
    addresses = published_addresses(_containers())
    if not addresses:
        raise UnavailableError("no mesh runs in containers here: start one with `docker compose up`")
    with tempfile.TemporaryDirectory(prefix="gpuloom-") as folder:
        for name in _TLS_FILES.values():
            _docker_compose("cp", f"{_CERTIFICATES}:/certificates/{name}", folder)
        yield addresses | {setting: str(Path(folder, name)) for setting, name in _TLS_FILES.items()}


def published_addresses(containers: Sequence[Mapping[str, Any]], roster: Roster = ROSTER) -> dict[str, str]:
    """The address setting of every service whose gRPC port is published on this machine."""
    known = {row.extra: row for row in roster if row.kind is not Kind.DAEMON and row.has_port(GRPC)}
    found = {}
    for container in containers:
        row = known.get(container.get("Service", ""))
        for published in container.get("Publishers") or ():
            if row and published["TargetPort"] == row.port(GRPC).number and published["PublishedPort"]:
                found[row.address_setting] = f"{published['URL']}:{published['PublishedPort']}"
    return found


def _containers() -> list[dict[str, Any]]:
    # An object a line; Compose before 2.21 wrote one list.
    lines = [orjson.loads(line) for line in _docker_compose("ps", "--format", "json").splitlines() if line]
    return lines[0] if lines and isinstance(lines[0], list) else lines


def _docker_compose(*arguments: str) -> bytes:
    command = ("docker", "compose", *arguments)
    try:
        # Arguments are ours; docker is whichever the user has.
        done = subprocess.run(command, capture_output=True, check=True, timeout=TIMEOUT_S)  # noqa: S603
    except FileNotFoundError:
        raise UnavailableError("--compose needs Docker, and there is no command docker") from None
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"{' '.join(command)} did not end within {TIMEOUT_S:g} s") from None
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip().splitlines()
        raise UnavailableError(f"{' '.join(command)}: {said[-1] if said else 'failed'}") from None
    return done.stdout
