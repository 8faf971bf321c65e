"""Bind: choose devices on the ledger, then send one Binding that carries the choice.

The order is what keeps a device from being given twice:
  1. read the pod's resourceVersion, be it an old one,
  2. check that nobody else can be the leader before the API server has given the Binding up,
  3. choose and hold the devices on the ledger, in one step without an await (this process has one thread, so
     that step is the node's critical section),
  4. send the Binding with the pod's UID and that resourceVersion as preconditions.
The version is read before the check, never after: a Binding that is held up behind the check then carries a
version from this leader's own term, and the next leader has changed that version before it serves.
Only a definite "no" of the API server to every Binding that was sent, and a pod read unbound after it, give
the devices back. If the pod had changed a moment before, the four steps are taken once more. The answer is
idempotent by pod UID.
"""

import logging
import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from gpuloom.codec.allocation import encode_allocation
from gpuloom.errors import (
    ConflictError,
    GpuloomError,
    InvalidRequestError,
    NotAllowedError,
    NotFoundError,
)
from gpuloom.kube.client import PodBinding
from gpuloom.kube.objects import JsonObject, is_older_version, resource_version_of, uid_of
from gpuloom.model.allocation import Allocation
from gpuloom.model.ledger import Decision, Verdict
from gpuloom.model.node import NodeMode, PodRef
from gpuloom.placement.choose import choose_devices
from gpuloom.placement.fit import Refusal
from gpuloom.placement.potential import Prices, neutral_prices
from gpuloom.runtime.clock import Clock
from services.scheduler_extender.core.gangs.guard import Guard
from services.scheduler_extender.core.ledger.attempts import Attempt
from services.scheduler_extender.core.ledger.claims import ObservedPod
from services.scheduler_extender.core.ledger.ledger import Ledger
from services.scheduler_extender.core.objects.pods import allocation_text, asker_of, observed_pod
from services.scheduler_extender.core.verbs.bind_annotations import binding_annotations
from services.scheduler_extender.core.verbs.comparison import Comparison
from services.scheduler_extender.core.verbs.wire import BindCall
from services.scheduler_extender.core.views.views import Views
from services.scheduler_extender.inquiries.decisions import DecisionLog
from services.scheduler_extender.ports import Binder, Mandate, Pods

_log = logging.getLogger(__name__)

_DEFINITE = (ConflictError, NotFoundError, InvalidRequestError, NotAllowedError)

LEAST_TIMEOUT_S = 1.0
"""With less time than this left of the lease, no Binding is sent."""

MOST_EXPECTED = 256


@dataclass(frozen=True, slots=True)
class BindContext:
    """What a bind works on. By `prices` a share finds the card whose rest is then worth most.

    `comparison` says how the chosen node compares with others; it decides nothing. Without a `guard` nobody
    is in a gang, promised a place, or entitled to a reservation.
    """

    ledger: Ledger
    views: Views
    decisions: DecisionLog
    clock: Clock
    prices: Callable[[], Prices] = neutral_prices
    comparison: Comparison = field(default_factory=Comparison)
    guard: Guard | None = None


class BindRefusedError(GpuloomError):
    """This bind can't be done; the text is kube-scheduler's answer."""


class PodChangedError(BindRefusedError):
    """A Binding was refused because the pod is not what it was; `pod` is how it is now, still unbound."""

    def __init__(self, reason: str, pod: JsonObject) -> None:
        super().__init__(reason)
        self.pod = pod


class Unlimited:
    """The mandate of an extender that has no rivals."""

    def until_s(self) -> float:
        return math.inf


