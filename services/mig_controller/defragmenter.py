"""Makes room by moving pods: plans with what pods say and what their work is worth, and begins such plans.

A plan is begun as a whole or not at all: all its holds are taken and written down before the first pod is
asked to leave. Without being asked it does so only where that is switched on, and only if everybody who moves
has a place to go.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from gpuloom.kube.objects import JsonObject
from gpuloom.model.gpu import MILLI_PER_GPU
from services.mig_controller.core.cards import Card
from services.mig_controller.core.defragmentation import FitPlan, plan_fit, with_stranded
from services.mig_controller.core.intents import Intent, intent_of_step
from services.mig_controller.core.movable import name_of, reason_to_stay, usd_lost
from services.mig_controller.core.wishes import Wish, priority_of, wish_of
from services.mig_controller.ports import Prices
from services.mig_controller.transactions import Transactions, new_change_id


@dataclass(frozen=True, slots=True)
class DefragmentOptions:
    """`automatic`: also for a pod that has waited `after_s`, without anybody asking."""

    automatic: bool = False
    after_s: float = 300.0


class Defragmenter:
    def __init__(
        self, pods: Callable[[], Iterable[JsonObject]], prices: Prices, options: DefragmentOptions
    ) -> None:
        self._pods = pods
        self._prices = prices
        self._options = options

    def plan(
        self,
        cards: Sequence[Card],
        demand: Mapping[str, int],
        now: datetime,
        highest_priority: int | None = None,
    ) -> FitPlan:
        """`highest_priority`: pods above it are not moved; None: any may be."""
        owners = {one.owner for card in cards for one in card.slices if one.pod is not None}
        pods = {name: pod for pod in self._pods() if (name := name_of(pod)) in owners}
        # A pod that is not known to us is not moved: it may have said that it must not be.
        stay = {
            name
            for name in owners
            if name not in pods
            or reason_to_stay(pods[name])
            or (highest_priority is not None and priority_of(pods[name]) > highest_priority)
        }
        prices = self._work_of(cards, pods, now)
        found = plan_fit(cards, demand, prices, frozenset(stay))
        wishes = {wish.pod.uid: wish for pod in pods.values() if (wish := wish_of(pod, 0.0)) is not None}
        return with_stranded(found, cards, wishes)

    def unasked(
        self, cards: Sequence[Card], unmet: Sequence[Wish], now_s: float, now: datetime
    ) -> tuple[FitPlan, tuple[str, ...]] | None:
        """A plan for the most urgent of those who have waited for long, and whom it serves; or None."""
        due = [wish for wish in unmet if now_s - wish.since_s >= self._options.after_s]
        if not self._options.automatic or not due:
            return None
        first = due[0]
        usable = [card for card in cards if first.takes(card)]
        found = self.plan(usable, {first.profile: 1}, now, first.priority)
        if found.missing or found.stranded or not found.moves:
            return None
        return found, (first.pod.uid,)

    def _work_of(
        self, cards: Sequence[Card], pods: Mapping[str, JsonObject], now: datetime
    ) -> dict[str, float]:
        found = {}
        by_node = {name: self._prices.nano_usd_per_gpu_hour(name) for name in {c.node_name for c in cards}}
        for card in cards:
            price = by_node[card.node_name]
            for one in card.slices:
                if one.owner in pods:
                    milli = card.milli_of(one.placement.profile) or MILLI_PER_GPU
                    lost = usd_lost(pods[one.owner], milli, price, now)
                    if lost is not None:
                        found[one.owner] = lost
        return found


async def begin_whole(
    transactions: Transactions, plan: FitPlan, pods: tuple[str, ...], began: str
) -> tuple[tuple[Intent, ...], str]:
    """All changes of a plan, or none and why not."""
    begun: list[Intent] = []
    for step in plan.steps:
        intent = intent_of_step(step, new_change_id(), began, pods)
        if not await transactions.begin(intent, _reason(intent)):
            await transactions.withdraw(begun)
            why = transactions.why_avoided(step.card.uuid) or "its holds can't be taken"
            # Nothing was tried on them, so whoever asks again at once may succeed.
            transactions.forgive(step.card.uuid for step in plan.steps)
            return (), why
        begun.append(intent)
    return tuple(begun), ""


def _reason(intent: Intent) -> str:
    made = Counter(place.profile for place in intent.request.create)
    shown = ", ".join(f"{count} x {profile}" for profile, count in sorted(made.items()))
    return f"room is being made on it for {shown}"
