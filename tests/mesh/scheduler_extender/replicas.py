"""Extenders beside each other: in this process, or as processes that can be stopped and killed."""

import asyncio
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from gpuloom.rpc.dev_ca import tls_files
from gpuloom.sim.kubeapi import SimKubeApi
from tests.mesh.node_agent.builders import Service
from tests.mesh.scheduler_extender.kubernetes import JsonObject
from tests.mesh.scheduler_extender.line import Answer, a_line, shown_by
from tests.mesh.scheduler_extender.mesh import Cluster
from tests.mesh.waiting import PATIENCE_S

LEADER = "gpuloom.dev/leader"
NAMESPACE = "kube-system"
LEASE = "6"
"""The product's own: one that ended because the machine stood still for two seconds is not started again."""
SHORT_LEASE = "2"
SERVES = b'"NodeNames"'
STANDS_BY = b"standby; leader is"

_LOOK_EVERY_S = 0.02


def add_own_pod(api: SimKubeApi, name: str, *, app: str = "scheduler-extender", leads: bool = False) -> None:
    """The pod that a replica runs in, as its Deployment makes it."""
    labels = {"app.kubernetes.io/name": app} | ({LEADER: "true"} if leads else {})
    spec = {"nodeName": "elsewhere", "containers": [{"name": "main", "image": "example.test/main"}]}
    metadata = {"name": name, "namespace": NAMESPACE, "labels": labels}
    api.store.create("pods", {"metadata": metadata, "spec": spec})


def labelled(api: SimKubeApi) -> list[str]:
    """The pods that the Service would choose."""
    return sorted(pod["metadata"]["name"] for pod in api.store.select("pods", labels=f"{LEADER}=true"))


def of_replica(name: str, lease_duration: str = LEASE) -> dict[str, str]:
    return {
        "GPULOOM_EXTENDER_LEADER_ELECTION": "true",
        "GPULOOM_EXTENDER_LEASE_DURATION": lease_duration,
        "GPULOOM_POD_NAME": name,
        "GPULOOM_POD_NAMESPACE": NAMESPACE,
    }


async def start_replica(cluster: Cluster, name: str, lease_duration: str = LEASE) -> Service:
    """In this process, in a pod of its own."""
    add_own_pod(cluster.api, name)
    return await cluster.start_extender(**of_replica(name, lease_duration))


def serves(service: Service) -> bool:
    """By its metric, which is what an operator sees."""
    return service.app.registry.get_sample_value("gpuloom_scheduler_extender_leader") == 1.0


@dataclass
class Process:
    """One extender as its own process."""

    process: asyncio.subprocess.Process
    port: int
    folder: Path

    async def ask(self, verb: str, body: JsonObject) -> Answer:
        async with a_line(self.port, shown_by(self.folder, "kube_scheduler")) as line:
            return await line.post(f"/{verb}", body)

    async def said(self, body: JsonObject) -> bytes:
        """What it answers to a filter; empty if it does not listen."""
        try:
            return (await self.ask("filter", body)).body
        except (OSError, asyncio.IncompleteReadError):
            return b""

    def is_stopped(self) -> bool:
        state = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state == "T"

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)


@asynccontextmanager
async def a_process(cluster: Cluster, name: str, **settings: str) -> AsyncIterator[Process]:
    add_own_pod(cluster.api, name)
    port, files = _free_port(), tls_files(cluster.folder, "scheduler_extender")
    environment = {
        "GPULOOM_TLS_CERT_FILE": str(files.cert_file),
        "GPULOOM_TLS_KEY_FILE": str(files.key_file),
        "GPULOOM_TLS_CA_FILE": str(files.ca_file),
        "GPULOOM_KUBECONFIG": str(cluster.folder / "kubeconfig"),
        "GPULOOM_HTTP_HOST": "127.0.0.1",
        "GPULOOM_HTTP_PORT": "0",
        **cluster.extender_settings(),
        "GPULOOM_EXTENDER_PORT": str(port),
        **settings,
    }
    with (cluster.folder / f"{name}.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "services.scheduler_extender", env=environment, stdout=log, stderr=log
        )
    try:
        yield Process(process, port, cluster.folder)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def until_it_says(
    process: Process, body: JsonObject, text: bytes, timeout_s: float = PATIENCE_S
) -> None:
    """Return as soon as a filter is answered with this; fail if it takes longer."""
    async with asyncio.timeout(timeout_s):
        while True:
            if text in await process.said(body):
                return
            await asyncio.sleep(_LOOK_EVERY_S)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
