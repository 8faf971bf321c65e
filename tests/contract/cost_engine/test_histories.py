"""Whatever comes and goes in Kubernetes, and however often the engine is restarted meanwhile, it keeps what
happened, to the nano-dollar.
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random

import pytest

from gpuloom.kube.objects import JsonObject, uid_of
from services.cost_engine.core.grouping import grouped, total
from services.cost_engine.core.intervals import DAY_NS, HOUR_NS
from services.cost_engine.core.objects import SliceRule
from services.cost_engine.core.prices import Price, Source
from services.cost_engine.core.tracking import Tracker
from services.cost_engine.store import intervals
from services.cost_engine.store.costs import Window
from services.cost_engine.store.store import CostStore, FactChanges
from tests.effort import examples

SECOND_NS = 1_000_000_000
START_NS = 20_400 * DAY_NS + 7 * HOUR_NS
RATE = 3_912_000_007
PRICE = Price("", "", "", "g4dn.12xlarge", "on-demand", RATE, 0, None, Source.CUSTOM)
PAUSES_S = (0, 1, 5, 60, 600, 1800, 3599, 3600)


@dataclass
class World:
    """Kubernetes, an engine that follows it, and beside it what really happened."""

    store: CostStore
    chance: Random
    now_ns: int = START_NS
    nodes: dict[str, JsonObject] = field(default_factory=dict)
    pods: dict[str, JsonObject] = field(default_factory=dict)
    born_ns: dict[str, int] = field(default_factory=dict)
    lives: dict[str, tuple[int, int | None]] = field(default_factory=dict)
    tracker: Tracker = field(default_factory=lambda: Tracker(START_NS, (), SliceRule.COMPUTE))

    async def restart(self) -> None:
        nodes, pods = await self.store.open_intervals()
        self.tracker = Tracker(START_NS, (), SliceRule.COMPUTE)
        self.tracker.restore(nodes, pods)
        for node in self.nodes.values():
            self.tracker.observe_node(node, self.now_ns)
        for pod in self.pods.values():
            self.tracker.observe_pod(pod, self.now_ns)
        seen = {node.node_uid: at for node, at in nodes} | {pod.pod_uid: at for pod, at in pods}
        present = frozenset(map(uid_of, (*self.nodes.values(), *self.pods.values())))
        self.tracker.settle(seen, present, {}, self.now_ns)
        await self.flush()

    async def flush(self) -> None:
        changes = self.tracker.drain()
        alive = tuple(self.tracker.nodes), tuple(self.tracker.pods)
        facts = FactChanges(changes.nodes, changes.pods, changes.gaps, *alive)
        await self.store.save_facts(facts, self.now_ns)

    async def compute(self) -> None:
        await self.flush()
        await self.store.compute(await self.store.book(), self.now_ns)

    def show_node(self, name: str) -> None:
        """New, or with another number of time slices."""
        self.born_ns.setdefault(f"u-{name}", _seconds(self.now_ns))
        self.nodes[name] = a_node(name, self.born_ns[f"u-{name}"], self.chance.choice((4, 8, 12)))
        self.tracker.observe_node(self.nodes[name], self.now_ns)

    def bind_pod(self) -> None:
        uid, node = f"p{len(self.lives)}", self.chance.choice(sorted(self.nodes))
        self.lives[uid] = _seconds(self.now_ns), None
        self.pods[uid] = a_pod(uid, node, self.chance.randint(1, 4), self.lives[uid])
        self.tracker.observe_pod(self.pods[uid], self.now_ns)

    def end_pod(self, uid: str) -> None:
        """The kubelet may tell so a while later."""
        start_ns = self.lives[uid][0]
        told_ns = self.now_ns - self.chance.choice((0, 0, 3, 30)) * SECOND_NS
        self.lives[uid] = start_ns, max(start_ns, _seconds(told_ns))
        spec = self.pods[uid]["spec"]
        count = int(spec["containers"][0]["resources"]["limits"]["nvidia.com/gpu"])
        self.pods[uid] = a_pod(uid, spec["nodeName"], count, self.lives[uid])
        self.tracker.observe_pod(self.pods[uid], self.now_ns)

    async def step(self) -> None:
        self.now_ns += self.chance.choice(PAUSES_S) * SECOND_NS + self.chance.choice((0, 1, 999_999_999))
        running = sorted(uid for uid, (_, end) in self.lives.items() if end is None)
        ended = sorted(self.pods.keys() - set(running))
        act = self.chance.choice(("node", "bind", "bind", "end", "end", "remove", "restart", "compute"))
        if act == "node" or not self.nodes:
            self.show_node(f"n{self.chance.randint(1, 3)}")
        elif act == "bind":
            self.bind_pod()
        elif act == "end" and running:
            self.end_pod(self.chance.choice(running))
        elif act == "remove" and ended:
            # What an engine never wrote, and Kubernetes forgot, only agents' windows would tell.
            await self.flush()
            self.tracker.forget_pod(self.pods.pop(self.chance.choice(ended)), self.now_ns)
        elif act == "restart":
            await self.restart()
        elif act == "compute":
            await self.compute()
        if self.chance.random() < 0.5:
            await self.flush()


@pytest.mark.parametrize("seed", range(examples(30)))
async def test_any_history_with_restarts_is_kept_and_billed_as_it_was(store: CostStore, seed: int) -> None:
    world = World(store, Random(seed))
    await store.replace_prices(Source.CUSTOM, [PRICE], START_NS)
    for _ in range(world.chance.randint(10, 60)):
        await world.step()

    await world.restart()
    await world.compute()

    kept = await store.read(lambda session: intervals.pods_between(session, 0, 2**62, sorted(world.born_ns)))
    found = {pod.pod_uid: (pod.start_ns, pod.end_ns) for held in kept.values() for pod in held}
    lasted = {uid: life for uid, life in world.lives.items() if life[0] != life[1]}
    assert lasted.items() <= found.items()
    facts = await store.facts(Window(START_NS, START_NS + 400 * DAY_NS), frozenset({"node"}))
    bill = sum(RATE * world.now_ns // HOUR_NS - RATE * born // HOUR_NS for born in world.born_ns.values())
    assert total(grouped(facts, ())).cost == bill


def a_node(name: str, created_ns: int, advertised: int) -> JsonObject:
    labels = {"node.kubernetes.io/instance-type": "g4dn.12xlarge", "nvidia.com/gpu.count": "4"}
    return {
        "metadata": {
            "name": name,
            "uid": f"u-{name}",
            "creationTimestamp": _text(created_ns),
            "labels": labels,
        },
        "status": {"capacity": {"nvidia.com/gpu": str(advertised)}},
    }


def a_pod(uid: str, node: str, count: int, life: tuple[int, int | None]) -> JsonObject:
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": _text(life[0])}
    status: JsonObject = {"phase": "Running", "conditions": [scheduled]}
    if life[1] is not None:
        ended = {"state": {"terminated": {"finishedAt": _text(life[1])}}}
        status |= {"phase": "Succeeded", "containerStatuses": [ended]}
    limits = {"nvidia.com/gpu": str(count)}
    return {
        "metadata": {"name": uid, "namespace": "ns", "uid": uid},
        "spec": {"nodeName": node, "containers": [{"name": "c", "resources": {"limits": limits}}]},
        "status": status,
    }


def _seconds(time_ns: int) -> int:
    return time_ns - time_ns % SECOND_NS


def _text(time_ns: int) -> str:
    return datetime.fromtimestamp(time_ns // SECOND_NS, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
