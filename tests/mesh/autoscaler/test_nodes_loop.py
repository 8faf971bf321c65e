"""Round by round on a simulated API: what is bought, told and given back, whatever fails in between."""

from typing import Any

import pytest

from gpuloom.names import ANNOTATION_SPOT_WARNING
from services.autoscaler.core.buying.pending import Worth
from services.autoscaler.core.lifecycle import claims as life
from services.autoscaler.core.lifecycle.machines import FailureKind, PricedOffering
from tests.mesh.autoscaler.memory_cloud import TYPE, CrashError, a_refusal
from tests.mesh.autoscaler.world import BUDGETS, CLAIMS, INFERENCE, POOL, World, a_world
from tests.mesh.waiting import until

WAITED_S = 130.0
PRIORITY = "gpu-autoscaler.io/eviction-priority"


async def with_a_node(world: World, **spec: Any) -> str:
    """A policy, a pod that waited, and the node that was bought for it."""
    world.add_policy(**spec)
    world.add_pod("first")
    world.clock.ahead_s += WAITED_S
    await world.rounds(6)
    (name,) = (node["metadata"]["name"] for node in world.listed("nodes"))
    return str(name)


async def test_a_pod_waits_a_node_is_bought_labelled_and_told_of() -> None:
    async with a_world() as world:
        world.add_policy()
        world.add_pod("first")
        await world.rounds(2)
        early = world.cloud.bought

        world.clock.ahead_s += WAITED_S
        await world.rounds(6)

        (node,) = world.listed("nodes")
        status = world.policy()
        assert early == 0
        assert world.cloud.bought == 1
        assert world.claim_states() == ["GPUReady"]
        assert node["metadata"]["labels"]["team"] == "research"
        assert node["metadata"]["labels"]["gpu-autoscaler.io/capacity-type"] == "spot"
        assert (status["currentNodes"], status["desiredNodes"]) == (1, 1)
        assert status["lastAction"]["type"] == "scale-up"
        assert "default/first" in status["lastAction"]["reason"]
        assert world.condition("Ready")["status"] == "True"
        assert world.condition("ProviderConfigured")["status"] == "True"


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("after", range(12))
async def test_f9_a_crash_after_any_cloud_call_leaves_no_orphan_and_buys_nothing_twice(
    grouped: bool, after: int
) -> None:
    """From the first look at the cloud to the end of the machine, with all that is written in between."""
    async with a_world(grouped=grouped) as world:
        world.add_policy(scaleUpCooldownSeconds=0, scaleDownCooldownSeconds=0)
        world.add_pod("first")
        world.clock.ahead_s += WAITED_S
        world.cloud.crash_after = after

        crashed = await rounds_with_crashes(world, 6)
        bought, states = world.cloud.bought, world.claim_states()
        world.api.store.delete("pods", "first", namespace="default")
        crashed += await rounds_with_crashes(world, 16, apart_s=10)

        assert crashed == 1
        assert (bought, states) == (1, ["GPUReady"])
        assert world.cloud.bought == 1
        assert world.claim_states() == ["Gone"]
        assert not world.cloud.machines
        assert world.cloud.desired[POOL] == 0


async def rounds_with_crashes(world: World, count: int, apart_s: float = 5.0) -> int:
    crashes = 0
    for _ in range(count):
        try:
            await world.rounds(apart_s=apart_s)
        except CrashError:
            crashes += 1
            await world.restart()
    return crashes


async def test_f5_a_refused_offering_is_followed_by_the_next_best_at_once() -> None:
    async with a_world() as world:
        world.add_policy()
        world.add_pod("first")
        world.clock.ahead_s += WAITED_S
        world.cloud.refusals = [a_refusal(FailureKind.CAPACITY), a_refusal(FailureKind.QUOTA)]

        await world.rounds(12)

        assert world.claim_states() == ["GPUReady", "Gone", "Gone"]
        (machine,) = world.cloud.machines.values()
        assert machine.capacity_type == "on-demand"