class Bindings:
    def __init__(
        self,
        context: BindContext,
        pods: Pods,
        binder: Binder,
        timeout_s: float,
        mandate: Mandate | None = None,
    ) -> None:
        self._context = context
        self._pods = pods
        self._binder = binder
        self._timeout_s = timeout_s
        self._mandate = mandate or Unlimited()
        self._expected: OrderedDict[str, JsonObject] = OrderedDict()

    def expect(self, pod: JsonObject) -> None:
        """A pod that kube-scheduler shows us, and that may be bound before the informer shows it.

        Its bind goes by this then: if it has changed since, its version tells the API server so.
        """
        uid = uid_of(pod)
        if self._pods.by_uid(uid) is None and resource_version_of(pod):
            self._expected[uid] = pod
            if len(self._expected) > MOST_EXPECTED:
                self._expected.popitem(last=False)

    async def bind(self, call: BindCall) -> str:
        """Empty if the pod is bound to that node with its devices; else why not (yet)."""
        ref = PodRef(call.namespace, call.name, call.uid)
        try:
            pod = self._pods.by_uid(call.uid) or self._take_expected(call.uid)
            if pod is None:
                read = await self._read(call)
                # While it was read, the informer may have shown it, and newer.
                pod = self._pods.by_uid(call.uid) or read
            observed = self._context.ledger.pod_at(call.uid, resource_version_of(pod)) or _managed(pod)
            done = _done(observed, call)
            if done is not None:
                self._record(ref, Verdict.BOUND, call.node_name, "", done)
                return ""
            await self._attempt(pod, observed, call)
        except BindRefusedError as error:
            self._record(ref, Verdict.BIND_FAILED, call.node_name, str(error))
            return str(error)
        return ""

    def _take_expected(self, uid: str) -> JsonObject | None:
        """Not one that the ledger has heard of: it may have been bound and be gone, so it is read."""
        pod = self._expected.pop(uid, None)
        return None if self._context.ledger.has_heard_of(uid) else pod

    async def settle(self) -> None:
        """Look after attempts that nobody else will end.

        A pod that the informer does not show may be gone. One that it shows unbound may never be bound again,
        and is not tried again where it can't be scheduled any more.
        """
        for pod in self._context.ledger.attempted_pods():
            shown = self._pods.by_uid(pod.uid)
            if shown is not None:
                self._drop_overtaken(pod, shown)
                continue
            try:
                present = uid_of(await self._pods.read(pod.namespace, pod.name)) == pod.uid
            except NotFoundError:
                present = False
            except GpuloomError as error:
                _log.info("pod of an open bind not read", extra={"pod": str(pod), "reason": str(error)})
                continue
            if not present:
                self._note_gone(pod)

    async def _attempt(self, pod: JsonObject, observed: ObservedPod, call: BindCall) -> None:
        """Every pod here was read before it is checked that we lead."""
        until_s = self._context.clock.monotonic() + self._timeout_s
        try:
            await self._hold_and_send(pod, observed, call, self._timeout_s)
        except PodChangedError as changed:
            # What the informer showed was old. A bind that fails costs the pod seconds, and a nominated one
            # its node. But once only: a pod that keeps changing may do so without end.
            left_s = until_s - self._context.clock.monotonic()
            if left_s < LEAST_TIMEOUT_S:
                raise
            await self._hold_and_send(changed.pod, _managed(changed.pod), call, left_s)

    async def _hold_and_send(
        self, pod: JsonObject, observed: ObservedPod, call: BindCall, most_s: float
    ) -> None:
        version = _version(pod)
        timeout_s = self._time_to_bind_s(most_s)
        await self._send(self._hold(pod, observed, call), version, timeout_s)

    def _drop_overtaken(self, pod: PodRef, shown: JsonObject) -> None:
        """A pod that changed after its last Binding was sent, and is unbound: none can be applied now."""
        if (shown.get("spec") or {}).get("nodeName"):
            return
        for attempt in self._context.ledger.attempts_of(pod.uid):
            if not _may_be_applied(attempt, resource_version_of(shown)):
                self._context.ledger.refused(attempt)

    async def _read(self, call: BindCall) -> JsonObject:
        """A pod that the informer has not shown yet is read directly."""
        try:
            pod = await self._pods.read(call.namespace, call.name)
        except NotFoundError:
            pod = {}
        except GpuloomError as error:
            raise BindRefusedError(f"the pod can't be read: {error}") from error
        if uid_of(pod) != call.uid:
            # Only of the pod that the call means it is known now that it is gone.
            if not self._names_another(call):
                self._note_gone(PodRef(call.namespace, call.name, call.uid))
            raise BindRefusedError("the pod is gone")
        return pod

    def _names_another(self, call: BindCall) -> bool:
        """Whether the ledger knows the UID as that of a pod with another name."""
        ledger = self._context.ledger
        known = [attempt.pod for attempt in ledger.attempts_of(call.uid)]
        observed = ledger.pod(call.uid)
        if observed is not None:
            known.append(observed.ref)
        return any((ref.namespace, ref.name) != (call.namespace, call.name) for ref in known)

    def _time_to_bind_s(self, most_s: float) -> float:
        """How long the API server may take, so that it is over while nobody else can be the leader."""
        left_s = self._mandate.until_s() - self._context.clock.monotonic()
        if left_s < min(LEAST_TIMEOUT_S, most_s):
            raise BindRefusedError("this extender can't be sure to be the leader for long enough")
        return min(most_s, left_s)

    def _hold(self, pod: JsonObject, observed: ObservedPod, call: BindCall) -> Attempt:
        """Choose devices and hold them; an earlier attempt of the same pod on this node keeps its devices."""
        context = self._context
        guard = context.guard
        if guard is None:
            view = context.views.view(call.node_name, asker_of(pod))
        else:
            view = guard.seat(call.node_name, pod, observed.request)
        if view is None:
            raise BindRefusedError(f"node {call.node_name} does not exist")
        earlier = context.ledger.attempt(call.uid, view.uid)
        if earlier is not None:
            if view.closed_reason:
                # What it holds may be in other hands by now, of an authority that does not ask us.
                raise BindRefusedError(f"node closed: {view.closed_reason}")
            return earlier
        if context.ledger.is_releasing(call.uid, call.node_name):
            raise BindRefusedError("the pod ran there before Kubernetes was set back; it may still do so")
        if allocation_text(pod) is not None:
            raise BindRefusedError("the pod carries an allocation that GPULoom did not make; remove it")
        if observed.request is None:
            raise BindRefusedError(observed.problem or "the pod asks for no GPU")
        chosen = choose_devices(observed.request, view, context.prices())
        if isinstance(chosen, Refusal):
            raise BindRefusedError(chosen.reason)
        allocation = Allocation(
            pod_uid=call.uid,
            node_uid=view.uid,
            container=observed.request.container,
            advisory=view.mode is NodeMode.NVIDIA,
            devices=chosen,
        )
        try:
            used = guard.reservation_used(call.node_name, pod, chosen) if guard is not None else ""
            annotations = binding_annotations(allocation, view, used)
        except NotFoundError as error:
            raise BindRefusedError(str(error)) from error
        attempt = Attempt(
            observed.ref,
            call.node_name,
            allocation,
            cpu_milli=observed.request.cpu_milli,
            memory_bytes=observed.request.memory_bytes,
            annotations=annotations,
        )
        # Before it is held: afterwards the node is no longer what it was chosen as.
        context.comparison.compare(call.uid, observed.request, view)
        context.ledger.begin(attempt)
        return attempt

    async def _send(self, attempt: Attempt, resource_version: str, timeout_s: float) -> None:
        binding = PodBinding(
            namespace=attempt.pod.namespace,
            pod=attempt.pod.name,
            node=attempt.node_name,
            uid=attempt.pod.uid,
            resource_version=resource_version,
            annotations=attempt.annotations,
        )
        attempt.sent[resource_version] += 1
        try:
            await self._binder.bind(binding, timeout_s=timeout_s)
        except _DEFINITE as error:
            await self._resolve(attempt, resource_version, error)
        except GpuloomError as error:
            raise BindRefusedError(f"the outcome of the bind is not known yet: {error}") from error
        self._record(attempt.pod, Verdict.BOUND, attempt.node_name, "", attempt.allocation)

    async def _resolve(self, attempt: Attempt, resource_version: str, error: GpuloomError) -> None:
        """This Binding was refused. Whether another one of the same attempt was applied, the pod shows.

        A proxy may have sent this very one twice, so until the pod is read it counts as unanswered.
        """
        try:
            pod = await self._pods.read(attempt.pod.namespace, attempt.pod.name)
        except NotFoundError:
            pod = {}
        except GpuloomError as unreadable:
            raise BindRefusedError(f"the outcome of the bind is not known yet: {unreadable}") from error
        if uid_of(pod) != attempt.pod.uid:
            self._note_gone(attempt.pod)
            raise BindRefusedError("the pod is gone") from error
        node_name = _managed(pod).node_name
        if node_name:
            # Bound: by this attempt, or elsewhere. The informer will show it, and only that ends the hold.
            if node_name == attempt.node_name and _carries(pod, attempt):
                return
            raise BindRefusedError(f"the pod is already bound to {node_name}") from error
        attempt.sent[resource_version] -= 1
        if _may_be_applied(attempt, resource_version_of(pod)):
            raise BindRefusedError(f"the outcome of another bind is not known yet: {error}") from error
        self._context.ledger.refused(attempt)
        reason = f"the API server refused the bind: {error}"
        if isinstance(error, ConflictError) and is_older_version(resource_version, resource_version_of(pod)):
            raise PodChangedError(reason, pod) from error
        raise BindRefusedError(reason) from error

    def _note_gone(self, pod: PodRef) -> None:
        """A Binding may have been applied just before the pod went, so its node must show the devices free.

        If the informer never shows the pod, or showed its end already, nobody else tells the ledger.
        """
        if self._pods.by_uid(pod.uid) is None:
            self._context.ledger.observe_gone(pod.uid, self._context.clock.monotonic())

    def _record(
        self,
        pod: PodRef,
        verdict: Verdict,
        node_name: str,
        reason: str,
        allocation: Allocation | None = None,
    ) -> None:
        devices = allocation.devices if allocation is not None else ()
        scores = self._context.comparison.take(pod.uid, node_name) if verdict is Verdict.BOUND else ()
        decision = Decision(self._context.clock.now(), pod, verdict, node_name, devices, reason, scores)
        self._context.decisions.record(decision)
        fields = {
            "pod": str(pod),
            "uid": pod.uid,
            "node": node_name,
            "verdict": verdict,
            "reason": reason,
            "devices": [item.device.gpu_uuid for item in devices],
        }
        _log.info("bind decided", extra=fields)


