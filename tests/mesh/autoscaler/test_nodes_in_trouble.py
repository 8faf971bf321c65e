"""Round by round on a simulated API: dead nodes, silent services, clocks, and what came meanwhile."""

import math
from copy import deepcopy
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from gpuloom.errors import UnavailableError
from gpuloom.kube.parse import format_time
from gpuloom.kube.resources import GPU_NODE_CLAIMS
from gpuloom.model.policies import CapacityType
from gpuloom.names import ANNOTATION_SPOT_WARNING
from gpuloom.sim.kubeapi.verbs.store import WriteOptions
from services.autoscaler.core.buying.plan import PlannedNode
from services.autoscaler.core.lifecycle.machines import Instance, InstanceState
from services.autoscaler.core.lifecycle.sweep import adopted_name
from services.autoscaler.core.scaling.policies import Effective
from services.autoscaler.nodes.claim_store import NewClaim, new_claim
from tests.mesh.autoscaler.memory_cloud import TYPE
from tests.mesh.autoscaler.test_nodes_loop import PRIORITY, WAITED_S, with_a_node
from tests.mesh.autoscaler.world import CLAIMS, POLICIES, POOL, a_world
from tests.mesh.waiting import until
from tests.unit.autoscaler.builders import an_offering


async def test_a_launch_that_came_to_nothing_is_a_failed_addition_and_no_removal() -> None:
    """A group refuses nothing: what went wrong shows only afterwards."""
    async with a_world(grouped=True) as world:
        world.add_policy()
        world.add_pod("first")
        world.clock.ahead_s += WAITED_S
        world.cloud.has_machines = False
        await world.rounds(2)
        world.clock.ahead_s += 300
        await world.rounds(2)
        world.cloud.has_machines = True
        world.clock.ahead_s += 300
        await world.rounds(3, joins=False)
        world.clock.ahead_s += 900
        await world.rounds(4, joins=False)

        assert world.replica is not None
        value = world.replica.registry.get_sample_value
        counted = {
            action: value(
                "gpu_autoscaler_scaling_actions_total", {"action": action, "pool": POOL, "result": "failed"}
            )
            for action in ("scale-up", "scale-down")
        }
        assert counted == {"scale-up": 2, "scale-down": None}


async def test_a_machine_that_was_there_already_costs_what_it_would_cost_now() -> None:
    async with a_world() as world:
        world.cloud._buy(POOL, "zone-a", CapacityType.SPOT, "")
        world.add_policy(minNodes=1)

        await world.rounds(6)

        assert world.replica is not None
        cost = world.replica.registry.get_sample_value(
            "gpu_autoscaler_estimated_monthly_cost_usd", {"capacity_type": "spot"}
        )
        assert world.claim_states() == ["GPUReady"]
        assert cost == pytest.approx(0.4 * 720)


async def test_the_longest_name_of_a_pool_leaves_room_for_those_of_its_claims() -> None:
    """A replacement names the claim that it replaces in a label, which has at most 63 characters."""
    pool = "a" * 63
    async with a_world() as world:
        node = await with_a_node(world, nodePools=[{"name": pool, "instanceTypes": [TYPE]}])
        world.api.store.delete("pods", "first", namespace="default")
        world.add_pod("runs", node)

        world.annotate_node(node, **{ANNOTATION_SPOT_WARNING: "true"})
        await world.rounds(2)

        assert world.cloud.bought == 2
        adopted = Instance("i-1", "aws:///z/i-1", InstanceState.RUNNING, TYPE, "z", CapacityType.SPOT, pool)
        assert len(adopted_name(adopted)) == 63


