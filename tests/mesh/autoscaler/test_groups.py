"""Round by round on a simulated API: groups of a cloud that somebody must mend."""

from typing import Any

from tests.mesh.autoscaler.memory_cloud import TYPE
from tests.mesh.autoscaler.test_nodes_loop import WAITED_S, with_a_node
from tests.mesh.autoscaler.world import CLAIMS, POOL, a_world


async def test_a_group_that_can_not_be_read_is_a_condition_and_hides_its_own_pool_alone() -> None:
    """What it has is not known, so nothing of it ends, however long it lasts."""
    async with a_world(grouped=True) as world:
        world.cloud.pools = (POOL, "other")
        world.cloud.desired["other"] = 0
        pools: list[dict[str, Any]] = [{"name": name, "instanceTypes": [TYPE]} for name in (POOL, "other")]
        pools[0]["priority"] = 10
        node = await with_a_node(world, nodePools=pools, scaleUpCooldownSeconds=0, scaleDownCooldownSeconds=0)
        world.api.store.delete("pods", "first", namespace="default")
        for name in ("second", "third"):
            world.add_pod(name)
        world.cloud.unread = {POOL: "group gpu-asg-pool can't be read: it is not there"}

        world.clock.ahead_s += WAITED_S
        await world.rounds(60, apart_s=10)
        states = {one.spec.pool_name: one.status.state for one in world.claims()}
        told, kept = world.condition("ProviderConfigured"), world.policy()["message"]
        world.cloud.unread = {}
        await world.rounds(30)

        assert states == {POOL: "GPUReady", "other": "GPUReady"}
        assert (told["status"], "gpu-asg-pool" in told["message"]) == ("False", True)
        assert node in world.cloud.machines
        assert "gpu-asg-pool" in kept
        assert world.condition("ProviderConfigured")["status"] == "True"


async def test_a_node_whose_group_is_configured_no_more_stays_as_it_is_and_is_known_again_with_it() -> None:
    async with a_world(grouped=True) as world:
        node = await with_a_node(world, scaleUpCooldownSeconds=0, scaleDownCooldownSeconds=0)
        world.api.store.delete("pods", "first", namespace="default")
        world.cloud.pools = ()

        await world.rounds(60, apart_s=10)
        (claim,) = world.listed(CLAIMS)
        told = [one for one in claim["status"]["conditions"] if one["type"] == "Listed"]
        kept = world.policy()["message"]
        world.cloud.pools = (POOL,)
        world.add_pod("second", node)
        await world.rounds(6)

        assert (claim["status"]["state"], told[0]["status"]) == ("GPUReady", "Unknown")
        assert "no group of the cloud is configured" in told[0]["message"]
        assert "no group of the cloud is configured" in kept
        assert world.claim_states() == ["GPUReady"]
        assert list(world.cloud.machines) == [node]
        assert "second" in world.pods()


async def test_a_node_whose_claim_ended_while_it_ran_keeps_its_pods_and_its_claim_begins_again() -> None:
    """As when the settings named another account for a while."""
    async with a_world(grouped=True) as world:
        node = await with_a_node(world)
        world.api.store.delete("pods", "first", namespace="default")
        world.add_pod("runs", node)
        world.cloud.has_machines = False
        machines, world.cloud.machines = world.cloud.machines, {}
        await world.rounds(20, joins=False)
        over = world.claim_states()
        world.cloud.machines = machines

        await world.rounds(6)

        (claim,) = world.listed(CLAIMS)
        assert over == ["Gone"]
        assert (claim["status"]["state"], claim["status"]["nodeName"]) == ("GPUReady", node)
        assert not {"goneAt", "drainingAt"} & claim["status"].keys()
        assert list(world.cloud.machines) == [node]
        assert "runs" in world.pods()
