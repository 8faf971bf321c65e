"""The part that emulated clouds share: a group of machines over HTTP, on loopback, in a thread."""

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, Any]


@dataclass
class Machine:
    number: int
    state: str = "creating"


@dataclass
class GroupEmulator:
    """A group that works towards its size only when told to, so that tests decide what happened when."""

    size: int = 0
    machines: list[Machine] = field(default_factory=list)
    made: int = 0
    errors: list[Answer] = field(default_factory=list)
    """The next changes are refused with these."""
    requests: list[tuple[str, str, Any]] = field(default_factory=list)
    out_of_capacity: bool = False

    def settle(self) -> None:
        """Machines come up to the size, and those that were told to end are gone."""
        self.machines = [one for one in self.machines if one.state != "deleting"]
        if self.out_of_capacity:
            return
        for one in self.machines:
            one.state = "running"
        while len(self.machines) < self.size:
            self.machines.append(Machine(self.made, "running"))
            self.made += 1

    def delete(self, number: int) -> None:
        for one in self.machines:
            if one.number == number and one.state != "deleting":
                one.state = "deleting"
                self.size -= 1

    def answer(self, method: str, path: str, body: Any) -> Answer:
        raise NotImplementedError

    def headers(self, path: str) -> dict[str, str]:
        return {}


@contextmanager
def served(emulator: GroupEmulator, tls: ssl.SSLContext | None = None) -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _handle(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            raw = self.rfile.read(length)
            body = json.loads(raw) if raw else None
            emulator.requests.append((self.command, self.path, body))
            status, document = (
                emulator.errors.pop(0)
                if emulator.errors and self.command != "GET" and "list" not in self.path
                else emulator.answer(self.command, self.path, body)
            )
            data = json.dumps(document).encode() if document is not None else b""
            self.send_response(status)
            for name, value in emulator.headers(self.path).items():
                self.send_header(name, value)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _handle  # noqa: N815 - http.server's names

        def log_message(self, *arguments: Any) -> None:
            """Silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
