"""On which cards an MPS daemon is started for pods that insist on limits, and where none is needed any more.

Pure. In this order: room on a card that MPS shares already, then cards that nobody uses. A card that somebody
uses, that is cut, closed, or divided by a person is never in a plan.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpuloom.model.gpu import MILLI_PER_GPU, SharingMode
from gpuloom.model.layout import Sharing
from services.mig_controller.core.cards import NO_CLIENTS, Card
from services.mig_controller.core.plan import Options, why_not
from services.mig_controller.core.wishes import ShareWish


@dataclass(frozen=True, slots=True)
class Reshare:
    """Another way to share one card. `pods` are those for whom it is changed."""

    card: Card
    sharing: Sharing
    pods: tuple[ShareWish, ...] = ()


@dataclass(frozen=True, slots=True)
class SharePlan:
    """`unmet` says why no card is made ready for a pod, by its UID."""

    changes: tuple[Reshare, ...] = ()
    unmet: Mapping[str, str] = field(default_factory=dict)


def plan_shares(
    cards: Sequence[Card], wishes: Sequence[ShareWish], options: Options, now_s: float
) -> SharePlan:
    """`wishes` are in the order in which they are served."""
    open_cards = [card for card in cards if not card.closed and not card.cut]
    rooms = [_Room(card) for card in open_cards if card.sharing is SharingMode.MPS]
    left = [wish for wish in wishes if not any(room.take(wish) for room in rooms)]
    waiting = [wish for wish in left if now_s - wish.since_s >= options.delay_s]
    idle = [card for card in open_cards if card.sharing is SharingMode.NONE and card.idle and not card.pinned]
    idle = [card for card in idle if card.takes_clients]
    fresh = [_Room(card) for card in idle[: max(0, len(idle) - options.keep_whole)]]
    unserved = [wish for wish in waiting if not any(room.take(wish) for room in fresh)]
    changes = [Reshare(room.card, Sharing(SharingMode.MPS), tuple(room.pods)) for room in fresh if room.pods]
    changes += [
        Reshare(room.card, Sharing())
        for room in rooms
        if not room.pods and _abandoned(room.card, options, now_s)
    ]
    return SharePlan(
        tuple(changes[: options.most_changes]), why_not(unserved, lambda wish: _why_not(wish, cards))
    )


def _abandoned(card: Card, options: Options, now_s: float) -> bool:
    since_s = card.idle_since_s
    idle = card.idle and not card.pinned and since_s is not None
    return idle and since_s is not None and now_s - since_s >= options.idle_ttl_s


class _Room:
    """What is left of a card while shares are put on it."""

    def __init__(self, card: Card) -> None:
        self.card = card
        self.pods: list[ShareWish] = []
        self._milli = MILLI_PER_GPU - card.given_milli
        self._mib = card.memory_mib - card.given_mib

    def take(self, wish: ShareWish) -> bool:
        card = self.card
        if not card.takes_clients:
            return False
        mib = wish.memory_mib
        if mib is None:
            mib = card.memory_mib * wish.milli // MILLI_PER_GPU
        if card.gpu is not None and wish.milli < card.gpu.least_milli:
            return False
        if wish.milli > self._milli or mib > self._mib or not wish.takes(card):
            return False
        self._milli, self._mib = self._milli - wish.milli, self._mib - mib
        self.pods.append(wish)
        return True


def _why_not(wish: ShareWish, cards: Sequence[Card]) -> str:
    able = [card for card in cards if wish.takes(card)]
    if not able:
        return "no GPU of a gpuloom node is of a model and on a node that it asks for"
    if not any(card.takes_clients for card in able):
        return f"no GPU can get an MPS daemon: {NO_CLIENTS}"
    closed = Counter(card.closed for card in able if card.closed)
    if len(able) == sum(closed.values()):
        return f"no GPU can get an MPS daemon now: {closed.most_common(1)[0][0]}"
    return (
        f"no GPU can get an MPS daemon now: {len(able)} could, and each of them is full, cut, "
        "in use without MPS, or divided by a GPUNodeConfig"
    )