async def test_a_notice_is_followed_while_discovery_is_silent_and_its_replacement_comes_after() -> None:
    """The machine ends whoever answers; only what is bought is decided on what discovery knows."""
    async with a_world() as world:
        node = await with_a_node(world)
        world.api.store.delete("pods", "first", namespace="default")
        for name, priority in (("batch", "low"), ("train", "high")):
            world.add_pod(name, node, annotations={PRIORITY: priority})
            world.run_pod(name)
        world.known.silent_s = 60.0

        world.annotate_node(node, **{ANNOTATION_SPOT_WARNING: "true"})
        await world.rounds(1)
        cordoned, left, bought = (
            world.api.store.get("nodes", node)["spec"].get("unschedulable"),
            set(world.pods()),
            world.cloud.bought,
        )
        world.known.silent_s = 0.0
        await world.rounds(2)

        assert (cordoned, left, bought) == (True, {"train"}, 1)
        assert world.cloud.bought == 2


async def test_a_cooldown_of_a_clock_that_was_ahead_begins_now() -> None:
    async with a_world() as world:
        node = await with_a_node(world)
        world.add_pod("runs", node)
        world.api.store.delete("pods", "first", namespace="default")
        world.add_pod("second")
        policy = deepcopy(world.api.store.get(POLICIES, "mine"))
        policy["status"]["lastScaleUpTime"] = format_time(world.clock.now() + timedelta(hours=2))
        world.api.store.update(POLICIES, policy, WriteOptions(subresource="status"))
        await world.restart()

        await world.rounds(1)
        assert world.replica is not None
        shown = world.replica.registry.get_sample_value("gpu_autoscaler_scale_up_cooldown_remaining_seconds")
        world.clock.ahead_s += 200
        await world.rounds(2)

        assert shown == pytest.approx(180, abs=5)
        assert world.cloud.bought == 2


async def test_nodes_that_kubernetes_gave_up_block_nothing_and_are_no_place_for_pods() -> None:
    """Silent agents freeze it, until Kubernetes knows that it is the nodes which are dead."""
    async with a_world() as world:
        world.add_policy(scaleUpCooldownSeconds=0)
        for name in ("a", "b", "c", "d", "e"):
            world.add_pod(name)
        world.clock.ahead_s += WAITED_S
        await world.rounds(6)
        before = world.cloud.bought
        dead = sorted(node["metadata"]["name"] for node in world.listed("nodes"))[:2]
        for node in dead:
            world.lose_node(node)
        for name in ("a", "b", "c", "d", "e"):
            world.api.store.delete("pods", name, namespace="default")
        for name in ("anew", "more", "third", "fourth"):
            world.add_pod(name)

        world.clock.ahead_s += WAITED_S
        await world.rounds(2)
        early, frozen = world.cloud.bought, world.condition("Frozen")["status"]
        world.clock.ahead_s += 300
        await world.rounds(4)

        assert (before, early, frozen) == (5, 5, "True")
        assert world.condition("Frozen")["status"] == "False"
        assert world.cloud.bought == 6, "three nodes live, and four pods wait"


async def test_the_machine_of_a_dead_node_ends_when_its_claim_is_deleted() -> None:
    """Its pods were told to leave, and nobody is there who could do it."""
    async with a_world() as world:
        node = await with_a_node(world)
        world.api.store.delete("pods", "first", namespace="default")
        world.add_pod("runs", node)
        world.run_pod("runs")
        world.lose_node(node)
        (claim,) = world.listed(CLAIMS)
        await world.client.delete(GPU_NODE_CLAIMS, claim["metadata"]["name"])

        await world.rounds(4)
        early = dict(world.cloud.machines)
        world.clock.ahead_s += 300
        await world.rounds(6)

        assert early
        assert not world.cloud.machines


async def test_where_nearly_half_of_the_nodes_are_dead_nobody_is_believed() -> None:
    """Then it is rather the network than the nodes; machines that are bought would not join either."""
    async with a_world() as world:
        world.add_policy(scaleUpCooldownSeconds=0)
        for number in range(8):
            world.add_pod(f"p{number}")
        world.clock.ahead_s += WAITED_S
        await world.rounds(6)
        for node in sorted(one["metadata"]["name"] for one in world.listed("nodes"))[:4]:
            world.lose_node(node)
        world.add_pod("more")

        world.clock.ahead_s += 600
        await world.rounds(4)

        assert world.cloud.bought == 8
        assert world.condition("Frozen")["message"] == "4 of 8 GPU nodes are not ready now"


