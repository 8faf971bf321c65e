"""Our services beside a real control plane with several replicas of the extender, one of which leads.

Each replica has a Pod object of its own, as in a cluster; kube-scheduler finds the leader by its label. The
replicas may reach the API server through a proxy on which a test tampers with their Bindings.
"""

import asyncio
import random
import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from gpuloom.cli.scheduling.scheduler_config import OWN_SCHEDULER
from gpuloom.kube.objects import JsonObject, key_of, uid_of
from gpuloom.kube.resources import PODS
from gpuloom.names import RESOURCE_GPU_MILLI
from gpuloom.rpc.dev_ca import tls_files
from gpuloom.rpc.identity import server_name
from gpuloom.runtime.clock import Clock, deadline
from gpuloom.sim.machines.hardware import MachineSpec
from gpuloom.sim.processes.child_process import ProcessSpec
from gpuloom.sim.processes.ports import HOST, free_ports
from gpuloom.sim.processes.probes import answers_ok
from gpuloom.sim.processes.supervisor import ProcessState
from tests.cluster.api_proxy import ApiProxy, Treatment
from tests.cluster.control_plane import ControlPlane
from tests.cluster.gpu_pods import a_gpu_pod
from tests.cluster.leader_proxy import LeaderProxy
from tests.cluster.mesh import Mesh, MeshLayout, open_foundation
from tests.cluster.shared import NAMESPACE

_POLL_S = 0.05
_PATIENCE_S = 120.0
_CALL_TIMEOUT_S = 2.0


@dataclass(frozen=True)
class ReplicaOptions:
    """`treat` is the API proxy's; None: the replicas reach the API server directly.

    `first_settings` are for the replica that is started, and leads, first.
    """

    count: int = 2
    treat: Callable[[str], Treatment] | None = None
    first_settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Replica:
    name: str
    https: int
    grpc: int
    http: int

    def pod(self) -> JsonObject:
        """No kubelet runs it: it is there to be labelled and stamped."""
        return {
            "metadata": {
                "namespace": NAMESPACE,
                "name": self.name,
                "labels": {"app.kubernetes.io/name": "scheduler-extender"},
            },
            "spec": {
                "schedulerName": "nobody",
                "containers": [{"name": "extender", "image": "registry.example.com/extender:1"}],
            },
        }

    def process(self, layout: MeshLayout, kubeconfig: Path, more: Mapping[str, str]) -> ProcessSpec:
        alone = layout.extender()
        settings = {
            "GPULOOM_EXTENDER_LEADER_ELECTION": "true",
            "GPULOOM_EXTENDER_PORT": str(self.https),
            "GPULOOM_GRPC_PORT": str(self.grpc),
            "GPULOOM_HTTP_PORT": str(self.http),
            "GPULOOM_KUBECONFIG": str(kubeconfig),
            "GPULOOM_POD_NAME": self.name,
            "GPULOOM_POD_NAMESPACE": NAMESPACE,
        }
        return replace(
            alone,
            name=self.name,
            log_path=layout.logs / f"{self.name}.log",
            environment={**alone.environment, **settings, **more},
            ready=answers_ok(f"http://{HOST}:{self.http}/readyz", layout.clock),
        )


