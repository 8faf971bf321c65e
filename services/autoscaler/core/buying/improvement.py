"""Makes a plan cheaper without losing a pod's place: machines are dissolved, merged and shrunk. Pure.

Machines of gangs and of pods that mind their neighbours stay as they are; others may move onto them.
"""

from collections.abc import Iterator, Sequence

from services.autoscaler.core.buying.filling import Purchase, Stencils
from services.autoscaler.core.buying.offerings import Offering
from services.autoscaler.core.buying.pending import PendingPod

_ROUNDS = 3
_MOST_MERGED = 24
"""Pairs grow with the square; a plan of more machines gains little from its best pair."""


def improved(
    purchases: Sequence[Purchase], offerings: Sequence[Offering], stencils: Stencils
) -> list[Purchase]:
    """Every change saves money, so it ends."""
    plan = [one for one in purchases if one.pods]
    for _ in range(_ROUNDS):
        saved = sum(one.offering.compared_nano_usd for one in plan)
        plan = _dissolved(plan, offerings, stencils)
        plan = _merged(plan, offerings, stencils)
        if sum(one.offering.compared_nano_usd for one in plan) >= saved:
            break
    return plan


def _dissolved(plan: list[Purchase], offerings: Sequence[Offering], stencils: Stencils) -> list[Purchase]:
    """One after the other, dearest first: its pods go onto the others, the rest onto something cheaper."""
    for purchase in sorted(plan, key=_price_and_name, reverse=True):
        if purchase.fixed:
            continue
        others = [one.copy() for one in plan if one is not purchase]
        left = [pod for pod in purchase.pods if not any(one.put(pod) for one in others)]
        if not left:
            plan = others
            continue
        cheaper = _cheapest(left, _like(purchase, offerings), stencils, purchase.offering.compared_nano_usd)
        if cheaper is not None:
            plan = [*others, cheaper]
    return plan


def _merged(plan: list[Purchase], offerings: Sequence[Offering], stencils: Stencils) -> list[Purchase]:
    """Two machines become one that costs less than both."""
    found = True
    while found:
        found = False
        for first, second in _pairs(plan):
            limit = first.offering.compared_nano_usd + second.offering.compared_nano_usd
            pods = [*first.pods, *second.pods]
            merged = _cheapest(pods, _like(first, offerings), stencils, limit)
            if merged is not None:
                plan = [one for one in plan if one is not first and one is not second]
                plan.append(merged)
                found = True
                break
    return plan


def _pairs(plan: Sequence[Purchase]) -> Iterator[tuple[Purchase, Purchase]]:
    movable = sorted((one for one in plan if not one.fixed), key=_price_and_name)[:_MOST_MERGED]
    for place, first in enumerate(movable):
        for second in movable[place + 1 :]:
            if first.offering.key.capacity_type is second.offering.key.capacity_type:
                yield first, second


def _cheapest(
    pods: Sequence[PendingPod], offerings: Sequence[Offering], stencils: Stencils, below: float
) -> Purchase | None:
    """The cheapest machine under this price that takes them all."""
    for offering in sorted(offerings, key=lambda one: (one.compared_nano_usd, one.key)):
        if offering.compared_nano_usd >= below:
            return None
        purchase = stencils.filled(offering, pods)
        if purchase is not None:
            return purchase
    return None


def _like(purchase: Purchase, offerings: Sequence[Offering]) -> list[Offering]:
    """Of the same tier and priority, and in the pools where the plan buys anyhow: limits still hold."""
    return [
        one
        for one in offerings
        if one.key.capacity_type is purchase.offering.key.capacity_type and one.pool == purchase.offering.pool
    ]


def _price_and_name(purchase: Purchase) -> tuple[float, str, str]:
    return (purchase.offering.compared_nano_usd, str(purchase.offering.key), purchase.node.name)
