"""What the autoscaler has, wants, would do and did."""

from collections.abc import Mapping

from gpuloom.clients.autoscaler import actions, plans, standing
from gpuloom.rpc.channel import RpcChannel
from gpuloom.runtime.clock import Clock
from services.console.core.scaling import (
    ScalingHistory,
    action_items,
    claim_items,
    plan_items,
    policy_items,
)
from services.console.core.sight import of_the_cluster
from services.console.core.state import Items
from services.console.ports import Source

INTERVAL_S = 5.0
TIMEOUT_S = 5.0
MOST_ACTIONS = 100
SECTIONS = ("policies", "claims", "plans", "actions", "scaling_history")


def scaling_source(channel: RpcChannel, clock: Clock) -> Source:
    history = ScalingHistory()

    async def read() -> Mapping[str, Items]:
        found = await standing(channel, TIMEOUT_S)
        planned = await plans(channel, TIMEOUT_S)
        done = await actions(channel, MOST_ACTIONS, TIMEOUT_S)
        history.note(clock.now(), found)
        parts = policy_items(found), claim_items(found), plan_items(planned), action_items(done)
        return dict(zip(SECTIONS, (*parts, history.items()), strict=True))

    return Source("autoscaler", dict.fromkeys(SECTIONS, of_the_cluster), INTERVAL_S, read)
