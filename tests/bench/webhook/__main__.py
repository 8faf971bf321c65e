"""How long the API server waits for the webhook, at a steady rate, beside a webhook that does nothing.

    python -m tests.bench.webhook --rate 200 --seconds 20

Both are processes of their own and are called over TLS with kept connections, in turns within one run, so
that a machine that others use too is the same for both. Ours looks every pod up, asks a stand-in optimizer
for advice on kinds of pods that it has not asked about lately, and rewrites the pod. Of ten pods one is of a
kind of its own. A call that is due is sent whether or not the one before it was answered.
"""

import argparse
import asyncio
import itertools
import random
import ssl
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import orjson

from gpuloom.rpc.dev_ca import CertificateOrder, issue_development_certificates, tls_files
from gpuloom.runtime.clock import SystemClock
from gpuloom.sim.command import CommandParser, run_command
from gpuloom.sim.processes.child_process import ProcessSpec
from gpuloom.sim.processes.ports import HOST, free_ports
from gpuloom.sim.processes.probes import answers_ok
from gpuloom.sim.processes.supervisor import Supervisor
from tests.bench.measures import Aim, durations

ROUNDS = 5
MOST_MS = 10.0
KINDS = 20
_numbers = itertools.count()
_CLOCK = SystemClock()


@dataclass(frozen=True)
class Variant:
    name: str
    port: int


def review(number: int) -> bytes:
    """A pod as the API server sends it, which ours makes smaller."""
    kind = f"once-{number}" if number % 10 == 0 else f"serve-{number % KINDS}"
    container = {
        "name": "main",
        "image": f"registry.example.com/team/{kind}:1.4",
        "resources": {"limits": {"nvidia.com/gpu": "1", "cpu": "4"}, "requests": {"nvidia.com/gpu": "1"}},
        "env": [{"name": f"VARIABLE_{each}", "value": "x" * 32} for each in range(20)],
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "serve-", "namespace": "team", "labels": {"app": "serve"}},
        "spec": {"containers": [container], "schedulerName": "default-scheduler"},
    }
    request = {
        "uid": f"u-{number}",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "operation": "CREATE",
        "namespace": "team",
        "userInfo": {"username": "system:serviceaccount:kube-system:replicaset-controller"},
        "object": pod,
        "oldObject": None,
    }
    return orjson.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})


async def call_at(
    rate: int, seconds: float, variant: Variant, tls: ssl.SSLContext
) -> tuple[list[float], int]:
    """How long each call took, in seconds, and how many answers changed the pod."""
    connector = aiohttp.TCPConnector(ssl=tls, limit=0)
    url = f"https://{HOST}:{variant.port}/mutate-pods"
    took: list[float] = []
    changed = 0

    async with aiohttp.ClientSession(connector=connector) as session:

        async def call() -> None:
            nonlocal changed
            began_s = _CLOCK.monotonic()
            async with session.post(url, data=review(next(_numbers))) as answer:
                response = orjson.loads(await answer.read())["response"]
            took.append(_CLOCK.monotonic() - began_s)
            assert response["allowed"]
            changed += "patch" in response

        began_s = _CLOCK.monotonic()
        async with asyncio.TaskGroup() as group:
            for number in range(int(rate * seconds)):
                await _CLOCK.sleep(began_s + number / rate - _CLOCK.monotonic())
                group.create_task(call())
    return took, changed


@asynccontextmanager
async def both(folder: Path) -> AsyncIterator[tuple[Variant, Variant, ssl.SSLContext]]:
    certificates = folder / "certificates"
    issue_development_certificates(certificates, CertificateOrder(), _CLOCK)
    ours, nothing, *probes = free_ports(4, random.Random())
    async with Supervisor(_CLOCK) as supervisor:
        specs = [
            ProcessSpec(
                name=name,
                argv=(
                    *(sys.executable, "-P", "-m", "tests.bench.webhook.serving"),
                    *("--variant", name, "--port", str(port), "--probe-port", str(probe)),
                    *("--certificates", str(certificates)),
                ),
                log_path=folder / f"{name}.log",
                environment={"PYTHONPATH": str(Path(__file__).parents[3])},
                working_dir=folder,
                ready=answers_ok(f"http://{HOST}:{probe}/", _CLOCK),
            )
            for name, port, probe in (("ours", ours, probes[0]), ("nothing", nothing, probes[1]))
        ]
        await supervisor.start([specs])
        tls = ssl.create_default_context(cafile=tls_files(certificates, "webhook").ca_file)
        yield Variant("nothing", nothing), Variant("ours", ours), tls


async def _run(options: argparse.Namespace) -> None:
    found: dict[str, list[float]] = {"nothing": [], "ours": []}
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpuloom-")))
        nothing, ours, tls = await stack.enter_async_context(both(folder))
        for variant in (nothing, ours):
            await call_at(options.rate, 2.0, variant, tls)
        for _ in range(ROUNDS):
            for variant in (nothing, ours):
                took, changed = await call_at(options.rate, options.seconds / ROUNDS, variant, tls)
                found[variant.name] += took
                assert changed == (len(took) if variant is ours else 0)
    for name, took in found.items():
        told = durations(took)
        assert told is not None
        sys.stdout.write(
            f"{name:8} {told.count} calls at {options.rate}/s: p50 {told.p50_ms:.2f} ms, "
            f"p99 {told.p99_ms:.2f} ms, highest {told.highest_ms:.1f} ms\n"
        )
    measured = durations(found["ours"])
    assert measured is not None
    sys.stdout.write(Aim("p99 of ours", measured.p99_ms, MOST_MS, "ms").line() + "\n")


def main() -> int:
    parser = CommandParser(prog="python -m tests.bench.webhook", description=__doc__)
    parser.add_argument("--rate", type=int, default=200, help="reviews a second")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each of the two, in all")
    return run_command("bench-webhook", lambda: _run(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