async def test_a_claim_that_vanished_unseen_and_a_restored_etcd_stop_no_round() -> None:
    """What was written then is never seen again."""
    async with a_world() as world:
        world.add_policy()
        await world.rounds(1)
        replica = world.replica
        assert replica is not None
        await replica.stop()
        policy, offering = replica.policies.effective()[0], an_offering(TYPE, 1.0, pool=POOL)
        new = new_claim(policy, offering, "", world.clock.now())
        await replica.store.create(new)
        await world.client.patch(GPU_NODE_CLAIMS, new.name, None, {"metadata": {"finalizers": None}})
        await world.client.delete(GPU_NODE_CLAIMS, new.name)
        before = replica.store.caught_up()

        replica.start()
        await until(replica.store.caught_up)
        await replica.stop()
        await replica.store.create(new_claim(policy, offering, "", world.clock.now()))
        unseen = replica.store.caught_up()
        replica.store.informer.begin_anew()

        assert (before, unseen, replica.store.caught_up()) == (False, False, True)


async def test_what_came_since_a_cheaper_node_was_bought_keeps_the_old_one() -> None:
    async with a_world() as world:
        node = await with_a_node(world)
        world.api.store.delete("pods", "first", namespace="default")
        assert world.replica is not None
        scaler, (old,) = world.replica.scaler, world.claims()
        planned = PlannedNode(an_offering(TYPE, 0.1, pool=POOL), ())
        await scaler.buy(scaler.policies.effective()[0], [planned], "", consolidates=old.meta.name)
        world.add_pod("bare", node, ownerReferences=[])
        world.run_pod("bare")

        await world.rounds(8)
        kept = "bare" in world.pods() and world.claim_states() == ["GPUReady", "GPUReady"]
        world.api.store.delete("pods", "bare", namespace="default")
        await world.rounds(6)

        assert kept
        assert world.claim_states() == ["GPUReady", "Gone"]


async def test_a_node_stays_beside_its_cheaper_one_while_the_policy_may_not_act() -> None:
    async with a_world() as world:
        await with_a_node(world)
        world.run_pod("first")
        assert world.replica is not None
        scaler, (old,) = world.replica.scaler, world.claims()
        planned = PlannedNode(an_offering(TYPE, 0.1, pool=POOL), ())
        await scaler.buy(scaler.policies.effective()[0], [planned], "", consolidates=old.meta.name)
        world.set_policy(enabled=False)

        await world.rounds(8)
        kept = world.claim_states()
        world.set_policy(enabled=True)
        await world.rounds(6)

        assert kept == ["GPUReady", "GPUReady"]
        assert world.claim_states() == ["GPUReady", "Gone"]


async def test_utilization_that_nobody_tells_is_not_shown_as_it_was() -> None:
    async with a_world() as world:
        node = await with_a_node(world)
        uid, facts = next(iter(world.known.facts.items()))
        assert world.replica is not None
        shown = []
        for told in (0.9, None):
            usage = tuple(replace(one, utilization_ratio=told) for one in facts.state.usage)
            world.known.facts[uid] = replace(facts, state=replace(facts.state, usage=usage))
            await world.rounds(1)
            shown.append(world.replica.registry.get_sample_value("gpu_autoscaler_cluster_utilization"))
        world.api.store.delete("nodes", node)
        world.known.facts.clear()
        await world.rounds(1, joins=False)
        shown.append(world.replica.registry.get_sample_value("gpu_autoscaler_cluster_utilization"))

        assert shown == pytest.approx([0.9, math.nan, 0.0], nan_ok=True)


