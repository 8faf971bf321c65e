"""The loop of the leader: look, end what has ended, decide, begin.

    1. what discovery, the pods and the configs show now
    2. ask after changes under way; end those that are made and shown
    3. what GPUNodeConfigs ask for
    4. what waiting pods need beyond what is free, and who has to move for those who waited long
    5. begin those changes, a few at a time
    6. tell pods what is made for them, or why nothing is

It acts only on cards that have no change of its own under way, so never on what it saw before its own act.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from gpuloom.errors import ConflictError, GpuloomError, InvalidRequestError, NotReadyError
from gpuloom.kube.objects import JsonObject
from gpuloom.model.gpu import DeviceRef
from gpuloom.model.ledger import Hold
from gpuloom.model.node import PodRef
from gpuloom.model.sharing import GpuNodeConfig
from gpuloom.model.snapshot import NodeFacts
from gpuloom.runtime.clock import Clock
from gpuloom.runtime.finishing import finished
from services.mig_controller.core.cards import Card, Knowledge, cards_of
from services.mig_controller.core.configs import plan_config
from services.mig_controller.core.defragmentation import FitPlan
from services.mig_controller.core.intents import Intent, intent_of, intent_of_sharing
from services.mig_controller.core.plan import Cut, Options, Plan, plan
from services.mig_controller.core.shares import SharePlan, plan_shares
from services.mig_controller.core.wishes import ShareWish, Wish, share_wishes_of, wishes_of
from services.mig_controller.defragmenter import Defragmenter, begin_whole
from services.mig_controller.metrics import MigMetrics
from services.mig_controller.steering import Steering
from services.mig_controller.transactions import Transactions, new_change_id

_log = logging.getLogger(__name__)

_TAKE_OVER_PAUSE_S = 1.0
_TELL_AGAIN_S = 300.0

Tell = Callable[[PodRef, str, str], None]
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
    shares: tuple[ShareWish, ...] = ()
    intents: tuple[Intent, ...] = ()
    unmet: dict[str, str] | None = None
    waiting: dict[str, dict[str, str]] | None = None
    """By GPUNodeConfig: why a GPU is not as it is to be, by UUID."""
    nodes: tuple[NodeFacts, ...] = ()

    def note_for(self, wish: Wish | ShareWish) -> str:
        what = wish.profile if isinstance(wish, Wish) else "a GPU with an MPS daemon"
        for intent in self.intents:
            if wish.pod.uid in intent.pods:
                return f"{what} is being made on {intent.node_name}"
        reason = (self.unmet or {}).get(wish.pod.uid, "")
        return f"not made: {reason}" if reason else "there is one that is free, or one is decided on soon"


@dataclass(frozen=True, slots=True)
class Makers:
    """Who carries out what is decided, each for one term of leadership."""

    transactions: Callable[[], Transactions]
    steering: Callable[[], Steering]
    defragmenter: Defragmenter


class Controller:
    def __init__(
        self,
        sources: Sources,
        makers: Makers,
        options: Options,
        clock: Clock,
        metrics: MigMetrics,
        tell: Tell,
    ) -> None:
        self._sources = sources
        self._makers = makers
        self._options = options
        self._clock = clock
        self._metrics = metrics
        self._tell = tell
        self._transactions: Transactions | None = None
        self._steering: Steering | None = None
        self._turn = asyncio.Lock()
        """A round, or a plan that somebody has asked for, at a time."""
        self._idle_since_s: dict[DeviceRef, float] = {}
        self._told: dict[str, tuple[str, float]] = {}
        """By pod UID: why nothing can be made for it, and when that was told."""
        self._holds: tuple[Hold, ...] = ()
        """Of others, as of this round."""
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
            self.view, self._transactions, self._steering = None, None, None

    async def _take_over(self) -> None:
        """Until holds and intents are known nothing is decided; the extender may start after us."""
        while True:
            transactions, steering = self._makers.transactions(), self._makers.steering()
            try:
                await transactions.take_over()
                await steering.take_over(list(self._sources.facts()))
            except GpuloomError as error:
                _log.warning("changes under way are not known yet", extra={"reason": str(error)})
                await self._clock.sleep(_TAKE_OVER_PAUSE_S)
            else:
                self._transactions, self._steering = transactions, steering
                return

    def note_of(self, gpu_uuid: str) -> str:
        return "" if self._transactions is None else self._transactions.note_of(gpu_uuid)

    def current(self) -> View:
        """Raise NotReadyError if this replica does not lead, or has not looked yet."""
        if self.view is None:
            raise NotReadyError("this replica does not lead, or has just begun to")
        return self.view

    async def round(self) -> None:
        async with self._turn:
            await self._round()

    async def fit(self, demand: Mapping[str, int]) -> FitPlan:
        """What it would take. Raise NotReadyError; InvalidRequestError for a profile that no GPU here has."""
        return await self._fit(self.current().cards, demand)

    async def _fit(self, cards: tuple[Card, ...], demand: Mapping[str, int]) -> FitPlan:
        _refuse_unknown(cards, demand)
        # Beside the loop, which has a lease to renew: a mixed demand on thousands of GPUs takes seconds.
        return await asyncio.to_thread(self._makers.defragmenter.plan, cards, demand, self._clock.now())

    async def make_fit(self, demand: Mapping[str, int], fingerprint: str) -> tuple[Intent, ...]:
        """Begin the plan with that fingerprint.

        Raise ConflictError if it is another one by now, or if nothing of it could be begun; NotReadyError.
        """
        async with self._turn:
            self.current()
            transactions = self._transactions_now()
            if self._sources.unsynced():
                raise NotReadyError(self._sources.unsynced())
            pinned = frozenset(config.spec.node_name for config in self._sources.configs())
            self._holds = await transactions.others_holds()
            cards = self._cards(list(self._sources.facts()), transactions.gpus, pinned)
            found = await self._fit(cards, demand)
            if found.missing:
                raise ConflictError("it does not fit, whatever moves; nothing is moved in vain")
            if found.fingerprint != fingerprint:
                raise ConflictError("the cluster has changed since this plan was made: look at it again")
            # As a whole, also if whoever asked has left by then.
            whole = begin_whole(transactions, found, (), self._clock.now().isoformat())
            begun, refused = await finished(whole)
            if refused:
                raise ConflictError(f"nothing was begun: {refused}")
            return begun

    async def _round(self) -> None:
        transactions = self._transactions_now()
        if self._sources.unsynced():
            return
        self._holds = await transactions.others_holds()
        facts, pods = list(self._sources.facts()), list(self._sources.pods())
        nodes = {node.state.node_uid: node for node in facts}
        changing = {intent.node_uid for intent in transactions.intents}
        there = cards_of((nodes[uid] for uid in changing if uid in nodes), Knowledge({}))
        by_uuid = {card.uuid: card for card in there}
        await transactions.settle(by_uuid, lambda uid: uid in nodes)
        configs = {config.spec.node_name: config for config in self._sources.configs()}
        cards = self._cards(facts, transactions.gpus, frozenset(configs))
        waiting = await self._configure(configs, cards)
        if configs:
            # Some may be changing by now.
            cards = self._cards(facts, transactions.gpus, frozenset(configs))
        wishes, shares = self._wishes(pods)
        served = {uid for intent in transactions.intents for uid in intent.pods}
        decided = await self._decide(cards, wishes, served)
        without_share = await self._decide_shares(cards, shares, served)
        if self._steering is not None:
            await self._steering.step(pods, facts)
        self._report(
            View(cards, wishes, shares, (), {**decided.unmet, **without_share}, waiting, tuple(facts))
        )

    async def _decide(self, cards: tuple[Card, ...], wishes: tuple[Wish, ...], served: set[str]) -> Plan:
        now_s = self._clock.monotonic()
        decided = plan(cards, [w for w in wishes if w.pod.uid not in served], self._options, now_s)
        await self._begin(decided)
        unmet = [wish for wish in wishes if wish.pod.uid in decided.unmet]
        transactions = self._transactions_now()
        if not any(intent.leavers for intent in transactions.intents):
            found = self._makers.defragmenter.unasked(cards, unmet, now_s, self._clock.now())
            if found is not None:
                fit, pods = found
                await begin_whole(transactions, fit, pods, self._clock.now().isoformat())
        return decided

    async def _decide_shares(
        self, cards: tuple[Card, ...], shares: tuple[ShareWish, ...], served: set[str]
    ) -> Mapping[str, str]:
        """The answer says why somebody is not served. A card that was just cut is not shared as well."""
        taken = self._transactions_now().gpus
        left = [card for card in cards if card.uuid not in taken]
        unserved = [wish for wish in shares if wish.pod.uid not in served]
        found: SharePlan = plan_shares(left, unserved, self._options, self._clock.monotonic())
        for change in found.changes:
            intent = intent_of_sharing(change, new_change_id(), self._clock.now().isoformat())
            what = "an MPS daemon is started for it" if change.pods else "its MPS daemon is not needed"
            if await self._started(intent, what):
                for wish in change.pods:
                    text = f"an MPS daemon is started on {change.card.node_name} (GPU {change.card.index})"
                    self._tell(wish.pod, "MpsInTheMaking", text)
        return found.unmet

    def _cards(
        self, facts: list[NodeFacts], held: frozenset[str], pinned: frozenset[str]
    ) -> tuple[Card, ...]:
        cards = cards_of(facts, Knowledge(self._idle_since_s, held, pinned, self._holds))
        now_s = self._clock.monotonic()
        free = {DeviceRef(card.uuid, one.placement) for card in cards for one in card.slices if not one.owner}
        free |= {DeviceRef(card.uuid) for card in cards if card.idle}
        # The first time that a slice is seen free counts; whoever takes it starts the count anew.
        self._idle_since_s = {device: self._idle_since_s.get(device, now_s) for device in free}
        return cards

    def _wishes(self, pods: list[JsonObject]) -> tuple[tuple[Wish, ...], tuple[ShareWish, ...]]:
        now_s = self._clock.monotonic()
        wishes = wishes_of(pods, self._waits_since_s, now_s)
        shares = share_wishes_of(pods, self._waits_since_s, now_s)
        waiting = [wish.pod.uid for wish in wishes] + [wish.pod.uid for wish in shares]
        self._waits_since_s = {uid: self._waits_since_s.get(uid, now_s) for uid in waiting}
        return wishes, shares

    async def _configure(
        self, configs: dict[str, GpuNodeConfig], cards: tuple[Card, ...]
    ) -> dict[str, dict[str, str]]:
        waiting, begun = {}, 0
        of_node: dict[str, list[Card]] = {}
        for card in cards:
            of_node.setdefault(card.node_name, []).append(card)
        for node_name, config in sorted(configs.items()):
            own = of_node.get(node_name, [])
            found = plan_config(config.spec, own, [new_change_id() for _ in own])
            waiting[config.meta.name] = reasons = dict(found.reasons)
            for request in found.requests:
                if begun >= self._options.most_changes:
                    reasons[request.gpu_uuid] = "it is changed when other changes have ended"
                    continue
                card = next(card for card in own if card.uuid == request.gpu_uuid)
                intent = Intent(request, node_name, card.node_uid, (), self._clock.now().isoformat())
                begun += await self._started(intent, f"GPUNodeConfig {config.meta.name} divides it")
        return waiting

    async def _begin(self, decided: Plan) -> None:
        for cut in decided.cuts:
            intent = intent_of(cut, new_change_id(), self._clock.now().isoformat())
            if await self._started(intent, _reason(cut)):
                for wish in cut.pods:
                    text = f"{wish.profile} is being made on {cut.card.node_name} (GPU {cut.card.index})"
                    self._tell(wish.pod, "MigSliceInTheMaking", text)

    async def _started(self, intent: Intent, reason: str) -> bool:
        return await self._transactions_now().begin(intent, reason)

    def _report(self, view: View) -> None:
        unmet, intents = view.unmet or {}, self._transactions_now().intents
        self.view = replace(view, intents=intents)
        going = {one.request.gpu_uuid: frozenset[object](one.request.destroy) for one in intents}
        self._metrics.show(view.cards, going)
        self._metrics.waiting.set(len(view.wishes) + len(view.shares))
        self._metrics.unmet.set(len(unmet))
        self._metrics.open_changes.set(len(intents))
        self._told = {uid: told for uid, told in self._told.items() if uid in unmet}
        for wishes, reason in ((view.wishes, "MigSliceNotPossible"), (view.shares, "MpsNotPossible")):
            for wish in wishes:
                if wish.pod.uid in unmet:
                    self._tell_again(wish.pod, reason, unmet[wish.pod.uid])

    def _tell_again(self, pod: PodRef, reason: str, text: str) -> None:
        """Each round would be a write for each pod that waits, by the thousand."""
        now_s = self._clock.monotonic()
        known = self._told.get(pod.uid)
        if known is None or known[0] != text or now_s - known[1] >= _TELL_AGAIN_S:
            self._told[pod.uid] = text, now_s
            self._tell(pod, reason, text)

    def _transactions_now(self) -> Transactions:
        if self._transactions is None:
            raise NotReadyError("this replica does not lead")
        return self._transactions


def _refuse_unknown(cards: Iterable[Card], demand: Mapping[str, int]) -> None:
    known = {profile.name for card in cards for profile in card.geometry.profiles}
    unknown = sorted(demand.keys() - known)
    if unknown:
        there = f"; profiles here: {', '.join(sorted(known))}" if known else ""
        raise InvalidRequestError(f"no GPU here can be cut into {', '.join(unknown)}{there}")


def _reason(cut: Cut) -> str:
    made = ", ".join(f"{place.profile} at {place.start}" for place in cut.create)
    return f"MIG slices are being made on it: {made}"
