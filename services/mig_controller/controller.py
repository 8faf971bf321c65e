"""The loop of the leader: look, end what has ended, decide, begin.

    1. what discovery, the pods and the configs show now
    2. ask after changes under way; end those that are made and shown
    3. what GPUNodeConfigs ask for
    4. what waiting pods need beyond what is free
    5. begin those changes, a few at a time
    6. tell pods what is made for them, or why nothing is

It acts only on cards that have no change of its own under way, so never on what it saw before its own act.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gpuloom.errors import GpuloomError, NotReadyError
from gpuloom.kube.objects import JsonObject
from gpuloom.model.gpu import DeviceRef
from gpuloom.model.sharing import GpuNodeConfig
from gpuloom.model.snapshot import NodeFacts
from gpuloom.runtime.clock import Clock
from services.mig_controller.core.cards import Card, Knowledge, cards_of
from services.mig_controller.core.configs import plan_config
from services.mig_controller.core.intents import Intent, intent_of
from services.mig_controller.core.plan import Cut, Options, Plan, plan
from services.mig_controller.core.wishes import Wish, wishes_of
from services.mig_controller.metrics import MigMetrics
from services.mig_controller.transactions import Transactions, new_change_id

_log = logging.getLogger(__name__)

_TAKE_OVER_PAUSE_S = 1.0

Tell = Callable[[Wish, str, str], None]
"""(who waits, reason in one word, text): an event on the pod."""


@dataclass(frozen=True, slots=True)
class Sources:
    """What is observed. `unsynced`: why nothing may be decided now, empty if it may."""

    facts: Callable[[], Iterable[NodeFacts]]
    pods: Callable[[], Iterable[JsonObject]]
    configs: Callable[[], Iterable[GpuNodeConfig]]
    unsynced: Callable[[], str]


@dataclass(frozen=True, slots=True)
class View:
    """What the last round saw and did; what is served and written as status is drawn from it."""

    cards: tuple[Card, ...] = ()
    wishes: tuple[Wish, ...] = ()
    intents: tuple[Intent, ...] = ()
    unmet: dict[str, str] | None = None
    waiting: dict[str, dict[str, str]] | None = None
    """By GPUNodeConfig: why a GPU is not as it is to be, by UUID."""

    def note_for(self, wish: Wish) -> str:
        for intent in self.intents:
            if wish.pod.uid in intent.pods:
                return f"{wish.profile} is being made on {intent.node_name}"
        reason = (self.unmet or {}).get(wish.pod.uid, "")
        return f"not made: {reason}" if reason else "a free slice is there, or one is decided on soon"


class Controller:
    def __init__(
        self,
        sources: Sources,
        transactions: Callable[[], Transactions],
        options: Options,
        clock: Clock,
        metrics: MigMetrics,
        tell: Tell,
    ) -> None:
        self._sources = sources
        self._new_transactions = transactions
        self._options = options
        self._clock = clock
        self._metrics = metrics
        self._tell = tell
        self._transactions: Transactions | None = None
        self._idle_since_s: dict[DeviceRef, float] = {}
        self._waits_since_s: dict[str, float] = {}
        self.view: View | None = None
        """None until the first round of this term."""

    async def lead(self, interval_s: float) -> None:
        """The work of one term."""
        self._metrics.leader.set(1)
        try:
            while self._sources.unsynced():
                await self._clock.sleep(0.2)
            await self._take_over()
            while True:
                await self.round()
                await self._clock.sleep(interval_s)
        finally:
            self._metrics.leader.set(0)
            self.view, self._transactions = None, None

    async def _take_over(self) -> None:
        """Until holds and intents are known nothing is decided; the extender may start after us."""
        while True:
            transactions = self._new_transactions()
            try:
                await transactions.take_over()
            except GpuloomError as error:
                _log.warning("changes under way are not known yet", extra={"reason": str(error)})
                await self._clock.sleep(_TAKE_OVER_PAUSE_S)
            else:
                self._transactions = transactions
                return

    def note_of(self, gpu_uuid: str) -> str:
        return "" if self._transactions is None else self._transactions.note_of(gpu_uuid)

    def current(self) -> View:
        """Raise NotReadyError if this replica does not lead, or has not looked yet."""
        if self.view is None:
            raise NotReadyError("this replica does not lead, or has just begun to")
        return self.view

    async def round(self) -> None:
        transactions = self._transactions_now()
        if self._sources.unsynced():
            return
        facts = list(self._sources.facts())
        by_uuid = {card.uuid: card for card in self._cards(facts, frozenset(), frozenset())}
        nodes = {node.state.node_uid for node in facts}
        await transactions.settle(by_uuid, lambda uid: uid in nodes)
        configs = {config.spec.node_name: config for config in self._sources.configs()}
        cards = self._cards(facts, transactions.gpus, frozenset(configs))
        waiting = await self._configure(configs, cards)
        cards = self._cards(facts, transactions.gpus, frozenset(configs))
        wishes = self._wishes()
        served = {uid for intent in transactions.intents for uid in intent.pods}
        unserved = [wish for wish in wishes if wish.pod.uid not in served]
        decided = plan(cards, unserved, self._options, self._clock.monotonic())
        await self._begin(decided)
        self._report(cards, wishes, decided, waiting)

    def _cards(
        self, facts: list[NodeFacts], held: frozenset[str], pinned: frozenset[str]
    ) -> tuple[Card, ...]:
        cards = cards_of(facts, Knowledge(self._idle_since_s, held, pinned))
        now_s = self._clock.monotonic()
        free = {DeviceRef(card.uuid, one.placement) for card in cards for one in card.slices if not one.owner}
        # The first time that a slice is seen free counts; whoever takes it starts the count anew.
        self._idle_since_s = {device: self._idle_since_s.get(device, now_s) for device in free}
        return cards

    def _wishes(self) -> tuple[Wish, ...]:
        now_s = self._clock.monotonic()
        wishes = wishes_of(self._sources.pods(), self._waits_since_s, now_s)
        self._waits_since_s = {w.pod.uid: self._waits_since_s.get(w.pod.uid, now_s) for w in wishes}
        return wishes

    async def _configure(
        self, configs: dict[str, GpuNodeConfig], cards: tuple[Card, ...]
    ) -> dict[str, dict[str, str]]:
        waiting = {}
        for node_name, config in sorted(configs.items()):
            own = [card for card in cards if card.node_name == node_name]
            found = plan_config(config.spec, own, [new_change_id() for _ in own])
            waiting[config.meta.name] = found.reasons
            for request in found.requests:
                card = next(card for card in own if card.uuid == request.gpu_uuid)
                intent = Intent(request, node_name, card.node_uid, (), self._clock.now().isoformat())
                await self._started(intent, f"GPUNodeConfig {config.meta.name} divides it")
        return waiting

    async def _begin(self, decided: Plan) -> None:
        for cut in decided.cuts:
            intent = intent_of(cut, new_change_id(), self._clock.now().isoformat())
            if await self._started(intent, _reason(cut)):
                for wish in cut.pods:
                    text = f"{wish.profile} is being made on {cut.card.node_name} (GPU {cut.card.index})"
                    self._tell(wish, "MigSliceInTheMaking", text)

    async def _started(self, intent: Intent, reason: str) -> bool:
        return await self._transactions_now().begin(intent, reason)

    def _report(
        self,
        cards: tuple[Card, ...],
        wishes: tuple[Wish, ...],
        decided: Plan,
        waiting: dict[str, dict[str, str]],
    ) -> None:
        intents = self._transactions_now().intents
        self.view = View(cards, wishes, intents, dict(decided.unmet), waiting)
        self._metrics.show(cards)
        self._metrics.waiting.set(len(wishes))
        self._metrics.unmet.set(len(decided.unmet))
        self._metrics.open_changes.set(len(intents))
        for wish in wishes:
            if wish.pod.uid in decided.unmet:
                self._tell(wish, "MigSliceNotPossible", decided.unmet[wish.pod.uid])

    def _transactions_now(self) -> Transactions:
        if self._transactions is None:
            raise NotReadyError("this replica does not lead")
        return self._transactions


def _reason(cut: Cut) -> str:
    made = ", ".join(f"{place.profile} at {place.start}" for place in cut.create)
    return f"MIG slices are being made on it: {made}"
