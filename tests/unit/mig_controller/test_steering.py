"""Idle nodes of mode nvidia are steered by NVIDIA's own label, and never fought over."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from gpuloom.errors import ConflictError, NotFoundError, UnavailableError
from gpuloom.model.claims import HoldTarget
from gpuloom.model.gpu import DeviceRef, Gpu, GpuHealth
from gpuloom.model.ledger import Hold
from gpuloom.model.mig import MigInstance, MigPlacement
from gpuloom.model.node import Delivery, Holder, HolderSource, NodeMode, NodeState, PodRef
from gpuloom.model.snapshot import NodeFacts, NodePlace, Taint
from gpuloom.runtime.clock import FakeClock
from services.mig_controller.core.intents import stray_holds
from services.mig_controller.core.steering import busy_nodes
from services.mig_controller.metrics import MigMetrics
from services.mig_controller.steering import Steering, SteeringOptions

OPTIONS = SteeringOptions(enabled=True, delay_s=30.0, pause_s=600.0, timeout_s=900.0)


@dataclass
class World:
    labels: dict[str, tuple[str, str]] = field(default_factory=dict)
    held: dict[str, HoldTarget] = field(default_factory=dict)
    renewed: set[str] = field(default_factory=set)
    in_use: bool = False
    refuses: str = ""
    away: bool = False
    extender_away: bool = False
    unheard: bool = False
    """Labels are written, and no answer comes."""

    async def take(
        self, name: str, target: HoldTarget, reason: str, ttl_s: int, *, allow_used: bool = False
    ) -> None:
        if self.extender_away:
            raise UnavailableError("no leader")
        if self.in_use:
            raise ConflictError("in use")
        self.held[name] = target

    async def renew(self, name: str, ttl_s: int) -> None:
        if name not in self.held:
            raise NotFoundError("it is over")
        self.renewed.add(name)

    async def release(self, name: str) -> None:
        self.held.pop(name, None)

    async def list_others(self) -> tuple[Hold, ...]:
        return ()

    async def list_own(self) -> tuple[str, ...]:
        return tuple(self.held)

    async def read(self, node_name: str) -> tuple[str, str]:
        if self.away:
            raise UnavailableError("away")
        return self.labels.get(node_name, ("", ""))

    async def ask(self, node_name: str, node_uid: str, config: str) -> str:
        assert self.held, "asked about a node that anybody could get meanwhile"
        if not self.refuses:
            self.labels[node_name] = (config, self.labels.get(node_name, ("", "success"))[1])
        if self.unheard:
            raise UnavailableError("no answer")
        return self.refuses


def a_node(name: str, *instances: MigPlacement, gpus: int = 1, cut: bool = False, **more: Any) -> NodeFacts:
    cards = tuple(
        Gpu(
            uuid=f"GPU-{name}-{index}",
            index=index,
            model="A100-SXM4-40GB",
            architecture="ampere",
            memory_mib=40960,
            health=GpuHealth.HEALTHY,
            mig_enabled=cut or bool(instances),
            mig_instances=tuple(MigInstance(place, 1, 4864, f"MIG-{place.start}") for place in instances),
        )
        for index in range(gpus)
    )
    state = NodeState(name, f"uid-{name}", NodeMode.NVIDIA, Delivery.NONE, cards)
    return replace(NodeFacts(state), **more)


def a_waiting_pod(name: str, resource: str, count: int = 1, node: str = "", **spec: Any) -> dict[str, Any]:
    limits = {"limits": {resource: str(count)}}
    return {
        "metadata": {"name": name, "namespace": "team", "uid": f"uid-{name}"},
        "spec": {"containers": [{"name": "main", "resources": limits}]}
        | ({"nodeName": node} if node else {})
        | spec,
        "status": {"phase": "Pending"},
    }


SMALL = a_waiting_pod("small", "nvidia.com/mig-1g.5gb")


def a_steering(world: World, clock: FakeClock, options: SteeringOptions = OPTIONS) -> Steering:
    return Steering(world, world, clock, MigMetrics(CollectorRegistry()), options)


async def after_a_while(
    steering: Steering, clock: FakeClock, pods: list[dict[str, Any]], nodes: list[NodeFacts]
) -> None:
    for _ in range(2):
        await steering.step(pods, nodes)
        await clock.advance(31.0)
    await steering.step(pods, nodes)


async def test_a_node_is_asked_about_as_soon_as_there_is_a_leader_to_hold_it() -> None:
    world, clock = World(extender_away=True), FakeClock()
    steering = a_steering(world, clock)
    await after_a_while(steering, clock, [SMALL], [a_node("n1")])
    world.extender_away = False

    await steering.step([SMALL], [a_node("n1")])

    assert world.labels.keys() == {"n1"}


async def test_a_node_that_may_have_been_asked_about_stays_held() -> None:
    world, clock = World(unheard=True), FakeClock()

    await after_a_while(a_steering(world, clock), clock, [SMALL], [a_node("n1")])

    assert world.labels.keys() == {"n1"}
    assert world.held != {}


async def test_an_idle_node_is_held_and_gets_the_layout_that_waiting_pods_ask_for() -> None:
    world, clock = World(), FakeClock()

    await after_a_while(a_steering(world, clock), clock, [SMALL], [a_node("n1", gpus=8), a_node("n2")])

    assert world.labels == {"n2": ("all-1g.5gb", "success")}
    assert [target.node_name for target in world.held.values()] == ["n2"]


async def test_nothing_is_written_where_it_is_not_switched_on() -> None:
    world, clock = World(), FakeClock()

    await after_a_while(a_steering(world, clock, SteeringOptions()), clock, [SMALL], [a_node("n1")])

    assert (world.labels, world.held) == ({}, {})


async def test_a_free_slice_is_left_to_the_device_plugin() -> None:
    world, clock = World(), FakeClock()
    cut = a_node("n1", MigPlacement(0, "1g.5gb"))

    await after_a_while(a_steering(world, clock), clock, [SMALL], [cut, a_node("n2")])

    assert world.labels == {}


TEAM_A = NodePlace(labels=(("team", "a"),))
TAINTED = NodePlace(taints=(Taint("team", "a", "NoSchedule"),))
PRODUCT = NodePlace(labels=(("nvidia.com/gpu.product", "NVIDIA-A100-SXM4-40GB-MIG-2g.10gb"),))
OF_B = {
    "requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchExpressions": [{"key": "team", "operator": "In", "values": ["b"]}]}]
    }
}


@pytest.mark.parametrize(
    ("place", "spec"),
    [
        (TEAM_A, {"nodeSelector": {"team": "b"}}),
        (TEAM_A, {"affinity": {"nodeAffinity": OF_B}}),
        (TAINTED, {}),
        (PRODUCT, {"nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}}),
    ],
)
async def test_a_node_that_the_waiting_pods_can_not_use_is_neither_cut_nor_counted(
    place: NodePlace, spec: dict[str, Any]
) -> None:
    world, clock = World(), FakeClock()
    pods = [a_waiting_pod("small", "nvidia.com/mig-1g.5gb", **spec)]
    free = MigPlacement(0, "1g.5gb")
    theirs = NodePlace(labels=(("nvidia.com/gpu.product", "NVIDIA-H100-80GB-HBM3"), ("team", "b")))

    await after_a_while(a_steering(world, clock), clock, pods, [a_node("n1", place=place)])
    alone = dict(world.labels)
    cut, idle = a_node("n1", free, place=place), a_node("n2", place=theirs)
    await after_a_while(a_steering(world, clock), clock, pods, [cut, idle])

    assert alone == {}
    assert world.labels.keys() == {"n2"}


@pytest.mark.parametrize(
    ("place", "spec"),
    [
        (TEAM_A, {"nodeSelector": {"team": "a"}}),
        (TAINTED, {"tolerations": [{"key": "team", "operator": "Exists"}]}),
        (PRODUCT, {"nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB"}}),
        (PRODUCT, {"nodeSelector": {"nvidia.com/mig.config": "all-1g.5gb"}}),
    ],
)
async def test_a_node_that_the_waiting_pods_can_use_once_it_is_cut_so_is_asked_about(
    place: NodePlace, spec: dict[str, Any]
) -> None:
    world, clock = World(), FakeClock()
    pods = [a_waiting_pod("small", "nvidia.com/mig-1g.5gb", **spec)]

    await after_a_while(a_steering(world, clock), clock, pods, [a_node("n1", place=place)])

    assert world.labels.keys() == {"n1"}


async def test_pods_that_can_not_use_the_node_that_is_being_cut_get_another_and_no_others_do() -> None:
    world, clock = World(), FakeClock()
    steering = a_steering(world, clock)
    nodes = [
        a_node("n1", place=TEAM_A),
        a_node("n2", place=TEAM_A),
        a_node("n3", place=NodePlace(labels=(("team", "b"),))),
    ]
    of_a = [
        a_waiting_pod(f"a{index}", "nvidia.com/mig-1g.5gb", nodeSelector={"team": "a"}) for index in (1, 2)
    ]
    of_b = a_waiting_pod("b", "nvidia.com/mig-1g.5gb", nodeSelector={"team": "b"})

    await after_a_while(steering, clock, [SMALL, *of_a, of_b], nodes)
    restarting = NodePlace(
        labels=TEAM_A.labels,
        taints=(Taint("node.kubernetes.io/not-ready", "", "NoSchedule"),),
        unschedulable=True,
    )
    await steering.step([SMALL, *of_a, of_b], [a_node("n1", place=restarting), *nodes[1:]])

    assert world.labels.keys() == {"n1", "n3"}


async def test_a_node_that_anybody_may_use_is_left_alone() -> None:
    world, clock = World(), FakeClock()
    holder = Holder(PodRef("a", "b", "c"), "main", (DeviceRef("GPU-held-0"),), HolderSource.KUBELET)
    held, unknown = a_node("held"), a_node("unknown")
    nodes = [
        replace(held, state=replace(held.state, holders=(holder,))),
        replace(unknown, state=replace(unknown.state, holders_unknown_reason="the kubelet does not answer")),
        a_node("untrusted", untrusted_reasons=("silent",)),
        a_node("cordoned", place=NodePlace(unschedulable=True)),
        a_node("bound"),
    ]
    pods = [SMALL, a_waiting_pod("there", "nvidia.com/gpu", node="bound")]

    await after_a_while(a_steering(world, clock), clock, pods, nodes)

    assert (world.labels, world.held) == ({}, {})
    assert busy_nodes(pods) == {"bound"}


async def test_the_ledger_and_the_manager_have_the_last_word() -> None:
    for world in (World(in_use=True), World(refuses="the MIG manager is at work on it: pending")):
        clock = FakeClock()

        await after_a_while(a_steering(world, clock), clock, [SMALL], [a_node("n1")])

        assert (world.labels, world.held) == ({}, {})


async def test_the_hold_ends_when_the_manager_says_how_it_went_and_the_node_rests() -> None:
    world, clock = World(labels={"n1": ("all-disabled", "success")}), FakeClock()
    steering = a_steering(world, clock)
    await after_a_while(steering, clock, [SMALL], [a_node("n1")])
    during = []
    for state in ("success", "pending", "pending"):
        world.labels["n1"] = ("all-1g.5gb", state)
        await clock.advance(60.0)
        await steering.step([SMALL], [a_node("n1")])
        during.append(len(world.held))
    world.labels["n1"] = ("all-1g.5gb", "success")

    await steering.step([], [a_node("n1", MigPlacement(0, "1g.5gb"))])
    world.labels["n1"] = ("all-disabled", "success")
    await clock.advance(60.0)
    await steering.step([SMALL], [a_node("n1")])

    assert during == [1, 1, 1]
    assert world.held == {}
    assert world.labels["n1"] == ("all-disabled", "success"), "steered again at once"


async def test_a_node_stays_held_though_the_leader_changes_while_the_manager_is_at_work() -> None:
    world, clock = World(), FakeClock()
    await after_a_while(a_steering(world, clock), clock, [SMALL], [a_node("n1"), a_node("n2")])
    world.labels["n1"] = ("all-1g.5gb", "rebooting")
    nodes = [a_node("n1", untrusted_reasons=("silent",)), a_node("n2")]

    next_ = a_steering(world, clock)
    await release_strays(world)
    await next_.take_over(nodes)
    await after_a_while(next_, clock, [SMALL], nodes)
    during = [target.node_name for target in world.held.values()]
    world.labels["n1"] = ("all-1g.5gb", "success")
    await next_.step([], nodes)

    assert during == ["n1"], "let go of, or another one is asked about for the same pods"
    assert world.renewed == {"mig-node-uid-n1"}
    assert world.held == {}


async def test_a_hold_that_was_lost_while_the_manager_is_at_work_is_taken_again() -> None:
    world, clock = World(), FakeClock()
    steering = a_steering(world, clock)
    await after_a_while(steering, clock, [SMALL], [a_node("n1")])
    world.labels["n1"] = ("all-1g.5gb", "pending")
    world.held.clear()
    await clock.advance(60.0)

    await steering.step([SMALL], [a_node("n1")])

    assert [target.node_name for target in world.held.values()] == ["n1"]


@pytest.mark.parametrize("enabled", [True, False])
async def test_holds_of_before_on_nodes_that_were_not_asked_about_or_are_gone_end(enabled: bool) -> None:
    clock, target = FakeClock(), HoldTarget("n1", "uid-n1")
    world = World(held={"mig-node-uid-n1": target, "mig-node-uid-gone": target})
    if not enabled:
        world.labels["n1"] = ("all-1g.5gb", "success")

    await a_steering(world, clock, replace(OPTIONS, enabled=enabled)).take_over([a_node("n1")])

    assert world.held == {}


async def release_strays(world: World) -> None:
    for name in stray_holds(await world.list_own(), ()):
        await world.release(name)


async def test_a_manager_that_never_answers_keeps_no_node_closed() -> None:
    world, clock = World(), FakeClock()
    steering = a_steering(world, clock)
    await after_a_while(steering, clock, [SMALL], [a_node("n1")])
    world.away = True

    for _ in range(16):
        await clock.advance(60.0)
        await steering.step([SMALL], [a_node("n1")])

    assert world.held == {}


async def test_whole_gpus_are_asked_for_where_idle_nodes_are_cut() -> None:
    world, clock = World(), FakeClock()
    pods = [a_waiting_pod("whole", "nvidia.com/gpu")]

    await after_a_while(a_steering(world, clock), clock, pods, [a_node("n1", MigPlacement(0, "1g.5gb"))])

    assert world.labels["n1"][0] == "all-disabled"
