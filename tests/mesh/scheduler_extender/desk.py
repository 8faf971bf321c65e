"""The extender's bind path on the real Kubernetes client and real informers, against a simulated API."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from prometheus_client import CollectorRegistry

from gpuloom.kube.access import KubeAccess
from gpuloom.kube.client import KubeClient
from gpuloom.kube.informer import Informer
from gpuloom.kube.resources import NODES, PODS
from gpuloom.model.ledger import EntryState
from gpuloom.model.node import NodeMode
from gpuloom.runtime.clock import SystemClock
from gpuloom.runtime.failpoints import Failpoints
from gpuloom.sim.kubeapi import SimKubeApi
from services.scheduler_extender.adapters.kubernetes import KubernetesBinder, KubernetesPods
from services.scheduler_extender.core.ledger.ledger import Ledger
from services.scheduler_extender.core.verbs.wire import BindCall
from services.scheduler_extender.inquiries.decisions import DecisionLog
from services.scheduler_extender.state.cluster import ClusterState
from services.scheduler_extender.verbs.binding import BindContext, Bindings
from tests.mesh.scheduler_extender.kubernetes import JsonObject, add_node, add_pod
from tests.mesh.waiting import until

Owner = tuple[str, EntryState]


class Desk:
    """Binds pods; its informers can be stopped and let go on."""

    def __init__(self, api: SimKubeApi, client: KubeClient, timeout_s: float) -> None:
        clock = SystemClock()
        self.api = api
        self.state = ClusterState(Ledger(settle_s=0.05), lambda: False, clock)
        self.context = BindContext(self.state.ledger, self.state.views, DecisionLog(clock), clock)
        self._nodes = Informer(client, NODES, clock)
        self._pods = Informer(client, PODS, clock)
        self._nodes.on_change(self.state.observe_node)
        self._pods.on_change(self.state.observe_pod)
        self._tasks: list[asyncio.Task[None]] = []
        pods = KubernetesPods(self._pods, client)
        self.bindings = Bindings(
            self.context, pods, KubernetesBinder(client, Failpoints((), clock)), timeout_s
        )

    async def follow(self) -> None:
        """Let the informers go on, and wait until they are there."""
        self._tasks = [asyncio.create_task(informer.run()) for informer in (self._nodes, self._pods)]
        await self._nodes.wait_synced()
        await self._pods.wait_synced()

    async def pause(self) -> None:
        """What happens from now on is not observed."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def add_node(self, name: str, gpus: int = 1, mode: NodeMode = NodeMode.GPULOOM) -> None:
        facts = add_node(self.api, name, gpus, mode)
        await until(lambda: self.state.ledger.node_uid(name))
        self.state.observe_facts(facts.state.node_uid, facts)

    async def add_pod(self, name: str) -> JsonObject:
        """A pod that the informer shows."""
        pod = add_pod(self.api, name)
        await until(lambda: self.state.ledger.pod(pod["metadata"]["uid"]))
        return pod

    async def bind(self, pod: JsonObject, node_name: str) -> str:
        metadata = pod["metadata"]
        call = BindCall(metadata["namespace"], metadata["name"], metadata["uid"], node_name)
        return await self.bindings.bind(call)

    def observed(self, pod: JsonObject) -> JsonObject | None:
        """The pod as the informer shows it."""
        return self._pods.by_uid(pod["metadata"]["uid"])

    def owners(self, node_name: str) -> list[Owner]:
        """Who has something on this node by the ledger, and why."""
        return [(claim.pod.name, claim.state) for claim in self.state.ledger.claims(node_name)]

    def owners_by_now(self, node_name: str) -> list[Owner]:
        """The same, after what only waited for time to pass has settled."""
        self.state.take_reopened()
        return self.owners(node_name)

    def held_devices(self, node_name: str) -> list[str]:
        claims = self.state.ledger.claims(node_name)
        return [item.device.gpu_uuid for claim in claims for item in claim.devices or ()]


@asynccontextmanager
async def a_client(api: SimKubeApi) -> AsyncIterator[KubeClient]:
    async with KubeClient(KubeAccess(api.url), SystemClock(), CollectorRegistry()) as client:
        yield client


@asynccontextmanager
async def a_desk(timeout_s: float = 10.0) -> AsyncIterator[Desk]:
    async with SimKubeApi() as api, a_client(api) as client:
        desk = Desk(api, client, timeout_s)
        await desk.follow()
        try:
            yield desk
        finally:
            await desk.pause()
