"""GPULoom installed by helm on real nodes with a network, its agents on the stand-in of NVIDIA's library.

    async with an_installation(folder, archive, library, clock) as installation:
        await installation.upgrade(tag=NEWER)

The cards are device nodes, copies of /dev/null, named by their number; two on each node.
"""

import asyncio
import json
import os
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from gpuloom.codec.allocation import decode_allocation
from gpuloom.kube.listing import Selection
from gpuloom.kube.objects import JsonObject, metadata_of
from gpuloom.kube.resources import PODS
from gpuloom.names import ANNOTATION_ALLOCATION
from gpuloom.runtime.clock import Clock
from tests.cluster.assets.build import PROGRAMS
from tests.cluster.helm import Helm, HelmError, require_helm
from tests.cluster.network.cluster import NetworkedCluster, open_networked_cluster
from tests.cluster.nodes.configuration import RuntimeLine
from tests.cluster.nodes.image import write_program_image
from tests.cluster.nodes.pods import describe
from tests.cluster.nodes.real_node import Daemon, RealNode
from tests.nvml.library import STATE_VARIABLE, Standin
from tests.nvml.machines import some_gpus, uuid

RELEASE = "gpuloom"
NAMESPACE = "gpuloom-system"
AGENTS = "gpuloom-system-agents"
NODES = ("install-a", "install-b")
CARDS = 2
WAIT = ("--wait", "--timeout", "5m")

_INSIDE = "/standin"


@dataclass(frozen=True)
class Installation:
    cluster: NetworkedCluster
    helm: Helm
    values: Path

    async def run_helm(self, *arguments: str) -> str:
        """Raise HelmError, with what the pods are doing: helm itself says no more than that time is up."""
        try:
            return await asyncio.to_thread(self.helm.run, *arguments)
        except HelmError as error:
            pods = [*await self.pods(NAMESPACE), *await self.pods(AGENTS)]
            seen = "\n".join(f"{metadata_of(pod)['name']}: {describe(pod)}" for pod in pods)
            raise HelmError(f"{error}\n{seen}") from None

    async def upgrade(self, tag: str) -> None:
        """As the product documents print it; it installs what is not there."""
        await self.run_helm(
            *("upgrade", "--install", RELEASE, "./charts/gpuloom", "--namespace", NAMESPACE),
            *("--create-namespace", "-f", str(self.values), "--set", f"global.image.tag={tag}", *WAIT),
        )

    async def pods(self, namespace: str) -> list[JsonObject]:
        return list((await self.cluster.client.list(PODS, Selection(namespace))).items)

    async def seen_inside(self, pod: JsonObject) -> frozenset[str]:
        """The cards that the running container sees, by UUID. Raise UnavailableError if nobody can look."""
        listed = await self.cluster.node_of(pod).run_in_container(pod, "ls", "/dev")
        return frozenset(uuid(int(name[4:])) for name in listed.split() if name.startswith("gpu-"))


def given_to(pod: JsonObject) -> frozenset[str]:
    allocation = decode_allocation(metadata_of(pod)["annotations"][ANNOTATION_ALLOCATION])
    return frozenset(given.device.gpu_uuid for given in allocation.devices)


