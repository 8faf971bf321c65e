"""Answers reviews: decode, ask the core, encode. Never blocks a pod because something of ours is missing.

An internal deadline bounds what an answer may wait for advice. What goes wrong within admits the pod as it
is; only the guard of allocations, where it is in use, refuses when in doubt.
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from gpuloom.errors import GpuloomError, InvalidRequestError
from services.webhook.core.defaults import defaulted
from services.webhook.core.guard import KINDS, refusal
from services.webhook.core.pods import PodPolicy, is_gpu_pod, mutated_pod, wants_advice
from services.webhook.core.reviews import ADMITTED, Answer, Review, json_patch
from services.webhook.core.validation import problem_of, wrong_request
from services.webhook.ports import Advisor, Cluster

MUTATE, VALIDATE, DEFAULT, GUARD = "/mutate-pods", "/validate", "/default", "/guard-pods"

_log = logging.getLogger(__name__)

Handler = Callable[[Review], Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class AdmissionSettings:
    """`rejects`: a GPU request without a clear meaning is refused instead of only warned of."""

    policy: PodPolicy
    deadline_s: float
    rejects: bool
    writers: frozenset[str]
    """Users that may write allocations."""
    strategies: frozenset[str]


class Admission:
    def __init__(self, cluster: Cluster, advisor: Advisor, settings: AdmissionSettings) -> None:
        self._cluster = cluster
        self._advisor = advisor
        self._settings = settings
        self.handlers: dict[str, Handler] = {
            MUTATE: self.mutate,
            VALIDATE: self.validate,
            DEFAULT: self.default,
            GUARD: self.guard,
        }

    async def mutate(self, review: Review) -> Answer:
        pod, namespace = review.object, review.namespace
        if review.kind != "Pod" or review.subresource or not is_gpu_pod(pod):
            return ADMITTED
        try:
            policy = self._settings.policy
            around = self._cluster.surroundings(pod, namespace)
            if wants_advice(pod, namespace, policy, around):
                left_s = self._settings.deadline_s - review.waited_s
                advice = await self._advisor.advice(pod, namespace, timeout_s=left_s)
                around = replace(around, advice=advice)
            changed, told = mutated_pod(pod, namespace, policy, around)
        except (GpuloomError, ValueError, TypeError, KeyError, AttributeError) as error:
            # Whatever a hostile pod holds: it is the API server's to refuse, and never ours to stop.
            _log.warning("pod admitted as it is", extra={"namespace": namespace, "reason": repr(error)[:200]})
            return Answer(failed=True)
        return Answer(json_patch(pod, changed), tuple(told))

    async def validate(self, review: Review) -> Answer:
        if review.operation == "DELETE":
            return ADMITTED
        if review.kind == "Pod":
            wrong = wrong_request(review.object) if review.operation == "CREATE" else None
            if wrong is None:
                return ADMITTED
            return Answer(denied=wrong) if self._settings.rejects else Answer(warnings=(wrong,))
        if review.object.get("spec") == review.old.get("spec"):
            # What is stored already must stay writable: its labels, its finalizers.
            return ADMITTED
        problem = problem_of(review.kind, review.object, self._settings.strategies)
        return ADMITTED if problem is None else Answer(denied=problem)

    async def default(self, review: Review) -> Answer:
        if review.operation == "DELETE":
            return ADMITTED
        completed = defaulted(review.kind, review.object, self._settings.strategies)
        return Answer(json_patch(review.object, completed))

    async def guard(self, review: Review) -> Answer:
        if review.operation == "DELETE":
            return ADMITTED
        if review.kind not in KINDS:
            raise InvalidRequestError(f"only pods and their bindings are guarded, not {review.kind}")
        return Answer(denied=refusal(review, self._settings.writers))