async def test_a_cloud_that_is_asked_too_often_is_left_alone_for_longer_each_time() -> None:
    async with a_world() as world:
        world.add_policy()
        world.add_pod("first")
        world.clock.ahead_s += WAITED_S
        world.cloud.refusals = [a_refusal(FailureKind.THROTTLED, "slow down") for _ in range(4)]

        await world.rounds(8, apart_s=5)
        asked = world.cloud.calls.count("request")
        await world.rounds(40, apart_s=5)

        assert asked < 4
        assert world.cloud.bought == 1
        assert world.claim_states() == ["GPUReady"]


async def test_a_node_that_works_and_is_not_told_of_is_adopted_and_left_alone() -> None:
    """Its pods use its GPUs, and no agent of ours is there: it neither ends nor counts as free."""
    async with a_world(grouped=True) as world:
        world.cloud.desired[POOL] = 1
        world.cloud.settle()
        world.join()
        world.known.facts.clear()
        world.known.nodes.clear()
        world.add_pod("works", "i-0")
        world.add_policy()
        await world.rounds(4)

        world.clock.ahead_s += 3600
        await world.rounds(4)
        world.add_pod("first")
        world.clock.ahead_s += WAITED_S
        await world.rounds(4)

        assert "works" in world.pods()
        assert not world.api.store.get("nodes", "i-0")["spec"].get("unschedulable")
        assert "i-0" in world.cloud.machines
        assert world.cloud.bought == 2


async def test_labels_that_are_none_do_not_keep_a_node_for_ever() -> None:
    async with a_world() as world:
        pool = {"name": POOL, "instanceTypes": [TYPE], "labels": {"team": "not a label!"}}
        node = await with_a_node(world, nodePools=[pool], scaleDownCooldownSeconds=0)
        labels = world.api.store.get("nodes", node)["metadata"]["labels"]
        world.api.store.delete("pods", "first", namespace="default")

        await world.rounds(16, apart_s=10)

        assert labels["gpu-autoscaler.io/capacity-type"]
        assert world.claim_states() == ["Gone"]


async def test_prices_that_a_cloud_refuses_are_not_asked_for_in_every_round() -> None:
    async with a_world() as world:
        world.add_policy()
        asked = 0

        async def refuse() -> list[PricedOffering]:
            nonlocal asked
            asked += 1
            raise a_refusal(FailureKind.THROTTLED, "slow down")

        world.cloud.offerings = refuse  # type: ignore[method-assign]
        await world.rounds(20, apart_s=5)

        assert asked == 2


async def test_f22_a_notice_cordons_replaces_and_evicts_low_before_medium_before_high() -> None:
    async with a_world() as world:
        node = await with_a_node(world, spotInstancePercentage=1.0)
        for name, priority in (("train", "high"), ("serve", "medium"), ("play", "low")):
            annotations = {"gpu-autoscaler.io/eviction-priority": priority}
            world.add_pod(name, node, annotations=annotations)
        world.add_pod(
            "bare", node, ownerReferences=[], annotations={"gpu-autoscaler.io/eviction-priority": "low"}
        )
        world.api.store.delete("pods", "first", namespace="default")

        world.annotate_node(node, **{ANNOTATION_SPOT_WARNING: "true"})
        left: list[list[str]] = []
        claims: list[str] = []
        asked = ""
        for _ in range(8):
            before = world.pods()
            await world.rounds(joins=False)
            left.append(sorted(before.keys() - world.pods().keys()))
            claims = claims or world.claim_states()
            if "train" in world.pods():
                annotations = world.pods()["train"]["metadata"]["annotations"]
                asked = annotations.get("gpuloom.dev/checkpoint-requested", asked)

        assert "Requested" in claims, "the replacement is asked for before anybody leaves"
        assert left[0] == []
        assert [some for some in left if some] == [["bare", "play"], ["serve"], ["train"]]
        assert asked
        assert world.api.store.get("nodes", node)["spec"]["unschedulable"]
        await until(lambda: world.events("NodeGoes"))
        assert {one["type"] for one in world.events("NodeGoes")} == {"Warning"}


