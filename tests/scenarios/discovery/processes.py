"""Replicas of discovery as processes of their own, as they ship: they can be read, stopped and killed."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from gpuloom.rpc.dev_ca import tls_files
from gpuloom.sim.mesh.plan import clean_environment
from tests.scenarios.discovery.agents import HOST

_LOOK_EVERY_S = 0.05
_ANSWER_S = 2.0
_END_S = 20.0


@dataclass(frozen=True)
class Surroundings:
    """`folder` has the certificates of a development authority, and gets the logs."""

    folder: Path
    kubeconfig: Path
    agents_file: Path


@dataclass(frozen=True)
class ReplicaProcess:
    process: asyncio.subprocess.Process
    grpc_port: int
    http_port: int
    log_file: Path

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def log(self) -> str:
        return self.log_file.read_text(encoding="utf-8")

    async def is_ready(self) -> bool:
        return await self._get("/readyz") is not None

    async def is_elected(self) -> bool:
        return await self.value("gpuloom_discovery_elected") == 1.0

    async def writes(self) -> float:
        """How many writes to nodes it made, also those that were refused."""
        return await self.value("gpuloom_discovery_node_writes_total") or 0.0

    async def value(self, metric: str) -> float | None:
        """The sum of a metric over its labels; None if the process does not answer or does not have it."""
        text = await self._get("/metrics")
        samples = [
            sample.value
            for family in text_string_to_metric_families(text or "")
            for sample in family.samples
            if sample.name == metric
        ]
        return sum(samples) if samples else None

    async def _get(self, path: str) -> str | None:
        limit = aiohttp.ClientTimeout(total=_ANSWER_S)
        try:
            async with (
                aiohttp.ClientSession(timeout=limit) as session,
                session.get(f"http://{HOST}:{self.http_port}{path}") as answer,
            ):
                return await answer.text() if answer.status == 200 else None
        except (aiohttp.ClientError, TimeoutError):
            return None


@asynccontextmanager
async def a_replica(
    around: Surroundings, name: str, ports: tuple[int, int], **settings: str
) -> AsyncIterator[ReplicaProcess]:
    """`ports` for gRPC and for its status. Its end is asked for with the block, and not with a kill."""
    files = tls_files(around.folder, "discovery")
    environment = {
        **clean_environment(os.environ),
        "GPULOOM_TLS_CERT_FILE": str(files.cert_file),
        "GPULOOM_TLS_KEY_FILE": str(files.key_file),
        "GPULOOM_TLS_CA_FILE": str(files.ca_file),
        "GPULOOM_KUBECONFIG": str(around.kubeconfig),
        "GPULOOM_AGENTS_FILE": str(around.agents_file),
        "GPULOOM_GRPC_HOST": HOST,
        "GPULOOM_GRPC_PORT": str(ports[0]),
        "GPULOOM_HTTP_HOST": HOST,
        "GPULOOM_HTTP_PORT": str(ports[1]),
        **settings,
    }
    log_file = around.folder / f"{name}.log"
    with log_file.open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "services.discovery", env=environment, stdout=log, stderr=log
        )
    replica = ReplicaProcess(process, *ports, log_file)
    try:
        yield replica
    finally:
        await _end(process)


async def the_elected(*replicas: ReplicaProcess, timeout_s: float = 30.0) -> ReplicaProcess:
    """The one of them that writes, once there is one and all are ready."""
    loop = asyncio.get_running_loop()
    ends_s = loop.time() + timeout_s
    while loop.time() < ends_s:
        if all([await replica.is_ready() for replica in replicas]):
            for replica in replicas:
                if await replica.is_elected():
                    return replica
        await asyncio.sleep(_LOOK_EVERY_S)
    said = "\n".join(replica.log()[-2000:] for replica in replicas)
    raise AssertionError(f"no replica was elected within {timeout_s:g} s:\n{said}")


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.send_signal(signal.SIGCONT)
    process.terminate()
    try:
        async with asyncio.timeout(_END_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
