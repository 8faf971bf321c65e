"""The autoscaler's nodes loop on a simulated API, round by round, with a clock that can be put forward."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from copy import deepcopy
from dataclasses import replace
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

from prometheus_client import CollectorRegistry

from gpuloom.catalog import load_catalog
from gpuloom.catalog.manifests import definitions
from gpuloom.kube.access import KubeAccess
from gpuloom.kube.client import KubeClient
from gpuloom.kube.events import EventRecorder
from gpuloom.kube.informer import Informer, InformerOptions
from gpuloom.kube.objects import JsonObject, key_of
from gpuloom.kube.parse import format_time
from gpuloom.kube.resources import INFERENCE_POLICIES, NODES, PDBS, PODS
from gpuloom.model.claims import GpuNodeClaim
from gpuloom.model.gpu import GpuUsage
from gpuloom.model.ledger import HostAccount, NodeLedger
from gpuloom.model.node import Delivery, NodeMode, NodeState
from gpuloom.model.policies import CloudProvider
from gpuloom.model.snapshot import NodeFacts
from gpuloom.placement.occupancy.node_view import node_view
from gpuloom.placement.template import NodeTemplate, expected_node
from gpuloom.runtime.clock import SystemClock
from gpuloom.runtime.failpoints import Failpoints
from gpuloom.sim.kubeapi import SimKubeApi
from gpuloom.sim.kubeapi.verbs.deletion import DeleteOptions
from gpuloom.sim.kubeapi.verbs.store import WriteOptions
from services.autoscaler.app import _adopted
from services.autoscaler.core.buying.filling import MachineForm
from services.autoscaler.core.buying.offerings import OfferingKey
from services.autoscaler.core.lifecycle.claims import Timeouts
from services.autoscaler.core.lifecycle.machines import Instance, InstanceState
from services.autoscaler.core.scaling.scale_down import DownSettings
from services.autoscaler.metrics import AutoscalerMetrics
from services.autoscaler.nodes.claim_store import ClaimStore
from services.autoscaler.nodes.cluster import ClusterReader, Sources, index_by_node
from services.autoscaler.nodes.drainer import Drainer
from services.autoscaler.nodes.interruptions import Interruptions
from services.autoscaler.nodes.loop import NodeLoop
from services.autoscaler.nodes.policy_store import PolicyStore
from services.autoscaler.nodes.scaler import Scaler, ScalerSettings
from services.autoscaler.nodes.sweeper import Sweeper, SweepInputs, Tools
from tests.mesh.autoscaler.memory_cloud import TYPE, MemoryCloud
from tests.mesh.waiting import until

POOL = "pool"
CLAIMS, POLICIES = "gpunodeclaims.gpuloom.dev", "autoscalingpolicies.gpu-autoscaler.io"
BUDGETS, INFERENCE = "poddisruptionbudgets.policy", "aiinferenceautoscalerpolicies.kubeai.io"
WORDS = {"pods": "110", "cpu": "4", "memory": "16Gi", "gpuloom.dev/gpu-milli": "1000"}


class MovedClock(SystemClock):
    """The system's, put forward."""

    ahead_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead_s

    def now(self) -> datetime:
        return super().now() + timedelta(seconds=self.ahead_s)


class KnownFacts:
    """Discovery's and the extender's word on nodes, as if both had just spoken."""

    synced = True
    silent_s = 0.0

    def __init__(self) -> None:
        self.facts: dict[str, NodeFacts] = {}
        self.nodes: dict[str, NodeLedger] = {}

    def age_s(self) -> float:
        return self.silent_s

    def snapshot(self) -> Any:
        return SimpleNamespace(nodes=self.facts)

    def view(self, name: str, facts: NodeFacts | None) -> Any:
        return node_view(self.nodes[name], facts) if name in self.nodes else None


class NoPrices:
    async def prices(self, provider: CloudProvider) -> Mapping[OfferingKey, int]:
        return {}


