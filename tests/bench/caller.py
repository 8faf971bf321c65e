"""Asks an extender to filter, again and again, and keeps how long each answer took to come.

This is the wait that kube-scheduler has: with TLS, with whatever else the extender does at that moment, and
with processors that are busy. Filter has no effect, so these calls change nothing but add a few to the rest.
"""

import argparse
import http.client
import signal
import ssl
import sys
import time
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

import orjson

from gpuloom.rpc.dev_ca import tls_files
from gpuloom.sim.processes.ports import HOST

TIMEOUT_S = 10.0


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.caller", description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--certificates", type=Path, required=True, help="folder of the development CA")
    parser.add_argument("--bodies", type=Path, required=True, help="JSON list of calls, sent in turn")
    parser.add_argument("--waits", type=Path, required=True, help="file for the outcome")
    parser.add_argument("--interval", type=float, required=True, help="seconds from call to call")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    waits: list[tuple[float, float]] = []
    bodies = [orjson.dumps(body) for body in orjson.loads(options.bodies.read_bytes())]
    connection = http.client.HTTPSConnection(
        HOST, options.port, context=_tls(options.certificates), timeout=TIMEOUT_S
    )
    try:
        for body in cycle(bodies):
            waits.append(_call(connection, body))
            # No injected clock: this process is nothing but a measurement of real time.
            time.sleep(options.interval)
    finally:
        options.waits.write_bytes(orjson.dumps(waits))


def read_waits(path: Path, first_s: float, last_s: float) -> list[float]:
    """Of the calls that began between two moments of this machine's monotonic clock."""
    try:
        waits: Sequence[tuple[float, float]] = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        return []
    return [waited_s for began_s, waited_s in waits if first_s <= began_s <= last_s]


def _call(connection: http.client.HTTPSConnection, body: bytes) -> tuple[float, float]:
    began_s = time.monotonic()
    connection.request("POST", "/filter", body, {"Content-Type": "application/json"})
    connection.getresponse().read()
    return began_s, time.monotonic() - began_s


def _tls(certificates: Path) -> ssl.SSLContext:
    files = tls_files(certificates, "kube_scheduler")
    context = ssl.create_default_context(cafile=files.ca_file)
    context.load_cert_chain(files.cert_file, files.key_file)
    return context


if __name__ == "__main__":
    main()