async def test_f22_a_pod_that_can_not_be_evicted_holds_up_nothing_else() -> None:
    """The API answers 500 for a pod of two budgets, at every attempt: others leave, and nodes are bought."""
    async with a_world() as world:
        node = await with_a_node(world, scaleUpCooldownSeconds=0)
        world.api.store.delete("pods", "first", namespace="default")
        for name in ("a-stuck", "b-moves"):
            world.add_pod(name, node, labels={"app": name}, annotations={PRIORITY: "low"})
            world.run_pod(name)
        for name in ("one", "two"):
            budget = {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "a-stuck"}}}
            world.api.store.create(BUDGETS, {"metadata": {"name": name}, "spec": budget}, namespace="default")
        world.annotate_node(node, **{ANNOTATION_SPOT_WARNING: "true"})
        await world.rounds(4)
        bought = world.cloud.bought
        for name in ("later-1", "later-2", "later-3"):
            world.add_pod(name)
        world.clock.ahead_s += WAITED_S
        await world.rounds(3)

        assert {"a-stuck", "b-moves"} & world.pods().keys() == {"a-stuck"}
        assert world.cloud.bought > bought


async def test_a_notice_after_which_nothing_happens_opens_the_node_again() -> None:
    async with a_world() as world:
        node = await with_a_node(world, gracefulEviction=False)
        world.api.store.delete("pods", "first", namespace="default")
        world.add_pod("runs", node)

        world.annotate_node(node, **{ANNOTATION_SPOT_WARNING: "true"})
        await world.rounds(3)
        during = world.api.store.get("nodes", node)["spec"].get("unschedulable")
        kept = "runs" in world.pods()
        bought = world.cloud.bought
        world.annotate_node(node, **{ANNOTATION_SPOT_WARNING: None})
        await world.rounds(2)

        assert during
        assert kept, "gracefulEviction: false cordons and replaces only"
        assert bought == 2
        assert not world.api.store.get("nodes", node)["spec"].get("unschedulable")


async def test_a_node_is_opened_again_by_a_leader_that_never_saw_its_notice_and_told_of_anew() -> None:
    """A notice that came to nothing is no interruption; the next one is followed like the first."""
    async with a_world() as world:
        node = await with_a_node(world, gracefulEviction=False)
        world.api.store.delete("pods", "first", namespace="default")
        world.add_pod("runs", node)
        world.annotate_node(node, **{ANNOTATION_SPOT_WARNING: "true"})
        await world.rounds(2)

        world.annotate_node(node, **{ANNOTATION_SPOT_WARNING: None})
        replica = await world.restart()
        await world.rounds(8)
        opened = not world.api.store.get("nodes", node)["spec"].get("unschedulable")
        rate = replica.scaler.book.interruption_rate
        world.annotate_node(node, **{ANNOTATION_SPOT_WARNING: "true"})
        await world.rounds(8)

        assert opened
        assert rate == 0
        assert world.api.store.get("nodes", node)["spec"]["unschedulable"]
        assert replica.scaler.book.interruption_rate > 0


async def test_a_notice_reaches_a_node_that_is_drained_already() -> None:
    """What still runs there is asked to save its work, and leaves within the notice, whoever is before it."""
    async with a_world() as world:
        node = await with_a_node(world)
        world.api.store.delete("pods", "first", namespace="default")
        for name, priority in (("kept", "low"), ("train", "high")):
            world.add_pod(name, node, labels={"app": name}, annotations={PRIORITY: priority})
            world.run_pod(name)
        budget = {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "kept"}}}
        world.api.store.create(BUDGETS, {"metadata": {"name": "b"}, "spec": budget}, namespace="default")
        assert world.replica is not None
        (claim,) = world.claims()
        drained = life.draining(claim.status, "ScaleDown", "little used", world.clock.now())
        await world.replica.store.record(claim, drained)
        await world.rounds(2)
        before = world.pods().keys() == {"kept", "train"}

        world.annotate_node(node, **{ANNOTATION_SPOT_WARNING: "true"})
        await world.rounds(1)
        train = world.pods()["train"]["metadata"]["annotations"]
        await world.rounds(20)

        assert before
        assert "gpuloom.dev/checkpoint-requested" in train
        assert "train" not in world.pods()