async def test_f10_a_node_that_use_bought_stays_while_the_others_would_be_too_busy_without_it() -> None:
    """Nothing waits: one GPU is busy, so another is bought, which idles until the work ends."""
    async with a_world() as world:
        node = await with_a_node(world, scaleUpCooldownSeconds=0, scaleDownCooldownSeconds=0)
        world.api.store.delete("pods", "first", namespace="default")
        world.add_pod("runs", node)
        uid, idle = next(iter(world.known.facts.items()))
        usage = tuple(replace(one, utilization_ratio=1.0) for one in idle.state.usage)
        world.known.facts[uid] = replace(idle, state=replace(idle.state, usage=usage))
        await world.rounds(4)

        bought = world.cloud.bought
        await world.rounds(30)
        kept, told = world.cloud.bought, world.policy()["message"]
        world.known.facts[uid] = idle
        await world.rounds(30)

        assert (bought, kept, world.cloud.bought) == (2, 2, 2)
        assert "without it GPU utilization is 100%, above 80%" in told
        assert world.claim_states() == ["GPUReady", "Gone"]


@pytest.mark.parametrize("noticed", [False, True])
async def test_a_spot_machine_that_the_cloud_takes_is_one_interruption_with_a_notice_and_without(
    noticed: bool,
) -> None:
    async with a_world() as world:
        node = await with_a_node(world, spotPercentage=100)
        assert world.replica is not None
        if noticed:
            world.annotate_node(node, **{ANNOTATION_SPOT_WARNING: "true"})
            await world.rounds(1)
        del world.cloud.machines[node]

        await world.rounds(20)

        (taken,) = [one for one in world.claims() if one.status.node_name == node]
        assert taken.spec.offering.capacity_type is CapacityType.SPOT
        assert taken.status.gone is not None
        assert world.replica.scaler.book.interruptions == 1
        value = world.replica.registry.get_sample_value
        assert value("gpu_autoscaler_spot_interruptions_total", {"pool": POOL}) == 1


async def test_a_spot_machine_that_we_end_is_no_interruption() -> None:
    async with a_world() as world:
        node = await with_a_node(world, scaleDownCooldownSeconds=0)
        world.api.store.delete("pods", "first", namespace="default")

        await world.rounds(30)

        assert node not in world.cloud.machines
        assert world.replica is not None
        assert world.replica.scaler.book.interruptions == 0


async def test_a_policy_that_can_not_be_written_holds_up_no_other_and_is_tried_again_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with a_world() as world:
        world.add_policy("a-broken-one", nodePools=[])
        world.add_policy("mine", minNodes=1)
        replica = await world.restart()
        write, asked = replica.policies.write_status, []

        async def refuse(policy: Effective, *rest: Any) -> None:
            asked.append(policy.name)
            if policy.name == "a-broken-one":
                raise UnavailableError("the API server refuses it")
            await write(policy, *rest)

        monkeypatch.setattr(replica.policies, "write_status", refuse)
        await world.rounds(20)

        assert world.claim_states() == ["GPUReady"]
        assert world.policy("mine")["currentNodes"] == 1
        tried = asked.count("a-broken-one")
        assert 3 <= tried <= 7
        assert asked.count("mine") > 2 * tried
        assert replica.registry.get_sample_value("gpu_autoscaler_reconcile_errors_total") == tried


async def test_a_decision_that_can_not_be_carried_out_holds_up_others_for_one_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with a_world() as world:
        world.add_policy("a-broken-one", nodePools=[{"name": "other", "instanceTypes": [TYPE]}], minNodes=1)
        world.add_policy("mine", minNodes=1)
        replica = await world.restart()
        create = replica.store.create

        async def refuse(new: NewClaim) -> None:
            if new.spec.pool_name == "other":
                raise UnavailableError("the API server refuses it")
            await create(new)

        monkeypatch.setattr(replica.store, "create", refuse)
        await world.rounds(10)

        assert world.claim_states() == ["GPUReady"]
