"""GPU pods that come and go all the time, and what is seen of each: when it was bound, where, and its cards.

Judged from the API server and from inside containers; never from what the product says of itself.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime

from gpuloom.errors import GpuloomError, NotFoundError
from gpuloom.kube.listing import Selection
from gpuloom.kube.objects import JsonObject, metadata_of, uid_of
from gpuloom.kube.resources import EVENTS, PODS
from gpuloom.runtime.clock import Clock, deadline
from tests.cluster.install.installation import Installation, given_to
from tests.cluster.nodes.pods import NAMESPACE, a_pod, has_started

MILLI = 100
ALIVE = 6
"""Small and few enough for either node alone: while agents and leader are replaced together, what pods had
that ended meanwhile is free only when their node has shown it for a while."""
_LOOK_S = 0.25
_PATIENCE_S = 180.0


@dataclass
class Life:
    created_s: float
    wait_s: float | None = None
    """Until it was bound, by the API server's clock; how often this looks is no part of it."""
    nodes: set[str] = field(default_factory=set)
    given: frozenset[str] | None = None
    seen: frozenset[str] | None = None
    """None: nobody could look before it was gone."""


@dataclass
class Load:
    installation: Installation
    clock: Clock
    lives: dict[str, Life] = field(default_factory=dict)
    """By UID."""
    refusals: set[str] = field(default_factory=set)
    """What kube-scheduler said of pods that it could not place at once."""

    async def run(self) -> None:
        client = self.installation.cluster.client
        number = 0
        while True:
            pods = (await client.list(PODS, Selection(NAMESPACE, "load=yes"))).items
            for pod in pods:
                await self._observe(pod)
            for pod in pods:
                if self.lives[uid_of(pod)].seen is not None:
                    with suppress(NotFoundError):
                        await client.delete(PODS, metadata_of(pod)["name"], NAMESPACE)
            if len(pods) < ALIVE:
                number += 1
                made = await client.create(PODS, _a_pod(f"load-{number}"))
                self.lives[uid_of(made)] = Life(self.clock.monotonic())
            await self._hear_refusals()
            await self.clock.sleep(_LOOK_S)

    def longest_wait_s(self) -> float:
        now_s = self.clock.monotonic()
        return max(
            now_s - life.created_s if life.wait_s is None else life.wait_s for life in self.lives.values()
        )

    def bound(self) -> int:
        return sum(life.wait_s is not None for life in self.lives.values())

    async def until_more_are_bound(self, count: int) -> None:
        """Raise TimeoutError."""
        wanted = self.bound() + count
        async with deadline(self.clock, _PATIENCE_S):
            while self.bound() < wanted:
                await self.clock.sleep(_LOOK_S)

    async def _observe(self, pod: JsonObject) -> None:
        life = self.lives[uid_of(pod)]
        if node := pod["spec"].get("nodeName"):
            life.nodes.add(node)
            life.wait_s = _waited_s(pod)
        if life.seen is None and has_started(pod) and "deletionTimestamp" not in metadata_of(pod):
            life.given = given_to(pod)
            # Its kubelet may be busy; the next look is soon.
            with suppress(GpuloomError):
                life.seen = await self.installation.seen_inside(pod)

    async def _hear_refusals(self) -> None:
        events = (await self.installation.cluster.client.list(EVENTS, Selection(NAMESPACE))).items
        self.refusals |= {
            event["message"] for event in events if event.get("reason") in ("FailedScheduling", "Failed")
        }


def _waited_s(pod: JsonObject) -> float:
    (bound,) = (one for one in pod["status"]["conditions"] if one["type"] == "PodScheduled")
    began, ended = metadata_of(pod)["creationTimestamp"], bound["lastTransitionTime"]
    return (datetime.fromisoformat(ended) - datetime.fromisoformat(began)).total_seconds()


def _a_pod(name: str) -> JsonObject:
    pod = a_pod(name, milli=MILLI)
    pod["metadata"]["labels"] = {"load": "yes"}
    return pod


@asynccontextmanager
async def under_load(installation: Installation, clock: Clock) -> AsyncIterator[Load]:
    load = Load(installation, clock)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(load.run())
        yield load
        running.cancel()