async def test_a_pod_in_the_place_of_a_failed_member_is_bought_for_and_no_size_stops_the_rounds() -> None:
    async with a_world() as world:
        world.add_policy()
        of_gang: dict[str, Any] = {
            "labels": {"gpuloom.dev/gang": "g"},
            "annotations": {"gpuloom.dev/gang-size": "3"},
        }
        for name in ("g-0", "g-1"):
            world.add_pod(name, "elsewhere", **of_gang)
        world.add_pod("g-2", **of_gang)
        hostile = {"gpuloom.dev/gang-size": "9" * 5000}
        world.add_pod("hostile", labels={"gpuloom.dev/gang": "h"}, annotations=hostile)
        world.clock.ahead_s += WAITED_S

        await world.rounds(2)

        assert world.replica is not None
        up = world.replica.scaler.outcomes["mine"].up
        assert "default/g-2" in up.reason or world.cloud.bought


async def test_each_group_of_a_leader_worker_set_is_a_gang_of_its_own() -> None:
    async with a_world() as world:
        world.add_policy(maxNodes=2)
        for group in "01":
            labels = {
                "gpuloom.dev/gang": "lws",
                "leaderworkerset.sigs.k8s.io/group-index": group,
            }
            for worker in "ab":
                world.add_pod(
                    f"lws-{group}-{worker}", labels=labels, annotations={"gpuloom.dev/gang-size": "2"}
                )
        world.clock.ahead_s += WAITED_S

        await world.rounds(3)

        assert world.cloud.bought == 2


async def test_a_replacement_comes_though_the_policy_has_its_maximum() -> None:
    async with a_world() as world:
        node = await with_a_node(world, maxNodes=1)
        limited = world.condition("Limited")
        world.api.store.delete("pods", "first", namespace="default")
        world.add_pod("runs", node)

        world.annotate_node(node, **{ANNOTATION_SPOT_WARNING: "true"})
        await world.rounds(3)

        assert limited["status"] == "True"
        assert "maximum of 1" in limited["message"]
        assert world.cloud.bought == 2


@pytest.mark.parametrize("for_all", [False, True])
async def test_a_dry_run_tells_and_touches_nothing(for_all: bool) -> None:
    async with a_world(grouped=True) as world:
        world.cloud.desired[POOL] = 1
        world.cloud.settle()
        world.cloud.desired[POOL] = 3
        world.cloud.has_machines = False
        world.join()
        if for_all:
            world.settings = type(world.settings)(world.settings.down, dry_run=True)
        world.add_policy(dryRun=not for_all)
        world.add_pod("runs", "i-0", ownerReferences=[])
        world.add_pod("first")
        world.add_pod("second")
        world.clock.ahead_s += WAITED_S
        await world.rounds(4)

        world.annotate_node("i-0", **{ANNOTATION_SPOT_WARNING: "true"})
        await world.rounds(4, apart_s=30)

        assert set(world.cloud.calls) == {"observe"}
        assert set(world.pods()) == {"runs", "first", "second"}
        assert not world.api.store.get("nodes", "i-0")["spec"].get("unschedulable")
        assert world.policy()["message"].startswith("dry run")
        assert world.replica is not None
        assert world.replica.scaler.outcomes["mine"].up.nodes, "it says what it would buy"


