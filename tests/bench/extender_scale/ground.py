"""Puts the cluster on the disk before any process starts: Kubernetes' state, certificates, addresses."""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from gpuloom.kube.objects import uid_of
from gpuloom.model.snapshot import NodeFacts
from gpuloom.rpc.dev_ca import CertificateOrder, issue_development_certificates
from gpuloom.rpc.tls import TlsFiles
from gpuloom.runtime.clock import Clock
from gpuloom.sim.kubeapi.storage.journal import Journal
from gpuloom.sim.kubeapi.verbs.store import STATUS, Store
from gpuloom.sim.kubelet.status import node_object
from gpuloom.sim.machines.hardware import Hardware
from gpuloom.sim.machines.load import Faults
from gpuloom.sim.mesh.files import kubeconfig
from gpuloom.sim.processes.ports import HOST, free_ports
from tests.bench.audit import PlacedPod
from tests.bench.discovery_scale.population import NAMESPACE, running_status, with_allocation
from tests.bench.extender_scale.population import (
    MODES,
    Resident,
    Size,
    inhabited_facts,
    offered,
    placed_residents,
    plan_arrivals,
    plan_residents,
)
from tests.bench.workload import NAMESPACE as BURST_NAMESPACE
from tests.bench.workload import PodPlan, plan_machines, refuse_crowding


@dataclass(frozen=True, slots=True)
class Ports:
    """`api` is the cluster's, `aside_api` a small one in which the do-nothing extender binds."""

    api: int
    aside_api: int
    extender: int
    extender_grpc: int
    extender_http: int
    do_nothing: int


@dataclass(frozen=True, slots=True)
class Ground:
    folder: Path
    size: Size
    ports: Ports
    pods: tuple[PodPlan, ...]
    nodes: Mapping[str, NodeFacts]
    residents: tuple[PlacedPod, ...]
    """Those who hold devices."""
    identities: Mapping[str, TlsFiles]

    @property
    def certificates(self) -> Path:
        return self.folder / "certificates"

    def api_state(self, port: int) -> Path:
        return self.folder / f"kubernetes-api-{port}.state"

    def kubeconfig(self, port: int) -> Path:
        return self.folder / f"kubeconfig-{port}"


def lay_ground(folder: Path, size: Size, clock: Clock) -> Ground:
    """Blocks for many seconds at 40,000 pods. Raise InvalidRequestError if the pods ask for too much."""
    machines = plan_machines(size.nodes, MODES)
    pods = plan_arrivals(size.pods)
    refuse_crowding(machines, pods)
    ports = Ports(*free_ports(6, random.Random()))
    identities = issue_development_certificates(folder / "certificates", CertificateOrder(), clock)
    ground = Ground(folder, size, ports, pods, {}, (), identities)
    for port in (ports.api, ports.aside_api):
        text = yaml.safe_dump(kubeconfig(f"http://{HOST}:{port}"))
        ground.kubeconfig(port).write_text(text, encoding="utf-8")
    _write_state(ground.api_state(ports.aside_api), _new_store(clock))
    store, nodes, residents = _new_store(clock), dict[str, NodeFacts](), list[PlacedPod]()
    for index, machine in enumerate(machines):
        facts, hosted = _host(store, machine, size.residents_on(index), clock)
        nodes[machine.spec.node] = facts
        residents += placed_residents(hosted)
    _write_state(ground.api_state(ports.api), store)
    return replace(ground, nodes=nodes, residents=tuple(residents))


def _new_store(clock: Clock) -> Store:
    store = Store(clock)
    for name in (NAMESPACE, BURST_NAMESPACE):
        store.create("namespaces", {"metadata": {"name": name}})
    return store


def _host(store: Store, machine: Hardware, count: int, clock: Clock) -> tuple[NodeFacts, list[Resident]]:
    node = node_object(machine, Faults(), clock.now())
    for field in ("capacity", "allocatable"):
        node["status"][field] |= offered(machine)
    node_uid = uid_of(store.create("nodes", node))
    residents = list(_settle(store, node_uid, plan_residents(machine, count)))
    return inhabited_facts(machine, node_uid, residents), residents


def _settle(store: Store, node_uid: str, planned: list[Resident]) -> Iterator[Resident]:
    """The pods as their Bindings and the kubelet left them."""
    for resident in planned:
        pod, share = store.create("pods", resident.pod), resident.share
        if share is not None:
            pod = store.update("pods", with_allocation(pod, node_uid, share))
        running = store.update("pods", {**pod, "status": running_status(uid_of(pod))}, STATUS)
        yield Resident(running, share)


def _write_state(path: Path, store: Store) -> None:
    """The present state only: a server that starts need not read how it came about."""
    journal, _ = Journal.open(path)
    try:
        for change in store.database.snapshot():
            journal.append(change)
    finally:
        journal.close()
