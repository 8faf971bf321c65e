"""What all nodes say about one request: reasons with their counts, offers, nearest misses, changes that help.

Pure, and in small steps: each function here is a generator that stops after every node, so that whoever runs
it can let others go on in between. Views are values, so what it works on does not change meanwhile.
"""

from collections import Counter
from collections.abc import Generator, Iterable, Sequence
from typing import TypeVar

from gpuloom.model.explanation import Change, Judgement, NearMiss, Offer, ReasonCount
from gpuloom.model.request import PodRequest, RequestKind
from gpuloom.placement.devices import NodeView
from gpuloom.placement.fit import Refusal
from gpuloom.placement.score import Scored, best_of
from services.scheduler_extender.core.inquiries.changes import (
    Candidate,
    candidates,
    free_profiles_of,
    without_any_wish,
)
from services.scheduler_extender.core.inquiries.evaluation import Judge
from services.scheduler_extender.core.inquiries.gaps import Gap, gap_of

Result = TypeVar("Result")
Steps = Generator[None, None, Result]

OFFERS = 3
NEAR_MISSES = 5
CHANGES = 3


def judged(request: PodRequest, views: Sequence[NodeView], judge: Judge) -> Steps[Judgement]:
    fitting: list[Scored] = []
    refusals: list[Refusal] = []
    evaluation = judge.of(request)
    for view in views:
        outcome = evaluation(view)
        if isinstance(outcome, Refusal):
            refusals.append(outcome)
        else:
            fitting.append(outcome)
        yield
    reasons = reason_counts(refusals)
    if fitting:
        offers = _offers(request, views, judge.first(fitting, views, OFFERS), judge)
        return Judgement(len(views), len(fitting), offers, reasons)
    gaps = yield from _gaps(request, views)
    changes = yield from _changes(request, gaps, views, judge)
    near_misses = tuple(NearMiss(gap.node_name, gap.has) for gap in gaps[:NEAR_MISSES])
    return Judgement(len(views), 0, (), reasons, near_misses, changes)


def reason_counts(refusals: Iterable[Refusal]) -> tuple[ReasonCount, ...]:
    """The most frequent first; equals by text."""
    counts = Counter(refusals)
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0].reason, item[0].resolvable))
    return tuple(ReasonCount(refusal.reason, count, refusal.resolvable) for refusal, count in ordered)


def _offers(
    request: PodRequest, views: Iterable[NodeView], best: Sequence[Scored], judge: Judge
) -> tuple[Offer, ...]:
    by_name = {view.name: view for view in views}
    offers = (judge.offer(request, by_name[scored.name], scored) for scored in best)
    return tuple(offer for offer in offers if offer is not None)


def _gaps(request: PodRequest, views: Iterable[NodeView]) -> Steps[list[Gap]]:
    """What the nodes lack, the nearest first."""
    gaps: list[Gap] = []
    for view in views:
        gap = gap_of(request, view)
        if gap is not None:
            gaps.append(gap)
        yield
    return sorted(gaps, key=lambda gap: (gap.missing, gap.kind, gap.node_name))


def _changes(
    request: PodRequest, gaps: Sequence[Gap], views: Sequence[NodeView], judge: Judge
) -> Steps[tuple[Change, ...]]:
    """The first few that help; only if none does, all wishes are dropped, and then what is lacking too."""
    profiles = yield from _free_profiles(request, views)
    found = yield from _helping(candidates(request, gaps, profiles), views, judge)
    plain = without_any_wish(request)
    if found or plain is None:
        return found
    found = yield from _helping([plain], views, judge)
    if found:
        return found
    smaller = yield from _gaps(plain.request, views)
    both = [
        Candidate(f"{plain.change}, and {candidate.change}", candidate.request)
        for candidate in candidates(plain.request, smaller, profiles)
    ]
    return (yield from _helping(both, views, judge))


def _free_profiles(request: PodRequest, views: Iterable[NodeView]) -> Steps[set[str]]:
    found: set[str] = set()
    if request.gpu.kind is RequestKind.MIG:
        for view in views:
            found |= free_profiles_of(view)
            yield
    return found


def _helping(
    tried: Iterable[Candidate], views: Sequence[NodeView], judge: Judge
) -> Steps[tuple[Change, ...]]:
    found: list[Change] = []
    for candidate in tried:
        scored: list[Scored] = []
        evaluation = judge.of(candidate.request)
        for view in views:
            if judge.fits(candidate.request, view):
                outcome = evaluation(view)
                if isinstance(outcome, Scored):
                    scored.append(outcome)
            yield
        if scored:
            best = best_of(scored, 1)[0]
            found.append(Change(candidate.change, len(scored), best.name))
        if len(found) == CHANGES:
            break
    return tuple(found)
