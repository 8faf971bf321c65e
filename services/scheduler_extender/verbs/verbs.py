"""The four verbs: decode, ask the core, encode."""

import logging

from gpuloom.codec.pod import pod_ref, pod_request
from gpuloom.errors import InvalidRequestError
from gpuloom.kube.objects import JsonObject, resource_version_of, uid_of
from gpuloom.model.ledger import Decision, Verdict
from gpuloom.model.node import PodRef
from gpuloom.placement.fit import Refusal
from gpuloom.placement.occupancy.nominations import Asker
from services.scheduler_extender.core.objects.pods import asker_of
from services.scheduler_extender.core.objects.schedulers import SchedulerNames
from services.scheduler_extender.core.verbs import wire
from services.scheduler_extender.core.verbs.admission import admit
from services.scheduler_extender.core.verbs.budgets import BudgetGate
from services.scheduler_extender.core.verbs.filtering import (
    Preferences,
    filter_nodes,
    has_soft_wishes,
    neutral_scores,
    refuse_all,
    score_nodes,
    summary,
)
from services.scheduler_extender.core.verbs.quarantine import Quarantine, workload_of
from services.scheduler_extender.verbs.binding import BindContext, Bindings

_log = logging.getLogger(__name__)

VERBS = ("filter", "prioritize", "bind", "preempt")
AWAITED_VERB = "bind"
"""Its answer waits for the API server; that of every other verb is there at once."""


class Verbs:
    """Without a quarantine nobody is ever held back."""

    def __init__(
        self,
        context: BindContext,
        bindings: Bindings,
        preferences: Preferences,
        quarantine: Quarantine | None = None,
        schedulers: SchedulerNames | None = None,
        budgets: BudgetGate | None = None,
    ) -> None:
        self._context = context
        self._bindings = bindings
        self._preferences = preferences
        self._quarantine = quarantine or Quarantine()
        self._schedulers = SchedulerNames() if schedulers is None else schedulers
        self._budgets = budgets or BudgetGate()

    async def answer(self, verb: str, body: bytes) -> bytes:
        """Raise InvalidRequestError for a body that is no call of this verb."""
        if verb == AWAITED_VERB:
            return await self.bind(body)
        return self.answer_at_once(verb, body)

    def answer_at_once(self, verb: str, body: bytes) -> bytes:
        """Every verb but bind: what they ask is known here, so nobody has to wait for it."""
        match verb:
            case "filter":
                return self._filter(body)
            case "prioritize":
                return self._prioritize(body)
            case _:
                return self._preempt(body)

    async def bind(self, body: bytes) -> bytes:
        return wire.encode_bind(await self._bindings.bind(wire.parse_bind_call(body)))

    def _filter(self, body: bytes) -> bytes:
        call = wire.parse_nodes_call(body)
        ref = pod_ref(call.pod)
        self._schedulers.note_call(call.pod)
        answer = self._filtered(call, ref)
        if not answer.node_names and call.node_names:
            self._record_refusal(ref, summary({**answer.failed, **answer.hopeless}))
        elif answer.best:
            self._context.comparison.note_best(ref.uid, answer.best)
        return wire.encode_filter(call, answer)

    def _filtered(self, call: wire.NodesCall, ref: PodRef) -> wire.FilterAnswer:
        hold = self._quarantine.hold(workload_of(call.pod), self._context.clock.monotonic())
        observed = self._context.ledger.pod_at(ref.uid, resource_version_of(call.pod))
        over_budget = self._budgets.refusal(call.pod)
        request = admit(call.pod, held=hold is not None, observed=observed, over_budget=over_budget)
        if request is None:
            # Not ours to judge; kube-scheduler asks only if managedResources names something we don't know.
            return wire.FilterAnswer(call.node_names.all(), {}, {})
        if isinstance(request, Refusal):
            return _refused_everywhere(call.node_names.all(), request)
        self._bindings.expect(call.pod)
        asker, offered, guard = self._asker(call.pod), call.node_names, self._context.guard
        view_of, wanted = self._context.views.viewer(asker), self._preferences.wanted(call.pod)
        evaluator = self._preferences.evaluator_for(call.pod, ref.uid)
        if guard is not None:
            narrowed = guard.narrowed(call.pod, asker, offered, request, view_of)
            if isinstance(narrowed, Refusal):
                return _refused_everywhere(offered.all(), narrowed)
            offered = narrowed
        return filter_nodes(request, offered, view_of, evaluator, wanted)

    def _prioritize(self, body: bytes) -> bytes:
        call = wire.parse_nodes_call(body)
        try:
            request = pod_request(call.pod)
        except InvalidRequestError:
            request = None
        if request is None:
            return wire.encode_scores(neutral_scores(call.node_names.all()))
        view_of, soft = self._context.views.viewer(self._asker(call.pod)), has_soft_wishes(call.pod)
        evaluator = self._preferences.evaluator_for(call.pod, pod_ref(call.pod).uid)
        scores = score_nodes(request, call.node_names.all(), view_of, evaluator, soft)
        return wire.encode_scores(scores)

    def _preempt(self, body: bytes) -> bytes:
        """Only what the leader has planned, and asked to leave, is confirmed: it alone chooses victims."""
        pod = wire.parse_preempt_call(body)
        guard = self._context.guard
        plan = None if guard is None else guard.board.plans.get(uid_of(pod))
        if plan is None or not plan[1] <= wire.victims_offered(body, plan[0]):
            return wire.encode_no_victims()
        return wire.encode_victims(*plan)

    def _asker(self, pod: JsonObject) -> Asker:
        guard = self._context.guard
        return asker_of(pod) if guard is None else guard.asker(pod)

    def _record_refusal(self, ref: PodRef, reason: str) -> None:
        decision = Decision(self._context.clock.now(), ref, Verdict.REFUSED, reason=reason)
        if self._context.decisions.record(decision):
            _log.info("pod refused", extra={"pod": str(ref), "uid": ref.uid, "reason": reason})


def _refused_everywhere(names: tuple[str, ...], refusal: Refusal) -> wire.FilterAnswer:
    if refusal.resolvable:
        return wire.FilterAnswer((), dict.fromkeys(names, refusal.reason), {})
    return refuse_all(names, refusal.reason)
