"""Whether a node should be replaced by a cheaper one: when the saving outweighs the move.

The saving, as a share of what all nodes of the policy cost, is compared with the disruption, as a share of
what all of them would be: a node counts one, and each pod that must move one. The cheaper machine is bought
first, and the old one drained only when it is ready, so that a cloud that has none leaves everything as it
was. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from gpuloom.model.claims import ClaimState, GpuNodeClaim
from services.autoscaler.core.buying.offerings import key_of
from services.autoscaler.core.buying.pending import units_of
from services.autoscaler.core.buying.plan import Effort, Limits, PlannedNode, make_plan
from services.autoscaler.core.buying.simulation import Simulation
from services.autoscaler.core.scaling.scale_down import NodeLoad, bought_again
from services.autoscaler.core.scaling.scale_up import Situation, problem_of

LEAST_SAVING = 0.15
"""Of the node's own price; less is not worth a move, whatever the shares are."""
LEAST_AGE = timedelta(hours=1)
WORTH = 0.5
"""A saving is worth a disruption of at most twice its share."""


@dataclass(frozen=True, slots=True)
class Replacement:
    claim: GpuNodeClaim
    node: PlannedNode
    reason: str


def decide_consolidation(seen: Situation, loads: Sequence[NodeLoad]) -> Replacement | None:
    """The best replacement now; None if nothing is worth it, or while anything else is going on."""
    busy = seen.frozen_reason or seen.pending or seen.draining
    if busy or any(one.status.state is not ClaimState.GPU_READY for one in seen.claims):
        return None
    total = sum(_price(load.claim) for load in loads)
    weight = sum(1 + len(load.residents) for load in loads)
    found = []
    for load in loads:
        replacement = _cheaper(load, seen)
        if replacement is not None and not bought_again(load, seen, replacement.offering.instance.gpu_count):
            saving = _price(load.claim) - replacement.offering.nano_usd_per_hour
            score = (saving / total) / ((1 + len(load.residents)) / weight)
            if score >= WORTH:
                found.append((score, load, replacement, saving))
    if not found:
        return None
    score, load, replacement, saving = max(found, key=lambda one: (one[0], one[1].claim.meta.name))
    reason = (
        f"{replacement.offering.key} instead of {key_of(load.claim)} saves {saving / 1e9:.2f} USD an hour, "
        f"{len(load.residents)} pods move"
    )
    return Replacement(load.claim, replacement, reason)


def may_leave(load: NodeLoad, seen: Situation) -> bool:
    """Whether everything on the node still may move, and fits elsewhere: what came meanwhile counts, too."""
    if load.opted_out or any(one.stays for one in load.residents) or bought_again(load, seen):
        return False
    units, _ = units_of([one.pod for one in load.residents if one.pod is not None])
    simulation = Simulation(node for node in seen.nodes if node.name != load.node.name)
    return all(simulation.place(unit) is not None for unit in units)


def _cheaper(load: NodeLoad, seen: Situation) -> PlannedNode | None:
    """One cheaper machine of the same pool and tier that, with the other nodes, takes everything over."""
    ready, price = load.claim.status.gpu_ready, _price(load.claim)
    movers = [one.pod for one in load.residents if one.pod is not None]
    if ready is None or seen.now - ready < LEAST_AGE or load.opted_out or not movers:
        return None
    # What is paid for already, or has no price, can save nothing.
    if price <= 0:
        return None
    if any(one.stays for one in load.residents):
        return None
    tier = load.claim.spec.offering.capacity_type
    offerings = [
        one
        for one in seen.table.offerings
        if one.pool == load.claim.spec.pool_name
        and one.key.capacity_type is tier
        and not one.estimated
        and one.nano_usd_per_hour <= price * (1 - LEAST_SAVING)
    ]
    units, _ = units_of(movers)
    others = [node for node in seen.nodes if node.name != load.node.name]
    problem = replace(problem_of(seen, units), nodes=others, offerings=offerings, limits=Limits(1))
    plan = make_plan(problem, Effort(restarts=1, repairs=1))
    return plan.nodes[0] if len(plan.nodes) == 1 and not plan.unplaced else None


def _price(claim: GpuNodeClaim) -> int:
    return claim.status.price_nano_usd_per_hour or 0
