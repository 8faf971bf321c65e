"""A PostgreSQL server for these tests: in a container where there is an engine, else Debian's.

`GPULOOM_TEST_DATABASE_URL` names one that is there already.
"""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster.binaries import REQUIRE_REAL

URL_VARIABLE = "GPULOOM_TEST_DATABASE_URL"
IMAGE = "postgres:17"
_USER = "postgres"
_GONE_WITHIN_S = 30.0
_POLL_S = 0.01


def require_server(environ: Mapping[str, str]) -> None:
    """Skip if there can be no server here; fail where real parts are required."""
    if environ.get(URL_VARIABLE) or _has_engine() or _programs() is not None:
        return
    reason = f"no PostgreSQL: neither a Docker engine, nor Debian's package, nor {URL_VARIABLE}"
    if environ.get(REQUIRE_REAL) == "1":
        pytest.fail(reason)
    pytest.skip(reason)


@contextmanager
def server_url() -> Iterator[str]:
    given = os.environ.get(URL_VARIABLE)
    if given:
        yield given
    elif _has_engine():
        with _in_container() as url:
            yield url
    else:
        programs = _programs()
        assert programs is not None
        with _local(programs) as url:
            yield url


@contextmanager
def _in_container() -> Iterator[str]:
    # Its reaper is an image that can't be had everywhere; leaving the context removes the container.
    os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")
    from testcontainers.community.postgres import PostgresContainer  # noqa: PLC0415 - reads that variable

    with PostgresContainer(IMAGE, driver=None) as container:
        yield container.get_connection_url()


@dataclass(frozen=True)
class LocalServer:
    url: str
    data: Path
    control: Sequence[str]
    options: str

    def crash(self) -> None:
        """kill -9 of all its processes: nothing is written back, and it recovers at its next start."""
        server = int((self.data / "postmaster.pid").read_text().split()[0])
        os.kill(server, signal.SIGSTOP)  # so that it makes no further process meanwhile
        processes = [server, *_children(server)]
        for process in processes:
            os.kill(process, signal.SIGKILL)
        give_up_at = time.monotonic() + _GONE_WITHIN_S
        while any(Path(f"/proc/{process}").exists() for process in processes):
            if time.monotonic() > give_up_at:
                raise TimeoutError("processes of a killed PostgreSQL are still there")
            time.sleep(_POLL_S)
        _run([*self.control, "-o", self.options, "start"])


@contextmanager
def local_server() -> Iterator[LocalServer]:
    """One of Debian's that can be made to crash; skip where there is none."""
    programs = _programs()
    if programs is None:
        pytest.skip("no PostgreSQL of Debian's package here")
    with _local_server(programs, durable=True) as server:
        yield server


@contextmanager
def _local(programs: Path) -> Iterator[str]:
    with _local_server(programs, durable=False) as server:
        yield server.url


@contextmanager
def _local_server(programs: Path, *, durable: bool) -> Iterator[LocalServer]:
    """PostgreSQL refuses to run as root, so root gives the folder to the account of Debian's package."""
    with tempfile.TemporaryDirectory(prefix="gpuloom-postgres-") as folder:
        data, port = Path(folder) / "data", _free_port()
        prefix: list[str] = []
        if os.geteuid() == 0:
            shutil.chown(folder, _USER, _USER)
            prefix = ["runuser", "-u", _USER, "--"]
        _run(
            [
                *prefix,
                str(programs / "initdb"),
                "-D",
                str(data),
                "-U",
                _USER,
                "-A",
                "trust",
                "-N",
                "-E",
                "UTF8",
            ]
        )
        options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder}"
        options += "" if durable else " -c fsync=off"
        control = [*prefix, str(programs / "pg_ctl"), "-D", str(data), "-w", "-l", f"{folder}/log"]
        _run([*control, "-o", options, "start"])
        try:
            yield LocalServer(f"postgresql://{_USER}@127.0.0.1:{port}/postgres", data, control, options)
        finally:
            _run([*control, "-m", "immediate", "stop"])


def _children(process: int) -> list[int]:
    """By the parent that each process names, as the fourth word of its stat: the second may hold spaces."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):  # one that has just ended
            if int(stat.read_text().rpartition(")")[2].split()[1]) == process:
                found.append(int(stat.parent.name))
    return found


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, cwd="/", stdout=subprocess.DEVNULL, timeout=60)  # noqa: S603


def _has_engine() -> bool:
    host = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    path = host.removeprefix("unix://")
    if not Path(path).is_socket():
        return False
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except OSError:
            return False
    return True


def _programs() -> Path | None:
    """The folder of the newest server that Debian installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    return found[-1].parent if found else None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
