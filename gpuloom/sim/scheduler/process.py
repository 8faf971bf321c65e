"""The scheduler as a process: its watches, its writes to Kubernetes, and the loop between them."""

import asyncio
from collections.abc import Sequence

from gpuloom.kube.client import KubeClient, PodBinding
from gpuloom.kube.events import EventRecorder
from gpuloom.kube.informer import Informer, InformerOptions
from gpuloom.kube.objects import JsonObject, key_of, resource_version_of
from gpuloom.kube.resources import NODES, PODS
from gpuloom.model.node import PodRef
from gpuloom.runtime.clock import Clock
from gpuloom.sim.scheduler.extender import Extender
from gpuloom.sim.scheduler.loop import SchedulerLoop, SchedulerSettings, SchedulerState
from gpuloom.sim.scheduler.watching import ClusterFollower


class KubeClusterApi:
    def __init__(self, client: KubeClient, events: EventRecorder) -> None:
        self._client = client
        self._events = events

    async def bind(self, pod: PodRef, node: str) -> None:
        await self._client.bind(PodBinding(pod.namespace, pod.name, node, uid=pod.uid))

    async def write_conditions(self, pod: JsonObject, conditions: Sequence[JsonObject]) -> None:
        namespace, name = key_of(pod)
        await self._client.patch_status(
            PODS,
            name,
            namespace,
            {"status": {"conditions": list(conditions)}},
            resource_version=resource_version_of(pod),
        )

    def record_event(self, pod: JsonObject, reason: str, message: str) -> None:
        about = {"apiVersion": "v1", "kind": "Pod", **pod}
        if reason == "Scheduled":
            self._events.normal(about, reason, message)
        else:
            self._events.warning(about, reason, message)


async def run_scheduler(
    client: KubeClient, extender: Extender, settings: SchedulerSettings, clock: Clock
) -> None:
    """Schedule until cancelled."""
    state = SchedulerState()
    follower = ClusterFollower(state, settings.scheduler_name, clock.monotonic)
    nodes = Informer(client, NODES, clock, InformerOptions())
    pods = Informer(client, PODS, clock, InformerOptions())
    nodes.on_change(follower.on_node)
    pods.on_change(follower.on_pod)
    events = EventRecorder(client, settings.scheduler_name, settings.scheduler_name, clock)
    loop = SchedulerLoop(state, KubeClusterApi(client, events), extender, settings, clock)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(nodes.run())
        tasks.create_task(pods.run())
        tasks.create_task(events.run())
        # Without all bound pods a node would look emptier than it is.
        await nodes.wait_synced()
        await pods.wait_synced()
        tasks.create_task(loop.run())
