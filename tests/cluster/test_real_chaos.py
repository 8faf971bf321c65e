"""Pods come and go on two real nodes while everything around them is killed, again and again.

The extender's leader is killed as well as its standby. What each running container sees is read inside it all
the while. No part is simulated but the cards.
"""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gpuloom.errors import GpuloomError, NotFoundError
from gpuloom.kube.client import KubeClient
from gpuloom.kube.listing import Selection
from gpuloom.kube.objects import JsonObject, key_of, uid_of
from gpuloom.kube.parse import quantity_value
from gpuloom.kube.resources import PODS
from gpuloom.model.gpu import MILLI_PER_GPU
from gpuloom.names import RESOURCE_GPU_MILLI, RESOURCE_NVIDIA_GPU
from gpuloom.runtime.clock import SystemClock, deadline
from tests.cluster.nodes.pods import NAMESPACE, a_pod, a_pod_of_a_plugin, describe, has_started
from tests.cluster.real_pair import RealPair, a_real_pair
from tests.cluster.scale import SOAK, in_soak
from tests.cluster.sightings import Look, Stay, crowded
from tests.mesh.waiting import running
from tests.nvml.library import compile_library

pytestmark = [pytest.mark.real, pytest.mark.timeout(in_soak(900, 400))]

CLOCK = SystemClock()
SEED = 11
POD_COUNT = in_soak(40, 14)
COMING_S = float(in_soak(300, 45))
LIFE_S = (20.0, 40.0) if SOAK else (6.0, 14.0)
# A pod that asks for both cards of a node waits for those that came before it, and maybe after it.
START_PATIENCE_S = float(in_soak(120, 60))
# Short enough for every part to have its turn while pods come.
RESTART_EVERY_S = (2.0, 6.0) if SOAK else (1.5, 4.5)
UP_AGAIN_EVERY_S = 0.5
LOOK_EVERY_S = 0.5
LOOK_TIMEOUT_S = 20.0
# Its kubelet or its runtime may be away when a pod's time is over.
LOOK_PATIENCE_S = 30.0
GOING_PATIENCE_S = 90.0

_REQUESTS = (
    *((RESOURCE_GPU_MILLI, 500), (RESOURCE_NVIDIA_GPU, 1), (RESOURCE_GPU_MILLI, 1000)),
    *((RESOURCE_NVIDIA_GPU, 2), (RESOURCE_GPU_MILLI, 250), (RESOURCE_NVIDIA_GPU, 1)),
    *((RESOURCE_GPU_MILLI, 2000), (RESOURCE_GPU_MILLI, 700), (RESOURCE_NVIDIA_GPU, 1)),
)


@dataclass
class Observer:
    """Looks into every container that runs, and keeps what it saw by pod UID."""

    pair: RealPair
    stays: dict[str, Stay] = field(default_factory=dict)
    strange: list[str] = field(default_factory=list)
    """Whoever saw a card that it was not given, or fewer than it asked for."""
    _looking: set[str] = field(default_factory=set)

    async def run(self) -> None:
        """No look waits for one into another pod: into one that has just ended it takes its whole timeout."""
        async with asyncio.TaskGroup() as looks:
            while True:
                for pod in (await self.pair.client.list(PODS, Selection(NAMESPACE))).items:
                    if has_started(pod) and uid_of(pod) not in self._looking:
                        self._looking.add(uid_of(pod))
                        looks.create_task(self._look(pod))
                await CLOCK.sleep(LOOK_EVERY_S)

    async def until_seen(self, pod: JsonObject) -> None:
        """Until there was a sample into it. Raise TimeoutError if nobody can look for too long."""
        async with deadline(CLOCK, LOOK_PATIENCE_S):
            while uid_of(pod) not in self.stays:
                await CLOCK.sleep(0.2)

    async def _look(self, pod: JsonObject) -> None:
        try:
            await self._look_inside(pod)
        finally:
            self._looking.discard(uid_of(pod))

    async def _look_inside(self, pod: JsonObject) -> None:
        began_s = CLOCK.monotonic()
        try:
            async with deadline(CLOCK, LOOK_TIMEOUT_S):
                seen = await self.pair.seen_inside(pod)
                given = await self.pair.given_to(pod)
        except (GpuloomError, TimeoutError):
            # It ended under our eyes, or its kubelet or runtime is away for a moment.
            return
        resource, amount = asked_by(pod)
        stay = self.stays.setdefault(
            uid_of(pod), Stay(key_of(pod)[1], pod["spec"]["nodeName"], milli_each(resource, amount))
        )
        stay.looks.append(Look(began_s, CLOCK.monotonic(), seen))
        if len(seen) != cards_of(resource, amount) or (given is not None and seen != given):
            self.strange.append(f"{stay.pod} on {stay.node} sees {sorted(seen)}, was given {given}")


