"""Puts the cluster on the disk before any process starts: machines with their pods, and Kubernetes' state.

The pods are where their kubelets and the scheduler would have put them: in the machine's directory, and bound
and annotated in the state of the Kubernetes API.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import orjson
import yaml

from gpuloom.model.node import PodRef
from gpuloom.rpc.dev_ca import CertificateOrder, issue_development_certificates
from gpuloom.runtime.clock import Clock
from gpuloom.sim.kubeapi.storage.journal import Journal
from gpuloom.sim.kubeapi.verbs.store import STATUS, Store
from gpuloom.sim.kubelet.status import node_object
from gpuloom.sim.machines.load import Faults, LoadProfile
from gpuloom.sim.machines.machine import HostedContainer, HostedPod, Machine
from gpuloom.sim.mesh.files import kubeconfig
from gpuloom.sim.processes.ports import HOST, free_ports
from tests.bench.discovery_scale.population import (
    CONTAINER,
    NAMESPACE,
    Size,
    machine_specs,
    pod_object,
    running_status,
    shares,
    with_allocation,
)

MOST_PROBED = 32
_SHARED_PORTS = 3


@dataclass(frozen=True, slots=True)
class Fleet:
    """Agents that share a process."""

    name: str
    nodes: tuple[str, ...]
    http_port: int
    probed: bool = False


@dataclass(frozen=True, slots=True)
class Ground:
    folder: Path
    size: Size
    machines: tuple[Machine, ...]
    api_port: int
    discovery_port: int
    discovery_http_port: int
    agent_ports: tuple[int, ...]
    fleets: tuple[Fleet, ...]

    @property
    def probed(self) -> tuple[Machine, ...]:
        """The machines on which something happens while it is measured how fast readers hear of it."""
        return self.machines[: _probed_count(self.size)]

    @property
    def machines_dir(self) -> Path:
        return self.folder / "machines"

    @property
    def api_state(self) -> Path:
        return self.folder / "kubernetes-api.state"

    @property
    def agents_file(self) -> Path:
        return self.folder / "agents.json"

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubeconfig"

    @property
    def certificates(self) -> Path:
        return self.folder / "certificates"

    def agent_address(self, machine: Machine) -> str:
        return f"{HOST}:{self.agent_ports[self.machines.index(machine)]}"


def lay_ground(folder: Path, size: Size, clock: Clock) -> Ground:
    """Blocks for some seconds at a thousand nodes."""
    specs = machine_specs(size.nodes)
    machines = tuple(Machine.create(folder / "machines" / spec.node, spec) for spec in specs)
    ports = free_ports(_SHARED_PORTS + size.nodes + size.fleets + 1, random.Random())
    api_port, discovery_port, discovery_http_port, *rest = ports
    fleets = tuple(_fleets([spec.node for spec in specs], size, rest[size.nodes :]))
    agent_ports = tuple(rest[: size.nodes])
    ground = Ground(
        folder, size, machines, api_port, discovery_port, discovery_http_port, agent_ports, fleets
    )
    issue_development_certificates(ground.certificates, CertificateOrder(), clock)
    addresses = {machine.spec.node: ground.agent_address(machine) for machine in machines}
    ground.agents_file.write_bytes(orjson.dumps(addresses))
    ground.kubeconfig.write_text(yaml.safe_dump(kubeconfig(f"http://{HOST}:{api_port}")), encoding="utf-8")
    _write_pods(ground, clock)
    return ground


def _fleets(nodes: list[str], size: Size, ports: list[int]) -> Iterator[Fleet]:
    probed = _probed_count(size)
    yield Fleet("agents-probed", tuple(nodes[:probed]), ports[0], probed=True)
    for index in range(size.fleets):
        if chosen := tuple(nodes[probed + index :: size.fleets]):
            yield Fleet(f"agents-{index + 1}", chosen, ports[index + 1])


def _probed_count(size: Size) -> int:
    return max(1, min(MOST_PROBED, size.nodes // 4))


def _write_pods(ground: Ground, clock: Clock) -> None:
    journal, _ = Journal.open(ground.api_state)
    try:
        store = Store(clock, sink=journal.append)
        store.create("namespaces", {"metadata": {"name": NAMESPACE}})
        for index, machine in enumerate(ground.machines):
            machine.write_hosted(_host(store, machine, ground.size.pods_on(index), clock))
    finally:
        journal.close()


def _host(store: Store, machine: Machine, count: int, clock: Clock) -> list[HostedPod]:
    """The pods of one machine, after Kubernetes was told of them."""
    now_s = clock.now().timestamp()
    node = store.create("nodes", node_object(machine.hardware, Faults(), clock.now()))
    hosted = []
    for number, share in enumerate(shares(machine.hardware.gpus, count)):
        pod = store.create("pods", pod_object(f"{machine.spec.node}-{number}", machine.spec.node, share))
        bound = store.update("pods", with_allocation(pod, node["metadata"]["uid"], share))
        uid, name = str(pod["metadata"]["uid"]), str(pod["metadata"]["name"])
        store.update("pods", {**bound, "status": running_status(uid)}, STATUS)
        load = LoadProfile(level_ratio=0.6, memory_ratio=0.7, seed=number)
        container = HostedContainer(CONTAINER, (share,))
        hosted.append(HostedPod(PodRef(NAMESPACE, name, uid), (container,), load, now_s, now_s))
    return hosted