async def test_the_charts_own_policy_yields_its_pool_and_says_so() -> None:
    async with a_world() as world:
        world.add_policy("default", maxNodes=7)
        world.add_policy("mine", maxNodes=3)
        await world.rounds(2)

        lost = world.condition("Ready", "default")
        assert world.condition("Ready", "mine")["status"] == "True"
        assert lost["status"] == "False"
        assert lost["message"] == "pool pool belongs to policy mine"


async def test_a_provider_that_is_not_set_up_and_a_pool_without_a_group_are_conditions() -> None:
    async with a_world(grouped=True) as world:
        world.add_policy(
            "elsewhere", provider="gcp", nodePools=[{"name": "other", "gpuType": "nvidia-tesla-t4"}]
        )
        world.add_policy("mine", nodePools=[{"name": "unmapped", "instanceTypes": ["g5.xlarge"]}])
        await world.rounds(2)

        assert "gcp is not configured" in world.condition("ProviderConfigured", "elsewhere")["message"]
        assert "no group" in world.condition("ProviderConfigured", "mine")["message"]
        assert world.condition("ProviderConfigured", "mine")["status"] == "False"


async def test_f21_nothing_is_decided_before_the_last_write_is_seen() -> None:
    """A claim that was just made and is not in the cache yet is not bought a second time."""
    async with a_world() as world:
        world.add_policy(scaleUpCooldownSeconds=0)
        world.add_pod("first")
        world.clock.ahead_s += WAITED_S
        replica = await world.restart()
        await replica.round()
        made = len(world.listed(CLAIMS))
        replica.store.informer.get = lambda *_: None  # type: ignore[method-assign]

        await replica.loop.round()

        assert made == 1
        assert not replica.store.caught_up()
        assert len(world.listed(CLAIMS)) == 1


async def test_a_node_that_became_empty_goes_and_its_numbers_with_it() -> None:
    async with a_world() as world:
        await with_a_node(world, scaleDownCooldownSeconds=0)
        assert world.replica is not None
        registry = world.replica.registry
        labels = {"pool": POOL}
        before = registry.get_sample_value("gpu_autoscaler_desired_node_count", labels)
        world.api.store.delete("pods", "first", namespace="default")

        await world.rounds(16, apart_s=10)

        assert before == 1
        assert registry.get_sample_value("gpu_autoscaler_desired_node_count", labels) == 0
        assert not world.cloud.machines
        assert world.claim_states() == ["Gone"]
        down = {"action": "scale-down", "pool": POOL, "result": "succeeded"}
        assert registry.get_sample_value("gpu_autoscaler_scaling_actions_total", down) == 1


async def test_the_least_replicas_of_an_inference_policy_are_always_on() -> None:
    """One of two has a node already; of the pods that wait one more is, and only of that workload."""
    async with a_world() as world:
        target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "chat"}
        spec = {"targetRef": target, "minReplicas": 2, "maxReplicas": 9}
        spec["metrics"] = {"gpuUtilization": {"enabled": True, "targetPercentage": 70}}
        policy = {"metadata": {"name": "chat", "namespace": "default"}, "spec": spec}
        world.api.store.create(INFERENCE, policy, namespace="default")
        world.add_policy()
        world.add_pod("chat-0", "n1", ownerReferences=[of_replica_set("chat-5d9c")])
        for name, owner in (("chat-1", "chat-5d9c"), ("chat-2", "chat-5d9c"), ("other", "chatty-77f")):
            world.add_pod(name, ownerReferences=[of_replica_set(owner)])

        await world.rounds(2)

        assert world.replica is not None
        assert world.replica.scaler.snapshot is not None
        pending = world.replica.scaler.snapshot.pending
        assert [one.worth for one in pending].count(Worth.ALWAYS_ON) == 1
        assert {one.ref.name: one.worth for one in pending}["other"] is Worth.FLEXIBLE


def of_replica_set(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "name": name,
        "uid": f"uid-{name}",
        "controller": True,
    }
