"""A cluster in which ordinary pods have a network: control plane, scheduler, nodes, kube-proxy and CoreDNS.

async with open_networked_cluster(directory, {"real-a": RuntimeLine.CONTAINERD_2}, clock) as cluster:
    await cluster.load_image(archive)  # of `docker save`; pods need imagePullPolicy Never or IfNotPresent
    await cluster.kubectl("apply", "-f", manifest)
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from gpuloom.errors import UnavailableError
from gpuloom.kube.client import KubeClient
from gpuloom.kube.objects import JsonObject
from gpuloom.runtime.clock import Clock
from gpuloom.sim.processes.probes import answers_ok
from tests.cluster.binaries import require_binaries
from tests.cluster.control_plane import ControlPlane, ControlPlaneOptions, open_control_plane
from tests.cluster.network.configuration import PROXY_HEALTH_PORT, kube_proxy_configuration
from tests.cluster.nodes.configuration import RuntimeLine
from tests.cluster.nodes.image import COREDNS_IMAGE, write_program_image
from tests.cluster.nodes.programs import NodePrograms, require_network_programs
from tests.cluster.nodes.real_node import RealNode

MANIFEST = Path(__file__).parent / "coredns.yaml"
KUBECTL_TIMEOUT_S = 120


@dataclass(frozen=True)
class NetworkedCluster:
    plane: ControlPlane
    client: KubeClient
    """The administrator's."""
    nodes: tuple[RealNode, ...]

    def node_of(self, pod: JsonObject) -> RealNode:
        return next(node for node in self.nodes if node.name == pod["spec"]["nodeName"])

    async def load_image(self, archive: Path) -> None:
        """Into every node."""
        await asyncio.gather(*(node.load_image(archive) for node in self.nodes))

    async def kubectl(self, *arguments: str) -> str:
        """What kubectl writes, as the administrator. Raise UnavailableError with what it complains about."""
        process = await asyncio.create_subprocess_exec(
            *(str(self.plane.binaries.path("kubectl")), "--kubeconfig", str(self.plane.admin_kubeconfig)),
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={"HOME": str(self.plane.directory)},
        )
        output, complaints = await process.communicate()
        if process.returncode:
            raise UnavailableError(f"kubectl {' '.join(arguments)}: {complaints.decode().strip()}")
        return output.decode(errors="replace")


@asynccontextmanager
async def open_networked_cluster(
    directory: Path,
    lines: Mapping[str, RuntimeLine],
    clock: Clock,
    api_server_flags: Mapping[str, str] | None = None,
) -> AsyncIterator[NetworkedCluster]:
    """Nodes of these names and lines are Ready, and names of Services resolve.

    Without the programs the test is skipped, or fails where the cluster tests must run.
    """
    binaries = require_binaries()
    programs = {line: await require_network_programs(binaries, line) for line in set(lines.values())}
    options = ControlPlaneOptions(
        controller_manager=True, network=True, api_server_flags=api_server_flags or {}
    )
    async with AsyncExitStack() as stack:
        plane = await stack.enter_async_context(
            open_control_plane(binaries, directory / "plane", clock, options)
        )
        client = await stack.enter_async_context(plane.client())
        await plane.start_scheduler(_scheduler_configuration(plane))
        nodes = []
        for name, line in lines.items():
            node = RealNode(name, plane, programs[line], line)
            nodes.append(await stack.enter_async_context(node))
            await _start_proxy(node, plane, programs[line], clock)
        cluster = NetworkedCluster(plane, client, tuple(nodes))
        await _start_names(cluster, programs[line])
        yield cluster


async def _start_proxy(node: RealNode, plane: ControlPlane, programs: NodePrograms, clock: Clock) -> None:
    if plane.switch is None or node.addresses is None or programs.network is None:
        raise ValueError(f"node {node.name} has no network")
    path = node.paths.home / "kube-proxy.yaml"
    kubeconfig = plane.kubeconfig_for("system:kube-proxy")
    everything = plane.switch.addresses.everything
    configuration = kube_proxy_configuration(node.name, node.addresses, everything, kubeconfig)
    path.write_text(configuration, encoding="utf-8")
    ready = answers_ok(f"http://{node.address}:{PROXY_HEALTH_PORT}/healthz", clock)
    command = (str(programs.network.kube_proxy), f"--config={path}")
    await node.start_program("kube-proxy", command, {}, ready)


async def _start_names(cluster: NetworkedCluster, programs: NodePrograms) -> None:
    if programs.network is None:
        raise ValueError("there is no CoreDNS to start")
    archive = cluster.plane.directory / "network" / "coredns.tar"
    await asyncio.to_thread(write_program_image, programs.network.coredns, COREDNS_IMAGE, archive)
    await cluster.load_image(archive)
    await cluster.plane.apply(MANIFEST)
    await cluster.kubectl(
        *("rollout", "status", "--namespace=kube-system", "deployment/coredns"),
        f"--timeout={KUBECTL_TIMEOUT_S}s",
    )


def _scheduler_configuration(plane: ControlPlane) -> str:
    document = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(plane.admin_kubeconfig)},
        "leaderElection": {"leaderElect": False},
    }
    return yaml.safe_dump(document, sort_keys=False)
