"""One node: its machine, its pods with their processes, its kubelet, and how its agent is called."""

import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from grpc import aio

from gpuloom.kube.objects import JsonObject
from gpuloom.kubelet import podresources_pb2
from gpuloom.kubelet.podresources_pb2_grpc import (
    PodResourcesListerServicer,
    add_PodResourcesListerServicer_to_server,
)
from gpuloom.rpc.dev_ca import tls_files
from gpuloom.runtime.clock import Clock
from gpuloom.sim.kubeapi import SimKubeApi
from gpuloom.sim.kubeapi.verbs.store import STATUS
from gpuloom.sim.mesh.plan import clean_environment
from gpuloom.sim.processes.child_process import ProcessSpec
from gpuloom.sim.processes.ports import HOST
from gpuloom.sim.processes.probes import answers_ok
from tests.bench.agent.variants import Given, Variant, devices, instances, machine_keys
from tests.nvml.library import STATE_VARIABLE, Standin

_CONTAINER = "main"
_PROJECT = Path(__file__).parents[3]


@dataclass(frozen=True, slots=True)
class Ground:
    """What all nodes stand on: a folder with certificates and a kubeconfig, and the stand-in library."""

    folder: Path
    library: Path


@dataclass(frozen=True, slots=True)
class Ports:
    grpc: int
    http: int
    exporter: int


class Node:
    def __init__(self, ground: Ground, variant: Variant, ports: Ports) -> None:
        self.variant = variant
        self.ports = ports
        self.folder = ground.folder / variant.name
        self._ground = ground
        # Pods have the same names on all nodes of a layout.
        self._namespace = f"team-{variant.name}"
        self._given = devices(variant.layout)
        self.folder.mkdir()
        self.standin = Standin(self.folder / "state", machine_keys(variant.layout))
        self.standin.put_instances(*instances(variant.layout))

    def register(self, api: SimKubeApi) -> None:
        """Tell Kubernetes of the node and its pods, whose processes run from now on."""
        api.store.create("namespaces", {"metadata": {"name": self._namespace}})
        api.store.create("nodes", {"metadata": {"name": self.variant.name}})
        for given in self._given:
            pod = api.store.create("pods", _pod(given, self._namespace, self.variant.name))
            api.store.update("pods", {**pod, "status": _running(given)}, STATUS)
            _add_process(self.folder / "proc", given, str(pod["metadata"]["uid"]))

    @asynccontextmanager
    async def kubelet(self) -> AsyncIterator[None]:
        server = aio.server()
        add_PodResourcesListerServicer_to_server(_Lister(self._namespace, self._given), server)
        server.add_insecure_port(f"unix://{self._socket}")
        await server.start()
        try:
            yield
        finally:
            await server.stop(0)

    def agent(self, clock: Clock) -> ProcessSpec:
        return ProcessSpec(
            name=self.variant.name,
            argv=(sys.executable, "-P", "-m", "services.node_agent"),
            log_path=self.folder / "agent.log",
            environment=clean_environment(os.environ) | self._settings(),
            working_dir=self.folder,
            ready=answers_ok(f"http://{HOST}:{self.ports.http}/readyz", clock),
        )

    @property
    def _socket(self) -> Path:
        return self.folder / "kubelet.sock"

    def _settings(self) -> dict[str, str]:
        files = tls_files(self._ground.folder, "node_agent")
        return {
            "PYTHONPATH": str(_PROJECT),
            "LD_LIBRARY_PATH": str(self._ground.library.parent),
            STATE_VARIABLE: str(self.standin.path),
            "GPULOOM_NODE_NAME": self.variant.name,
            "GPULOOM_AGENT_DRIVER": "nvml",
            "GPULOOM_AGENT_MODE": "nvidia",
            "GPULOOM_AGENT_EXPORTER": "on",
            "GPULOOM_AGENT_EXPORTER_PORT": str(self.ports.exporter),
            "GPULOOM_AGENT_PROC_DIR": str(self.folder / "proc"),
            "GPULOOM_AGENT_SAMPLE_INTERVAL": f"{self.variant.interval_s:g}s",
            "GPULOOM_AGENT_STATE_DIR": str(self.folder),
            "GPULOOM_KUBELET_SOCKET": str(self._socket),
            "GPULOOM_GRPC_HOST": HOST,
            "GPULOOM_GRPC_PORT": str(self.ports.grpc),
            "GPULOOM_HTTP_HOST": HOST,
            "GPULOOM_HTTP_PORT": str(self.ports.http),
            "GPULOOM_KUBECONFIG": str(self._ground.folder / "kubeconfig"),
            "GPULOOM_TLS_CERT_FILE": str(files.cert_file),
            "GPULOOM_TLS_KEY_FILE": str(files.key_file),
            "GPULOOM_TLS_CA_FILE": str(files.ca_file),
        }


class _Lister(PodResourcesListerServicer):
    """A kubelet that gave every device to a pod of its own."""

    def __init__(self, namespace: str, given: Sequence[Given]) -> None:
        self._answer = podresources_pb2.ListPodResourcesResponse(
            pod_resources=[_listed(namespace, device) for device in given]
        )

    async def List(self, request: Any, context: Any) -> podresources_pb2.ListPodResourcesResponse:
        return self._answer

    async def Get(self, request: Any, context: Any) -> NoReturn:
        raise AssertionError("agents list")

    async def GetAllocatableResources(self, request: Any, context: Any) -> NoReturn:
        raise AssertionError("agents list")


def _listed(namespace: str, given: Given) -> podresources_pb2.PodResources:
    held = podresources_pb2.ContainerDevices(resource_name=given.resource, device_ids=[given.device_id])
    container = podresources_pb2.ContainerResources(name=_CONTAINER, devices=[held])
    return podresources_pb2.PodResources(namespace=namespace, name=given.pod, containers=[container])


def _pod(given: Given, namespace: str, node: str) -> JsonObject:
    limits = {given.resource: "1"}
    container = {"name": _CONTAINER, "image": "example.test/main", "resources": {"limits": limits}}
    return {
        "metadata": {"name": given.pod, "namespace": namespace},
        "spec": {"nodeName": node, "containers": [container]},
    }


def _running(given: Given) -> JsonObject:
    statuses = [{"name": _CONTAINER, "containerID": f"containerd://{_container_id(given)}"}]
    return {"phase": "Running", "containerStatuses": statuses}


def _add_process(proc: Path, given: Given, pod_uid: str) -> None:
    """In a folder that looks as the host's /proc does."""
    folder = proc / str(given.pid)
    folder.mkdir(parents=True)
    fields = " ".join(["S", *["0"] * 18, "77", *["0"] * 30])
    (folder / "stat").write_text(f"{given.pid} (python3) {fields}\n")
    (folder / "cgroup").write_text(f"0::/kubepods/pod{pod_uid}/{_container_id(given)}\n")


def _container_id(given: Given) -> str:
    return f"{given.pid:064x}"
