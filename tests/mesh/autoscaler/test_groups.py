"""Round by round on a simulated API: groups of a cloud that somebody must mend."""

from typing import Any

from tests.mesh.autoscaler.memory_cloud import TYPE
from tests.mesh.autoscaler.test_nodes_loop import WAITED_S, with_a_node
from tests.mesh.autoscaler.world import POOL, a_world


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