async def test_no_container_sees_a_card_of_another_while_everything_is_restarted(tmp_path: Path) -> None:
    library = compile_library(tmp_path / "nvml")
    async with a_real_pair(tmp_path, library, CLOCK) as pair, emptied_at_the_end(pair.client):
        observer, chance = Observer(pair), random.Random(SEED)
        restarts: list[str] = []
        async with running(observer.run) as looking, running(lambda: wreck(pair, restarts)) as wrecking:
            ways = await asyncio.gather(*(a_life(pair.client, observer, life) for life in lives(chance)))
            ended = [task for task in (looking, wrecking) if task.done()]

        stays = list(observer.stays.values())
        looks = sum(len(stay.looks) for stay in stays)
        idle = [way for way in ways if way]
        ran, parts = POD_COUNT - len(idle), dict(Counter(restarts))
        print(f"\n{ran} of {POD_COUNT} pods ran, {looks} looks; killed: {parts}; did not run: {idle}")  # noqa: T201
        assert ended == []
        assert crowded(stays) == []
        assert observer.strange == []
        assert len(stays) >= POD_COUNT * 2 // 3
        assert {stay.node for stay in stays} == set(pair.nodes)
        assert set(restarts) == set(pair.parts())


@dataclass(frozen=True)
class Life:
    """When a pod comes, counted from the start, what it asks for, and how long it stays once it runs."""

    name: str
    comes_s: float
    stays_s: float
    resource: str
    amount: int

    def pod(self) -> JsonObject:
        if self.resource == RESOURCE_GPU_MILLI:
            return a_pod(self.name, milli=self.amount)
        return a_pod_of_a_plugin(self.name, "", self.resource, self.amount)


def lives(chance: random.Random) -> list[Life]:
    return [
        Life(
            f"pod-{number:02d}",
            COMING_S * number / POD_COUNT,
            chance.uniform(*LIFE_S),
            *_REQUESTS[number % len(_REQUESTS)],
        )
        for number in range(POD_COUNT)
    ]


async def a_life(client: KubeClient, observer: Observer, life: Life) -> str:
    """Empty if it ran, else why not: maybe there was no room, or a kubelet that had just come refused it.

    One that runs does not go before it was looked into, unless nobody can look.
    """
    await CLOCK.sleep(life.comes_s)
    pod = await client.create(PODS, life.pod())
    try:
        async with deadline(CLOCK, START_PATIENCE_S):
            while not has_started(pod):
                await CLOCK.sleep(0.2)
                pod = await client.get(PODS, life.name, NAMESPACE)
        await CLOCK.sleep(life.stays_s)
        await observer.until_seen(pod)
    except TimeoutError:
        pass
    await client.delete(PODS, life.name, NAMESPACE)
    return "" if has_started(pod) else f"{life.name}: {describe(pod)}"


async def wreck(pair: RealPair, restarts: list[str]) -> None:
    """Kill one part after the other: each once in every round, in an order and at times left to chance."""
    chance = random.Random(SEED + 1)
    while True:
        for part in chance.sample(pair.parts(), len(pair.parts())):
            await CLOCK.sleep(chance.uniform(*RESTART_EVERY_S))
            while not await pair.restart(part):
                await CLOCK.sleep(UP_AGAIN_EVERY_S)
            restarts.append(part)


@asynccontextmanager
async def emptied_at_the_end(client: KubeClient) -> AsyncIterator[None]:
    """Whatever happened, no pod is left on a node that is about to end."""
    try:
        yield
    finally:
        for pod in (await client.list(PODS, Selection(NAMESPACE))).items:
            try:
                await client.delete(PODS, key_of(pod)[1], NAMESPACE)
            except NotFoundError:
                continue
        async with deadline(CLOCK, GOING_PATIENCE_S):
            while (await client.list(PODS, Selection(NAMESPACE))).items:
                await CLOCK.sleep(0.2)


def asked_by(pod: JsonObject) -> tuple[str, int]:
    ((resource, amount),) = pod["spec"]["containers"][0]["resources"]["limits"].items()
    return resource, quantity_value(amount)


def cards_of(resource: str, amount: int) -> int:
    return amount if resource == RESOURCE_NVIDIA_GPU else -(-amount // MILLI_PER_GPU)


def milli_each(resource: str, amount: int) -> int:
    return MILLI_PER_GPU if resource == RESOURCE_NVIDIA_GPU else min(amount, MILLI_PER_GPU)