class Replica:
    """One process of the autoscaler, as far as nodes go: it knows what the API and the cloud say."""

    def __init__(self, world: "World", settings: ScalerSettings) -> None:
        self._world = world
        client, clock = world.client, world.clock
        self.registry = CollectorRegistry()
        self.tools = Tools(client, clock, AutoscalerMetrics(self.registry), Failpoints((), clock))
        known = cast(Any, world.known)
        self.sources = Sources(
            Informer(client, PODS, clock, InformerOptions(indexes={"node": index_by_node})),
            Informer(client, NODES, clock),
            Informer(client, PDBS, clock),
            known,
            known,
            Informer(client, INFERENCE_POLICIES, clock),
        )
        self.store = ClaimStore(client, clock, lambda s: s)
        self.policies = PolicyStore(client, clock, lambda s: s)
        reader = ClusterReader(self.sources, MachineForm(), self.policies.pool_labels)
        self.recorder = EventRecorder(client, "gpuloom-autoscaler", "test", clock)
        drainer = Drainer(client, reader, self.recorder, clock)
        inputs = SweepInputs(
            reader.node_facts,
            lambda: drainer.drained(self.store.claims()),
            self.policies.pool_labels,
            lambda instance: _adopted(instance, self.policies),
            lambda pool: self.scaler.only_tells(pool),  # noqa: PLW0108 - it is made below
        )
        sweeper = Sweeper(world.cloud, self.store, inputs, self.tools, Timeouts())
        sweepers = {world.cloud.provider: sweeper}
        self.scaler = Scaler(reader, self.store, self.policies, sweepers, self.tools, settings)
        interruptions = Interruptions(self.scaler, drainer, self.tools)
        self.loop = NodeLoop(self.scaler, sweepers, drainer, interruptions, NoPrices(), self.tools)
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        informers = self._informers()
        loops = [one.run() for one in informers.values()]
        self._tasks = [asyncio.create_task(one) for one in (*loops, self.recorder.run())]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def round(self) -> None:
        """One round that has seen everything that is there now."""
        await until(lambda: all(self._is_current(name, one) for name, one in self._informers().items()))
        await self.loop.round()

    def _informers(self) -> dict[str, Informer]:
        return {
            "pods": self.sources.pods,
            "nodes": self.sources.nodes,
            BUDGETS: self.sources.budgets,
            INFERENCE: self.sources.inference,
            CLAIMS: self.store.informer,
            POLICIES: self.policies.informer,
        }

    def _is_current(self, name: str, informer: Informer) -> bool:
        there = {key_of(one): one["metadata"]["resourceVersion"] for one in self._world.listed(name)}
        seen = {key_of(one): one["metadata"]["resourceVersion"] for one in informer.objects()}
        return informer.synced and there == seen