@dataclass(frozen=True)
class ReplicatedMesh:
    mesh: Mesh
    replicas: tuple[Replica, ...]
    api: ApiProxy
    service: LeaderProxy
    clock: Clock

    async def leader(self, other_than: str = "") -> str:
        """Who alone wears the label, once somebody does. Raise TimeoutError."""
        async with deadline(self.clock, _PATIENCE_S):
            while len(self.service.leaders) != 1 or self.service.leaders == (other_than,):
                await self.clock.sleep(_POLL_S)
        return self.service.leaders[0]

    async def until_restarted(self, name: str, restarts: int = 1) -> None:
        """Until that replica was started so many times again, and is ready."""
        supervisor = self.mesh.supervisor

        def is_back() -> bool:
            (status,) = (one for one in supervisor.statuses() if one.name == name)
            return status.restarts >= restarts and status.state is ProcessState.RUNNING

        async with deadline(self.clock, _PATIENCE_S):
            await supervisor.until(lambda _: is_back())

    async def until_served(self) -> float:
        """How long it took until a call of kube-scheduler's kind was answered through the Service."""
        started_s = self.clock.monotonic()
        pod = a_gpu_pod("probe", {RESOURCE_GPU_MILLI: "1000"})
        pod["metadata"]["uid"] = "probe"
        call = {"Pod": pod, "NodeNames": list(self.mesh.layout.nodes)}
        async with deadline(self.clock, _PATIENCE_S):
            while await self._call("filter", call) != 200:
                await self.clock.sleep(_POLL_S)
        return self.clock.monotonic() - started_s

    async def ask_to_bind(self, pod: JsonObject, node: str) -> None:
        """Once, as kube-scheduler does, but nobody asks again or writes to the pod when it fails."""
        namespace, name = key_of(pod)
        call = {"PodName": name, "PodNamespace": namespace, "PodUID": uid_of(pod), "Node": node}
        await self._call("bind", call)

    async def takeover_s(self, name: str) -> float:
        """From its lease to serving, as that replica measured it."""
        (replica,) = (one for one in self.replicas if one.name == name)
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://{HOST}:{replica.http}/metrics") as answer,
        ):
            text = await answer.text()
        samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
        wanted = "gpuloom_scheduler_extender_takeover_duration_seconds"
        return next(sample.value for sample in samples if sample.name == wanted)

    async def _call(self, verb: str, call: JsonObject) -> int:
        """The status of the answer; 0 if there is none in time."""
        files = tls_files(self.mesh.layout.certificates, "kube_scheduler")
        context = ssl.create_default_context(cafile=files.ca_file)
        context.load_cert_chain(files.cert_file, files.key_file)
        url = f"https://{HOST}:{self.service.port}/{verb}"
        name = server_name("scheduler_extender")
        try:
            async with (
                deadline(self.clock, _CALL_TIMEOUT_S),
                aiohttp.ClientSession() as session,
                session.post(url, json=call, ssl=context, server_hostname=name) as answer,
            ):
                return answer.status
        except (aiohttp.ClientError, OSError):
            return 0


@asynccontextmanager
async def open_replicated_mesh(
    plane: ControlPlane, machines: Sequence[MachineSpec], clock: Clock, options: ReplicaOptions | None = None
) -> AsyncIterator[ReplicatedMesh]:
    """Everything runs and is ready, and the first replica leads. Raise StartError if one does not come up."""
    options = options or ReplicaOptions()
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(ApiProxy(plane.url, plane.authority_file, clock, options.treat))
        foundation = await stack.enter_async_context(open_foundation(plane, machines, clock))
        layout, supervisor = foundation.layout, foundation.supervisor
        client = await stack.enter_async_context(plane.client())
        await supervisor.start([[layout.discovery()]])
        replicas = _number(options.count)
        ports = {replica.name: replica.https for replica in replicas}
        service = await stack.enter_async_context(LeaderProxy(client, NAMESPACE, ports, clock))
        await asyncio.gather(*(client.create(PODS, replica.pod()) for replica in replicas))
        mesh = replace(foundation, extenders=tuple(ports))
        opened = ReplicatedMesh(mesh, replicas, api, service, clock)
        await _start(opened, options)
        reached = replace(layout, ports=layout.ports.with_extender_at(service.port))
        await plane.start_scheduler(reached.scheduler_config(OWN_SCHEDULER))
        yield opened


async def _start(opened: ReplicatedMesh, options: ReplicaOptions) -> None:
    """One after the other, so that it is known who leads."""
    layout, supervisor = opened.mesh.layout, opened.mesh.supervisor
    kubeconfig = layout.accounts["scheduler-extender"]
    if options.treat is not None:
        kubeconfig = opened.api.kubeconfig(kubeconfig, layout.directory / "extender.kubeconfig")
    first, *others = opened.replicas
    await supervisor.start([[first.process(layout, kubeconfig, options.first_settings)]])
    await opened.leader()
    await supervisor.start([[other.process(layout, kubeconfig, {}) for other in others]])


def _number(count: int) -> tuple[Replica, ...]:
    ports = iter(free_ports(3 * count, random.Random()))
    return tuple(
        Replica(f"extender-{number}", next(ports), next(ports), next(ports)) for number in range(1, count + 1)
    )
