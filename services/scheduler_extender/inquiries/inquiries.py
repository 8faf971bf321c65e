"""Questions of people: why is this pod where it is, and where would these go. Reads, and changes nothing.

Answers come from the leader's own state, by the functions that live calls use. They are worked out one
at a time and in turns of a millisecond, so that kube-scheduler's calls hardly notice.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Protocol

from gpuloom.codec.pod import bound_node, is_terminal
from gpuloom.codec.pod_names import unknown_names
from gpuloom.errors import InvalidRequestError, NotFoundError, NotReadyError
from gpuloom.kube.objects import JsonObject, key_of, metadata_of, uid_of
from gpuloom.model.explanation import Explanation, Forecast, PodStanding, QuarantineNotice
from gpuloom.model.node import PodRef
from gpuloom.placement.devices import NodeView
from gpuloom.placement.fit import Refusal
from gpuloom.placement.keeping import Enforcement, keeping_text
from gpuloom.placement.occupancy.nominations import Asker
from gpuloom.runtime.clock import Clock
from services.scheduler_extender.core.gangs.guard import Guard
from services.scheduler_extender.core.inquiries.evaluation import Judge
from services.scheduler_extender.core.inquiries.explain import Result, Steps, judged
from services.scheduler_extender.core.inquiries.whatif import MAX_REPLICAS, forecast
from services.scheduler_extender.core.inquiries.wording import described
from services.scheduler_extender.core.objects.pods import asker_of, observed_pod
from services.scheduler_extender.core.objects.schedulers import SchedulerNames, scheduler_of
from services.scheduler_extender.core.verbs.admission import admit
from services.scheduler_extender.core.verbs.budgets import BudgetGate
from services.scheduler_extender.core.verbs.quarantine import REASON, Hold, Quarantine, workload_of
from services.scheduler_extender.core.views.views import Views
from services.scheduler_extender.inquiries.decisions import DecisionLog

TURN_S = 0.001
MAX_WAITING = 8
"""Questions under way or waiting; one more is asked to come again."""
MAX_NAME_LENGTH = 253

NOTE = (
    "Judged are GPUs, CPU and memory. Taints, affinity, spreading, volumes and whatever else kube-scheduler "
    "evaluates by itself are not."
)
KEPT_NOTE = "Nodes where room is kept for nominated pods of at least equal priority, and counts as taken: {}."
NOT_ASKED = (
    "the pod names the scheduler {!r}, and GPULoom is asked only about pods of {}; set spec.schedulerName to "
    "one of these, or let that scheduler call the extender"
)
NEVER_ASKED = "No kube-scheduler has asked this extender about a pod since it began to lead."
GATED = "The pod has scheduling gates: kube-scheduler does not consider it until they are removed."


class Observed(Protocol):
    """Objects of one kind as Kubernetes last showed them; an informer is one."""

    def get(self, name: str, namespace: str = "") -> JsonObject | None: ...

    def objects(self) -> Sequence[JsonObject]: ...


def _nothing() -> str:
    return ""


@dataclass(frozen=True, slots=True)
class Records:
    """What is read to answer. `cluster_note` says what is wrong with the cluster as a whole, if anything."""

    views: Views
    decisions: DecisionLog
    quarantine: Quarantine
    nodes: Observed
    pods: Observed
    schedulers: SchedulerNames = field(default_factory=SchedulerNames)
    cluster_note: Callable[[], str] = _nothing
    budgets: BudgetGate = field(default_factory=BudgetGate)
    guard: Guard | None = None
    enforcement: Enforcement = Enforcement.MPS


class Inquiries:
    """`unready_reason` is asked at every question."""

    def __init__(
        self, records: Records, judge: Judge, unready_reason: Callable[[], str], clock: Clock
    ) -> None:
        self._records = records
        self._judge = judge
        self._unready_reason = unready_reason
        self._clock = clock
        self._turn = asyncio.Lock()
        self._waiting = 0

    async def explain_named(self, namespace: str, name: str, uid: str = "") -> Explanation:
        """Raise NotFoundError if there is no such pod."""
        self._refuse_unready()
        pod = self._records.pods.get(name, namespace)
        if pod is None or (uid and uid_of(pod) != uid):
            raise NotFoundError(f"no pod {namespace}/{name}")
        return await self.explain(pod)

    async def explain(self, pod: JsonObject) -> Explanation:
        """Raise InvalidRequestError for what is no pod at all."""
        self._refuse_unready()
        ref, workload = _ref(pod), workload_of(pod)
        hold = self._records.quarantine.hold(workload, self._clock.monotonic())
        known = Explanation(
            ref,
            PodStanding.UNMANAGED,
            quarantine=None if hold is None else self._notice(hold),
            decisions=self._records.decisions.about(ref.uid) if ref.uid else (),
            note=" ".join(filter(None, (self._records.cluster_note(), GATED if _is_gated(pod) else ""))),
            warnings=unknown_names(pod),
        )
        settled = _settled(pod, known)
        if settled is not None:
            return replace(settled, keeping=self._keeping(pod, settled))
        request = admit(pod, held=False, over_budget=self._records.budgets.refusal(pod))
        if request is None:
            return known
        if isinstance(request, Refusal):
            return replace(known, standing=PodStanding.REFUSED, problem=request.reason)
        async with self._one_at_a_time():
            guard = self._records.guard
            asker = asker_of(pod) if guard is None else guard.asker(pod)
            views = await self._in_turns(self._views(asker))
            kept = self._kept_note(asker)
            judgement = await self._in_turns(judged(request, views, self._judge.about(pod)))
        waits = "" if guard is None else guard.waiting_reason(pod)
        planned = "" if guard is None else guard.board.notes.get(ref.uid, "")
        fits = judgement.fitting_count > 0 and hold is None and not waits
        schedulers = self._records.schedulers
        answer = replace(
            known,
            standing=PodStanding.FITS if fits else PodStanding.REFUSED,
            problem=waits if hold is None else REASON,
            request=described(request),
            judgement=judgement,
            note=" ".join(filter(None, (known.note, planned, "" if schedulers else NEVER_ASKED, kept, NOTE))),
        )
        if schedulers.serve(pod):
            return answer
        problem = NOT_ASKED.format(scheduler_of(pod), ", ".join(schedulers.names()))
        return replace(answer, standing=PodStanding.OTHER_SCHEDULER, problem=problem)

    async def what_if(self, pod: JsonObject, replicas: int) -> Forecast:
        self._refuse_unready()
        if not 1 <= replicas <= MAX_REPLICAS:
            raise InvalidRequestError(f"replicas must be 1 to {MAX_REPLICAS}, not {replicas}")
        _ref(pod)
        request = admit(pod, held=False, over_budget=self._records.budgets.refusal(pod))
        if request is None:
            return Forecast(replicas)
        if isinstance(request, Refusal):
            return Forecast(replicas, problem=request.reason)
        async with self._one_at_a_time():
            # Its replicas are no pods yet: none has holds of its own, and none is nominated.
            asker = replace(asker_of(pod), uid="", nominated_node="")
            views = await self._in_turns(self._views(asker))
            kept = self._kept_note(asker)
            found = await self._in_turns(forecast(request, views, replicas, self._judge))
        return replace(found, note=" ".join(filter(None, (kept, NOTE))))

    def _keeping(self, pod: JsonObject, settled: Explanation) -> str:
        if settled.standing is not PodStanding.BOUND or not settled.devices:
            return ""
        view = self._records.views.view(settled.node_name)
        gpus = {} if view is None else {one.gpu.uuid: one.gpu for one in view.gpus}
        return keeping_text(
            settled.devices, gpus, metadata_of(pod).get("annotations") or {}, self._records.enforcement
        )

    def _refuse_unready(self) -> None:
        reason = self._unready_reason()
        if reason:
            raise NotReadyError(f"GPULoom is not ready: {reason}")

    def _notice(self, hold: Hold) -> QuarantineNotice:
        left = timedelta(seconds=hold.until_s - self._clock.monotonic())
        return QuarantineNotice(self._clock.now() + left, hold.failures, hold.whole_controller)

    def _kept_note(self, asker: Asker) -> str:
        count = len(self._records.views.promised_nodes(asker))
        return KEPT_NOTE.format(count) if count else ""

    def _views(self, asker: Asker) -> Steps[list[NodeView]]:
        """Node by node: one that changes meanwhile is seen as it was, or as it is."""
        found: list[NodeView] = []
        for name in sorted(names_of(self._records.nodes)):
            view = self._records.views.view(name, asker)
            if view is not None:
                found.append(view)
            yield
        return found

    @asynccontextmanager
    async def _one_at_a_time(self) -> AsyncIterator[None]:
        if self._waiting >= MAX_WAITING:
            raise NotReadyError("busy with other questions; ask again")
        self._waiting += 1
        try:
            async with self._turn:
                yield
        finally:
            self._waiting -= 1

    async def _in_turns(self, work: Steps[Result]) -> Result:
        ends_s = self._clock.monotonic() + TURN_S
        while True:
            try:
                next(work)
            except StopIteration as done:
                result: Result = done.value
                return result
            if self._clock.monotonic() >= ends_s:
                await self._clock.sleep(0.0)
                ends_s = self._clock.monotonic() + TURN_S


def _settled(pod: JsonObject, known: Explanation) -> Explanation | None:
    """The answer for a pod that has a node or has ended; None for one that waits for a node."""
    if is_terminal(pod):
        return replace(known, standing=PodStanding.ENDED, node_name=bound_node(pod) or "")
    node_name = bound_node(pod)
    if node_name is None:
        return None
    observed = observed_pod(pod) if known.pod.uid else None
    if observed is None:
        return replace(known, standing=PodStanding.BOUND, node_name=node_name)
    return replace(
        known,
        standing=PodStanding.BOUND,
        node_name=node_name,
        request="" if observed.request is None else described(observed.request),
        problem=observed.problem,
        devices=() if observed.allocation is None else observed.allocation.devices,
    )


def _ref(pod: JsonObject) -> PodRef:
    """A pod that Kubernetes does not have may lack a UID, and a name too."""
    metadata = metadata_of(pod)
    values = [metadata.get(key) or "" for key in ("namespace", "name", "generateName", "uid")]
    if not all(isinstance(value, str) and len(value) <= MAX_NAME_LENGTH for value in values):
        raise InvalidRequestError(
            f"a pod's namespace, name and UID are texts of up to {MAX_NAME_LENGTH} characters"
        )
    namespace, name, prefix, uid = values
    return PodRef(namespace or "default", name or prefix, uid)


def _is_gated(pod: JsonObject) -> bool:
    spec = pod.get("spec")
    return isinstance(spec, dict) and bool(spec.get("schedulingGates"))


def names_of(nodes: Observed) -> list[str]:
    return [key_of(node)[1] for node in nodes.objects()]