class World:
    def __init__(self, api: SimKubeApi, client: KubeClient, clock: MovedClock, cloud: MemoryCloud) -> None:
        self.api, self.client, self.clock, self.cloud = api, client, clock, cloud
        self.known = KnownFacts()
        self.settings = ScalerSettings(DownSettings(window_s=60, minimum_age_s=60))
        self.replica: Replica | None = None
        self.lost: set[str] = set()

    async def restart(self) -> Replica:
        if self.replica is not None:
            await self.replica.stop()
        self.replica = Replica(self, self.settings)
        self.replica.start()
        return self.replica

    async def rounds(self, count: int = 1, *, apart_s: float = 5.0, joins: bool = True) -> None:
        replica = self.replica or await self.restart()
        for _ in range(count):
            await replica.round()
            self.cloud.settle()
            self.end_pods()
            if joins:
                self.join()
            self.clock.ahead_s += apart_s

    def listed(self, resource: str) -> list[JsonObject]:
        return list(self.api.store.select(resource))

    def claims(self) -> Sequence[GpuNodeClaim]:
        assert self.replica is not None
        return self.replica.store.claims()

    def claim_states(self) -> list[str]:
        return sorted(one["status"]["state"] for one in self.listed(CLAIMS))

    def policy(self, name: str = "mine") -> dict[str, Any]:
        return cast(dict[str, Any], self.api.store.get(POLICIES, name)["status"])

    def condition(self, kind: str, name: str = "mine") -> dict[str, Any]:
        (found,) = (one for one in self.policy(name)["conditions"] if one["type"] == kind)
        return cast(dict[str, Any], found)

    def events(self, reason: str) -> list[JsonObject]:
        return [one for one in self.listed("events") if one.get("reason") == reason]

    def add_policy(self, name: str = "mine", **spec: Any) -> None:
        whole = {
            "provider": self.cloud.provider.value,
            "nodePools": [{"name": POOL, "instanceTypes": [TYPE], "labels": {"team": "research"}}],
            **spec,
        }
        self.api.store.create(POLICIES, {"metadata": {"name": name}, "spec": whole})

    def set_policy(self, name: str = "mine", **spec: Any) -> None:
        policy = deepcopy(self.api.store.get(POLICIES, name))
        policy["spec"] |= spec
        self.api.store.update(POLICIES, policy)

    def add_pod(self, name: str, node: str = "", **metadata: Any) -> None:
        amounts = {"gpuloom.dev/gpu-milli": "1000", "cpu": "1", "memory": "1Gi"}
        container = {"name": "main", "image": "x", "resources": {"limits": amounts, "requests": amounts}}
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "job", "uid": "uid-job", "controller": True}
        pod: dict[str, Any] = {
            "metadata": {"name": name, "namespace": "default", "ownerReferences": [owner], **metadata},
            "spec": {"containers": [container], **({"nodeName": node} if node else {})},
        }
        self.api.store.create("pods", pod, namespace="default")

    def run_pod(self, name: str) -> None:
        pod = deepcopy(self.api.store.get("pods", name, namespace="default"))
        pod["status"] = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        self.api.store.update("pods", pod, WriteOptions(subresource="status"))

    def pods(self) -> dict[str, JsonObject]:
        return {one["metadata"]["name"]: one for one in self.listed("pods")}

    def end_pods(self) -> None:
        """What was told to leave is gone, as a kubelet sees to."""
        for pod in self.listed("pods"):
            if pod["metadata"].get("deletionTimestamp") and pod["spec"].get("nodeName") not in self.lost:
                options = DeleteOptions(grace_s=0)
                self.api.store.delete("pods", pod["metadata"]["name"], namespace="default", options=options)

    def join(self) -> None:
        """Every machine has its node, with its GPUs, and what is gone has none."""
        running = {
            one.instance_id: one for one in self.cloud.machines.values() if one.state is InstanceState.RUNNING
        }
        for node in self.listed("nodes"):
            name = node["metadata"]["name"]
            if name.startswith("i-") and name not in running:
                self.api.store.delete("nodes", name)
                self.known.facts.pop(node["metadata"]["uid"], None)
                self.known.nodes.pop(name, None)
                for pod in self.listed("pods"):
                    if pod["spec"].get("nodeName") == name:
                        self.api.store.delete("pods", pod["metadata"]["name"], namespace="default")
        names = {node["metadata"]["name"] for node in self.listed("nodes")}
        for name in sorted(running.keys() - names):
            self.add_node(running[name])

    def add_node(self, machine: Instance, use: float = 0.0) -> None:
        status = {
            "allocatable": WORDS,
            "capacity": WORDS,
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        node = {
            "metadata": {"name": machine.instance_id},
            "spec": {"providerID": machine.provider_id},
            "status": status,
        }
        uid = self.api.store.create("nodes", node)["metadata"]["uid"]
        view = expected_node(NodeTemplate(load_catalog().instance("aws", TYPE)), machine.instance_id).view
        gpus = tuple(card.gpu for card in view.gpus)
        state = NodeState(
            machine.instance_id,
            uid,
            NodeMode.GPULOOM,
            Delivery.NRI,
            gpus,
            usage=tuple(GpuUsage(one.uuid, utilization_ratio=use) for one in gpus),
        )
        self.known.facts[uid] = NodeFacts(state)
        account = HostAccount(4000, 0, 16 * 2**30, 0, 110, 0)
        self.known.nodes[machine.instance_id] = NodeLedger(machine.instance_id, uid, account=account)

    def lose_node(self, name: str) -> None:
        """Its kubelet and its agent fall silent, and Kubernetes says so."""
        self.lost.add(name)
        node = deepcopy(self.api.store.get("nodes", name))
        since = format_time(self.clock.now())
        node["status"]["conditions"] = [{"type": "Ready", "status": "Unknown", "lastTransitionTime": since}]
        self.api.store.update("nodes", node, WriteOptions(subresource="status"))
        uid = node["metadata"]["uid"]
        self.known.facts[uid] = replace(self.known.facts[uid], untrusted_reasons=("its agent is silent",))

    def annotate_node(self, name: str, **annotations: str | None) -> None:
        node = deepcopy(self.api.store.get("nodes", name))
        kept = {**(node["metadata"].get("annotations") or {}), **annotations}
        node["metadata"]["annotations"] = {key: value for key, value in kept.items() if value is not None}
        self.api.store.update("nodes", node)


@asynccontextmanager
async def a_world(*, grouped: bool = False) -> AsyncIterator[World]:
    clock = MovedClock()
    async with (
        SimKubeApi(preinstalled=definitions()) as api,
        KubeClient(KubeAccess(api.url), clock) as client,
    ):
        world = World(api, client, clock, MemoryCloud([POOL], grouped=grouped))
        try:
            yield world
        finally:
            if world.replica is not None:
                await world.replica.stop()
