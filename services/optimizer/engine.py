"""Puts the judgements together: what is known of a pod goes in, an answer with its reason comes out.

It keeps what answers need in memory, so that a hint never waits for anything. Decisions are in core/.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from gpuloom.catalog import load_catalog
from gpuloom.errors import GpuloomError
from gpuloom.model.node import PodRef
from gpuloom.model.optimization import (
    Classification,
    NodeHints,
    PodAdvice,
    PodWaste,
    Prediction,
    WasteReport,
    WorkloadClass,
)
from gpuloom.model.snapshot import NodeFacts
from gpuloom.runtime.clock import Clock
from services.optimizer.adapters.pods import Pods
from services.optimizer.core.advise import advise, confidence_of, kin_of
from services.optimizer.core.classify import classify
from services.optimizer.core.hint import Neighbourhood, Neighbours, hint, neighbourhood_of, neighbours_of
from services.optimizer.core.model import Forest
from services.optimizer.core.offers import Fit, Need, Offers, held_gpus, offers_of, smallest_fit
from services.optimizer.core.predict import LEAST_RUNS, predict
from services.optimizer.core.run import Run
from services.optimizer.core.waste import WasteRule, observe, waste_parts
from services.optimizer.core.workload import Workload
from services.optimizer.metrics import OptimizerMetrics
from services.optimizer.ports import Advice, KeptRun, Prices, ProfileStore
from services.optimizer.profiles import Profiles

SCORE_THRESHOLD = 50.0
SHOWN_PODS = 100
HINT_TTL_S = 30.0
GATHER_S = 5.0
MAX_HINTS = 5_000

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EngineParts:
    profiles: Profiles
    pods: Pods
    prices: Prices
    store: ProfileStore
    clock: Clock
    metrics: OptimizerMetrics


@dataclass(frozen=True, slots=True)
class _Round:
    """One judgement of all pods: when, on which nodes, and what would do for whom."""

    now: datetime
    by_name: Mapping[str, NodeFacts]
    fits: dict[str, Fit] = field(default_factory=dict)


class Engine:
    def __init__(self, parts: EngineParts, rule: WasteRule) -> None:
        self.forest: Forest | None = None
        self.report = WasteReport(problem="pods have not been judged yet")
        self._parts = parts
        self._rule = rule
        self._catalog = load_catalog()
        self._nodes: dict[str, NodeFacts] = {}
        self._neighbours: dict[str, Neighbours] = {}
        self._neighbourhood: Neighbourhood | None = None
        self._gathered_at_s = 0.0
        self._ends: dict[str, tuple[float, ...]] = {}
        self._offers: Offers | None = None
        self._fits: dict[str, Fit] = {}
        self._advice: dict[str, Advice] = {}
        self._hints: dict[str, tuple[float, NodeHints]] = {}

    async def load(self) -> None:
        self._advice = await self._parts.store.advice()

    def observe_node(self, uid: str, facts: NodeFacts | None) -> None:
        """Fits ClusterMirror.on_change."""
        self._offers = None
        before = self._nodes.pop(uid, None)
        if before is not None:
            self._neighbours.pop(before.state.node_name, None)
        if facts is not None:
            self._nodes[uid] = facts
            name = facts.state.node_name
            if facts.trusted and facts.state.gpus:
                self._neighbours[name] = neighbours_of(facts, self._ends.get(name, ()))

    def classify(self, workload: Workload) -> Classification:
        kept = self._parts.profiles.running.get(workload.pod.uid)
        found = classify(workload, None if kept is None else kept.run, self.forest)
        if found.workload_class is not WorkloadClass.UNKNOWN or kept is not None:
            return found
        # Nothing was measured of this one; others of its kind run.
        for sibling in self._parts.profiles.of_signature(workload.signature.key).values():
            told = classify(workload, sibling, self.forest)
            if told.workload_class is not WorkloadClass.UNKNOWN:
                return replace(told, reason=f"as another pod of its kind: {told.reason}")
        return found

    def predict(self, workload: Workload) -> Prediction:
        profiles = self._parts.profiles
        found = predict(workload, profiles.history, profiles.of_signature(workload.signature.key))
        if found.memory_mib is None or found.utilization is None:
            return found
        need = Need(found.utilization.high, found.memory_mib.high)
        fit = smallest_fit(workload.request, need, self.offers(), may_share=workload.may_share)
        return replace(found, smallest_fit="" if fit is None else str(fit))

    def hint(self, pod: PodRef) -> NodeHints:
        now_s = self._parts.clock.monotonic()
        known = self._hints.get(pod.uid) if pod.uid else None
        if known is not None and now_s - known[0] < HINT_TTL_S:
            return known[1]
        workload = self._parts.pods.named(pod)
        nodes = self._gathered(now_s)
        found = hint(workload, self.classify(workload), self.predict(workload), nodes)
        while len(self._hints) >= MAX_HINTS:
            del self._hints[next(iter(self._hints))]
        self._hints[workload.pod.uid] = (now_s, found)
        return found

    def advise(self, workload: Workload) -> PodAdvice:
        """Of a pod that does not exist yet."""
        profiles, signature = self._parts.profiles, workload.signature
        own = kin_of(
            "signature", profiles.history.own(signature), profiles.of_signature(signature.key).values()
        )
        if own.ended >= LEAST_RUNS:
            return advise(workload, own, self.offers())
        ended = profiles.history.of_owner(signature)
        return advise(workload, kin_of("owner", ended, profiles.of_owner(signature.owner_key)), self.offers())

    def _gathered(self, now_s: float) -> Neighbourhood:
        """A few seconds old at most: what nodes do changes all the time."""
        known = self._neighbourhood
        if known is None or now_s - self._gathered_at_s > GATHER_S:
            known = self._neighbourhood = neighbourhood_of(self._neighbours)
            self._gathered_at_s = now_s
        return known

    def offers(self) -> Offers:
        if self._offers is None:
            self._offers = offers_of(self._nodes.values(), self._catalog)
        return self._offers

    def fit_of(self, pod_uid: str) -> Fit | None:
        """What was recommended for a pod in the last judgement."""
        return self._fits.get(pod_uid)

    def advice_of(self, workload: Workload) -> Advice | None:
        return self._advice.get(workload.signature.owner_key)

    async def judge(self) -> None:
        """Look at all pods: what they waste, what would help, and whether advice was followed."""
        by_name = {facts.state.node_name: facts for facts in self._nodes.values()}
        judgement = _Round(self._parts.clock.now(), by_name)
        classes = dict.fromkeys(WorkloadClass, 0)
        found: list[PodWaste] = []
        running = list(self._parts.profiles.running.items())
        for place, (uid, kept) in enumerate(running):
            workload = self._parts.pods.find(uid)
            if workload is None or workload.ended:
                continue
            classification = classify(workload, kept.run, self.forest)
            classes[classification.workload_class] += 1
            waste = self._waste(workload, kept.run, classification, judgement)
            if waste is not None:
                found.append(waste)
            if place % 50 == 49:
                await self._parts.clock.sleep(0)
        found.sort(key=lambda each: (-each.score, each.pod))
        self._fits = judgement.fits
        self.report = WasteReport(tuple(found), sum(classes.values()))
        self._note_ends(running)
        self._show(found, classes)
        await self._follow_advice(found, judgement)

    def _waste(
        self, workload: Workload, run: Run, classification: Classification, judgement: "_Round"
    ) -> PodWaste | None:
        observed = observe(run, self._rule, judgement.now)
        if observed is None:
            return None
        fit, why = self._fit(workload, run)
        if fit is not None:
            judgement.fits[workload.pod.uid] = fit
        return PodWaste(
            pod=workload.pod,
            owner=str(workload.owner),
            parts=waste_parts(workload, observed, classification.workload_class, fit, run),
            now=workload.signature.request,
            workload_class=classification.workload_class,
            utilization_ratio=observed.ratio,
            recommended="" if fit is None else str(fit),
            saving_nano_usd=None if fit is None else self._saving(workload, fit, judgement.by_name),
            confidence=0.0 if fit is None else self._confidence(workload, run),
            reason=f"at {observed.ratio:.0%} of what it holds for {observed.low_s / 60:.0f} min; {why}",
            since=observed.since,
        )

    def _fit(self, workload: Workload, run: Run) -> tuple[Fit | None, str]:
        if workload.opted_out:
            return None, "it opted out of recommendations"
        used, memory_mib = run.quantile(0.95), run.memory_mib
        if used is None or memory_mib is None:
            return None, "its memory is not measured, so nothing is recommended"
        prediction = self.predict(workload)
        if prediction.utilization is not None and prediction.memory_mib is not None:
            used = max(used, prediction.utilization.high)
            memory_mib = max(memory_mib, prediction.memory_mib.high)
        need = Need(used, memory_mib)
        fit = smallest_fit(workload.request, need, self.offers(), may_share=workload.may_share)
        needs = f"needs {used:.0%} of a GPU and {memory_mib / 1024:.1f} GiB"
        if fit is None:
            return None, f"{needs}, and this cluster offers nothing clearly smaller"
        return fit, needs

    def _saving(self, workload: Workload, fit: Fit, by_name: Mapping[str, NodeFacts]) -> int | None:
        facts = by_name.get(workload.node_name)
        price = None if facts is None else self._parts.prices.nano_usd_per_gpu_hour(facts)
        if price is None:
            return None
        return round(price * (held_gpus(workload.request) - fit.gpus) * self._parts.prices.hours_per_month)

    def _confidence(self, workload: Workload, run: Run) -> float:
        ended = self._parts.profiles.history.own(workload.signature)
        return confidence_of(run.measured_ns / 6e10, len(ended))

    def _note_ends(self, running: list[tuple[str, KeptRun]]) -> None:
        ends: dict[str, list[float]] = {}
        for uid, kept in running:
            workload = self._parts.pods.find(uid)
            history = self._parts.profiles.history.own(kept.workload.signature)
            if workload is None or workload.ended or len(history) < LEAST_RUNS:
                continue
            lasts_s = self.predict(workload).duration_s
            if lasts_s is not None:
                ends.setdefault(workload.node_name, []).append(max(0.0, lasts_s.median - kept.run.duration_s))
        self._ends = {name: tuple(sorted(each)) for name, each in ends.items()}
        self._neighbours = {
            name: replace(each, ends_in_s=self._ends.get(name, ())) for name, each in self._neighbours.items()
        }

    def _show(self, found: list[PodWaste], classes: Mapping[WorkloadClass, int]) -> None:
        metrics = self._parts.metrics
        metrics.show_waste(found, SCORE_THRESHOLD, SHOWN_PODS)
        metrics.running.set(len(self._parts.profiles.running))
        metrics.signatures.set(len(self._parts.profiles.signatures))
        for each, count in classes.items():
            metrics.classified.labels(each).set(count)

    async def _follow_advice(self, found: list[PodWaste], judgement: "_Round") -> None:
        for waste in found:
            workload, fit = self._parts.pods.find(waste.pod.uid), self._fits.get(waste.pod.uid)
            if workload is None or fit is None or waste.score <= SCORE_THRESHOLD:
                continue
            known = self._advice.get(workload.signature.owner_key)
            if known is not None and (known.after == waste.recommended or known.applied_at is not None):
                continue
            saved = held_gpus(workload.request) - fit.gpus
            advice = Advice(
                workload.signature.owner_key,
                waste.now,
                waste.recommended,
                judgement.now,
                saved,
                waste.saving_nano_usd,
            )
            fields = {"pod": str(waste.pod), "score": round(waste.score), "recommended": waste.recommended}
            _log.info("pod wastes its GPU", extra=fields)
            await self._keep(advice)
        await self._note_applied(judgement.by_name, judgement.now)

    async def _note_applied(self, by_name: Mapping[str, NodeFacts], now: datetime) -> None:
        """Advice was followed if pods of that owner ask for what was recommended."""
        asking: dict[str, list[Workload]] = {}
        for workload in self._parts.pods.all():
            if not workload.ended and workload.node_name:
                asking.setdefault(workload.signature.owner_key, []).append(workload)
        for key, advice in list(self._advice.items()):
            followers = [each for each in asking.get(key, ()) if each.signature.request == advice.after]
            if not followers:
                continue
            prices = [
                self._parts.prices.nano_usd_per_gpu_hour(by_name[each.node_name])
                for each in followers
                if each.node_name in by_name
            ]
            known = [price for price in prices if price is not None]
            actual = round(sum(known) * advice.saved_gpus * self._parts.prices.hours_per_month)
            noted = replace(
                advice,
                applied_at=advice.applied_at or now,
                actual_nano_usd=actual if known else None,
            )
            if noted != advice:
                await self._keep(noted)

    async def _keep(self, advice: Advice) -> None:
        try:
            await self._parts.store.keep_advice(advice)
        except GpuloomError as error:
            _log.warning("advice not kept", extra={"reason": str(error)})
            return
        self._advice[advice.owner_key] = advice
