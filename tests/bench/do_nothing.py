"""An extender that decides nothing: the first few nodes it is asked about, and the first of them is best.

What it costs is what any extender in Python costs. With --kubeconfig it binds too, by a plain Binding.
"""

import argparse
import asyncio
import re
import ssl
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import orjson

from gpuloom.kube.access import access_from_kubeconfig
from gpuloom.kube.client import KubeClient, PodBinding
from gpuloom.rpc.dev_ca import tls_files
from gpuloom.runtime.clock import Clock, SystemClock
from gpuloom.sim.command import CommandParser, run_command
from gpuloom.sim.processes.ports import HOST
from tests.bench.calls import CallRecorder

_CONTENT_LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]+)\r\n", re.IGNORECASE)
_BUFFER_BYTES = 4 * 1024 * 1024

Verb = Callable[[bytes], Awaitable[bytes]]


class DoNothing:
    """HTTP/1.1 with kept connections, as far as kube-scheduler needs it."""

    def __init__(
        self, shortlist: int, client: KubeClient | None, recorder: CallRecorder, clock: Clock
    ) -> None:
        self._shortlist = shortlist
        self._client = client
        self._recorder = recorder
        self._clock = clock
        self._verbs: dict[str, Verb] = {
            "filter": self._filter,
            "prioritize": self._prioritize,
            "preempt": self._preempt,
            "bind": self._bind,
        }

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                started_s = self._clock.monotonic()
                verb = head.split(b" ", 2)[1].strip(b"/").decode()
                found = _CONTENT_LENGTH.search(head)
                answer = await self._verbs[verb](await reader.readexactly(int(found[1]) if found else 0))
                self._recorder.record(verb, self._clock.monotonic() - started_s)
                writer.write(
                    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
                    % len(answer)
                )
                writer.write(answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()

    async def _filter(self, body: bytes) -> bytes:
        names = orjson.loads(body)["NodeNames"]
        return orjson.dumps({"NodeNames": names[: self._shortlist], "FailedNodes": {}, "Error": ""})

    async def _prioritize(self, body: bytes) -> bytes:
        names = orjson.loads(body)["NodeNames"]
        return orjson.dumps([{"Host": name, "Score": 0 if i else 10} for i, name in enumerate(names)])

    async def _preempt(self, body: bytes) -> bytes:
        return orjson.dumps({"NodeNameToMetaVictims": {}})

    async def _bind(self, body: bytes) -> bytes:
        call = orjson.loads(body)
        binding = PodBinding(call["PodNamespace"], call["PodName"], call["Node"], call["PodUID"])
        if self._client is None:
            return orjson.dumps({"Error": "not asked to bind"})
        await self._client.bind(binding)
        return orjson.dumps({"Error": ""})


def main() -> int:
    parser = CommandParser(prog="python -m tests.bench.do_nothing", description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--certificates", type=Path, required=True, help="folder of the development CA")
    parser.add_argument("--calls", type=Path, required=True, help="file for the time of every call")
    parser.add_argument("--shortlist", type=int, required=True)
    parser.add_argument("--kubeconfig", type=Path, help="bind through this API server")
    return run_command("do-nothing", lambda: _run(parser.parse_args()))


async def _run(options: argparse.Namespace) -> None:
    clock = SystemClock()
    recorder = CallRecorder(options.calls)
    try:
        async with AsyncExitStack() as stack:
            client = None
            if options.kubeconfig is not None:
                access = access_from_kubeconfig([options.kubeconfig], None, clock)
                client = await stack.enter_async_context(KubeClient(access, clock))
            extender = DoNothing(options.shortlist, client, recorder, clock)
            tls = _tls(options.certificates)
            server = await asyncio.start_server(
                extender.serve, HOST, options.port, ssl=tls, limit=_BUFFER_BYTES
            )
            await stack.enter_async_context(server)
            await server.serve_forever()
    finally:
        recorder.write()


def _tls(certificates: Path) -> ssl.SSLContext:
    """As strict as our own port: only who shows a certificate of this CA may call."""
    files = tls_files(certificates, "scheduler_extender")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=files.ca_file)
    context.load_cert_chain(files.cert_file, files.key_file)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


if __name__ == "__main__":
    sys.exit(main())
