"""Nodes that are only objects: any capacity, Ready, and nobody behind them.

A pod bound to one stays Pending. Nodes on which pods run are simulated kubelets (`mesh`) or real ones.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gpuloom.kube.client import KubeClient
from gpuloom.kube.objects import JsonObject
from gpuloom.kube.parse import format_time
from gpuloom.kube.resources import NODES
from gpuloom.runtime.clock import SystemClock

_AT_ONCE = 16


@dataclass(frozen=True)
class FakeNode:
    """`resources` are what it offers beside CPU, memory and places for pods."""

    name: str
    resources: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    cpu: str = "64"
    memory: str = "512Gi"


async def create_nodes(client: KubeClient, nodes: Iterable[FakeNode]) -> None:
    """They are schedulable when this returns."""
    slots = asyncio.Semaphore(_AT_ONCE)

    async def create(node: FakeNode) -> None:
        async with slots:
            await client.create(NODES, _object(node))

    async with asyncio.TaskGroup() as tasks:
        for node in nodes:
            tasks.create_task(create(node))


def _object(node: FakeNode) -> JsonObject:
    labels = {"kubernetes.io/hostname": node.name, **node.labels}
    return {"metadata": {"name": node.name, "labels": labels}, "status": _status(node)}


def _status(node: FakeNode) -> JsonObject:
    amounts = {"cpu": node.cpu, "memory": node.memory, "pods": "110", **node.resources}
    now = format_time(SystemClock().now())
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "Fake",
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
    }
    return {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}