@asynccontextmanager
async def an_installation(
    folder: Path, archive: Path, library: Path, clock: Clock
) -> AsyncIterator[Installation]:
    """Nodes with cards and images, a restricted namespace, and helm; nothing is installed yet."""
    lines = dict.fromkeys(NODES, RuntimeLine.CONTAINERD_2)
    async with open_networked_cluster(folder, lines, clock) as cluster:
        (folder / "standin").mkdir()
        for number, node in enumerate(cluster.nodes):
            _add_cards(node, folder / "standin" / f"{node.name}.state", first=number * CARDS)
            await _let_containers_wait_for_the_agent(node)
        scheduler = folder / "kube-scheduler.tar"
        image = f"registry.k8s.io/kube-scheduler:v{PROGRAMS['kube-scheduler'].version()}"
        write_program_image(cluster.plane.binaries.path("kube-scheduler"), image, scheduler)
        for one in (scheduler, archive):
            await cluster.load_image(one)
            # Gigabytes, and pytest keeps the folders of its last runs.
            one.unlink()
        await cluster.kubectl("create", "namespace", NAMESPACE)
        await cluster.kubectl(
            "label", "namespace", NAMESPACE, "pod-security.kubernetes.io/enforce=restricted"
        )
        await cluster.kubectl("label", "node", *NODES, "gpuloom.dev/gpu=true")
        values = folder / "values.yaml"
        values.write_text(yaml.safe_dump(_values(library, folder / "standin")), encoding="utf-8")
        yield Installation(cluster, require_helm(folder, cluster.plane.admin_kubeconfig), values)


def _values(library: Path, standin: Path) -> JsonObject:
    """What differs on this machine: it has the images, but no storage and no runtime of NVIDIA's, and its
    nodes share a disk."""
    mounts = {
        "pod-resources": "/var/lib/kubelet/pod-resources",
        "nri": "/var/run/nri",
        "cdi-static": "/etc/cdi",
        "cdi": "/var/run/cdi",
    }
    extra = {"library": str(library.parent), "standin": str(standin), "sys": "/sys", "state": str(standin)}
    own = "$(GPULOOM_NODE_NAME)"
    return {
        "global": {"image": {"pullPolicy": "Never"}},
        "scheduler": {"image": {"pullPolicy": "Never"}},
        **{
            service: {"persistence": {"enabled": False, "ephemeral": True}}
            for service in ("cost-engine", "optimizer")
        },
        "node-agent": {
            "options": {"mode": "gpuloom"},
            "settings": {"GPULOOM_AGENT_SPOT": "off"},
            "runtimeClassName": "",
            "env": [
                {"name": "LD_LIBRARY_PATH", "value": f"{_INSIDE}/lib"},
                {"name": STATE_VARIABLE, "value": f"{_INSIDE}/state/{own}.state"},
            ],
            "volumes": [
                {"name": name, "hostPath": {"path": path}} for name, path in (mounts | extra).items()
            ],
            "volumeMounts": [
                *({"name": name, "mountPath": path} for name, path in mounts.items()),
                {"name": "sys", "mountPath": "/host/sys", "readOnly": True},
                {"name": "library", "mountPath": f"{_INSIDE}/lib", "readOnly": True},
                {"name": "standin", "mountPath": f"{_INSIDE}/state", "readOnly": True},
                {"name": "state", "mountPath": "/var/lib/gpuloom", "subPathExpr": f"state-{own}"},
            ],
        },
    }


def _add_cards(node: RealNode, state: Path, first: int) -> None:
    """To the library's state, and to the node as devices that a CDI specification describes."""
    named = {f"gpu.{card}.uuid": uuid(first + card) for card in range(CARDS)}
    Standin(state, some_gpus(CARDS) | named)
    devices = []
    for card in range(first, first + CARDS):
        path = node.paths.home / f"gpu-{card}"
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        numbers = {"type": "c", "major": 1, "minor": 3}
        edits = {"deviceNodes": [{"path": f"/dev/gpu-{card}", "hostPath": str(path), **numbers}]}
        devices.append({"name": uuid(card), "containerEdits": edits})
    spec = {"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu", "devices": devices}
    (node.paths.cdi / "gpus.json").write_text(json.dumps(spec), encoding="utf-8")


async def _let_containers_wait_for_the_agent(node: RealNode) -> None:
    """As the agent's manual advises: none is made while its plugin is away."""
    with (node.paths.home / "containerd.toml").open("a", encoding="utf-8") as configuration:
        configuration.write('\n[plugins."io.containerd.nri.v1.nri".default_validator]\nenable = true\n')
    await node.kill(Daemon.CONTAINERD)