def _done(observed: ObservedPod, call: BindCall) -> Allocation | None:
    """What the pod has if it is bound as asked already; None if it is unbound."""
    if (observed.ref.namespace, observed.ref.name) != (call.namespace, call.name):
        raise BindRefusedError("the UID is that of another pod")
    if not observed.node_name:
        return None
    if observed.node_name != call.node_name:
        raise BindRefusedError(f"the pod is already bound to {observed.node_name}")
    if observed.allocation is None:
        raise BindRefusedError("the pod is already bound to this node, but not by GPULoom")
    return observed.allocation


def _managed(pod: JsonObject) -> ObservedPod:
    try:
        observed = observed_pod(pod)
    except InvalidRequestError as error:
        raise BindRefusedError(str(error)) from error
    if observed is None:
        raise BindRefusedError("the pod asks for no GPU, so GPULoom does not bind it")
    return observed


def _version(pod: JsonObject) -> str:
    """A Binding without it would be applied to whatever the pod has become."""
    version: object = resource_version_of(pod)
    if not isinstance(version, str) or not version:
        raise BindRefusedError("the pod has no resourceVersion")
    return version


def _carries(pod: JsonObject, attempt: Attempt) -> bool:
    return allocation_text(pod) == encode_allocation(attempt.allocation)


def _may_be_applied(attempt: Attempt, resource_version: str) -> bool:
    """Whether a Binding that was sent for a pod, unbound at this version, may still come or just came."""
    open_versions = (version for version, count in attempt.sent.items() if count > 0)
    return not all(is_older_version(version, resource_version) for version in open_versions)
