"""Whether a port of this machine is taken, and by whom as far as /proc tells."""

import socket
from collections.abc import Iterable
from pathlib import Path

from gpuloom.errors import ConflictError
from gpuloom.sim.processes.ports import HOST

_LISTENING = "0A"


def refuse_used_ports(ports: Iterable[int]) -> None:
    """Raise ConflictError that names the first port somebody listens on."""
    for port in ports:
        if not _is_free(port):
            raise ConflictError(
                f"port {port} of {HOST} is in use by {_owner(port)}, perhaps of an earlier run: "
                "end it, or take another port"
            )


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as candidate:
        # As servers do: a connection of an earlier run that is only fading away takes no port.
        candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            candidate.bind((HOST, port))
        except OSError:
            return False
    return True


def _owner(port: int) -> str:
    links = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if str(descriptor.readlink()) in links:
                process = descriptor.parent.parent
                name = (process / "comm").read_text(encoding="utf-8").strip()
                return f"process {process.name} ({name})"
        except OSError:
            continue
    return "another process"


def _listening_inodes(port: int) -> list[str]:
    try:
        table = Path("/proc/net/tcp").read_text(encoding="utf-8").splitlines()[1:]
    except OSError:
        return []
    rows = [line.split() for line in table]
    return [row[9] for row in rows if row[3] == _LISTENING and row[1].endswith(f":{port:04X}")]
