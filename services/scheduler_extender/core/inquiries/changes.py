"""Which small change of a pod would make it fit: a bounded set of changes, tried in a fixed order. Pure.

What a node lacks comes first, then how the pod asks, then what it insists on, then all of that together. Each
is asked of the same fit as the pod itself.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from gpuloom.catalog import load_catalog, mig_resource
from gpuloom.model.request import Authority, GpuRequest, PodRequest, RequestKind
from gpuloom.names import (
    ANNOTATION_GPU_ARCHITECTURE,
    ANNOTATION_GPU_MODEL,
    ANNOTATION_MIG_PROFILE,
    ANNOTATION_VISIBLE_DEVICES,
    RESOURCE_GPU_MILLI,
)
from gpuloom.placement.devices import NodeView
from gpuloom.placement.reasons import RUNTIME_CLASS
from services.scheduler_extender.core.inquiries.gaps import Gap, GapKind
from services.scheduler_extender.core.inquiries.wording import asked

MAX_PROFILES = 8


@dataclass(frozen=True, slots=True)
class Candidate:
    change: str
    request: PodRequest


def candidates(request: PodRequest, gaps: Iterable[Gap], free_profiles: Iterable[str]) -> list[Candidate]:
    """At most one per kind of gap, and a few others.

    `gaps` come nearest first; `free_profiles` are those of which a MIG slice is free somewhere.
    """
    found = [*_from_gaps(gaps), *_other_ways(request), *_without_wishes(request)]
    if request.gpu.kind is RequestKind.MIG:
        found += _other_profiles(request, free_profiles)
    return found


def free_profiles_of(view: NodeView) -> set[str]:
    return {instance.placement.profile for card in view.gpus for instance in card.free_mig}


def without_any_wish(request: PodRequest) -> Candidate | None:
    """With neither model nor architecture nor a required topology; None if it insists on nothing."""
    gpu = request.gpu
    plain = replace(gpu, models=(), architectures=(), topology_required=False)
    if plain == gpu:
        return None
    return Candidate("without any wish for model, architecture or topology", replace(request, gpu=plain))


def _from_gaps(gaps: Iterable[Gap]) -> Iterator[Candidate]:
    nearest: dict[GapKind, Gap] = {}
    for gap in gaps:
        if gap.relaxed is not None:
            nearest.setdefault(gap.kind, gap)
    for kind in sorted(nearest):
        gap = nearest[kind]
        if gap.relaxed is not None:
            yield Candidate(gap.change, gap.relaxed)


def _other_ways(request: PodRequest) -> Iterator[Candidate]:
    """The same devices, asked for as nodes of another mode or delivery give them out."""
    gpu = request.gpu
    if gpu.authority is Authority.NVIDIA:
        for other in _as_gpuloom(gpu):
            change = f"{asked(other)} instead of {asked(gpu)}"
            for candidate in _deliverable(replace(request, gpu=other)):
                yield Candidate(", ".join(filter(None, (change, candidate.change))), candidate.request)
        return
    yield from (candidate for candidate in _deliverable(request) if candidate.change)
    if gpu.kind is not RequestKind.SHARE:
        other = replace(gpu, authority=Authority.NVIDIA, memory_mib=None)
        yield Candidate(f"{asked(other)} instead of {asked(gpu)}", replace(request, gpu=other))


def _deliverable(request: PodRequest) -> Iterator[Candidate]:
    """As nodes deliver that have NRI, and as those do that go by environment; no text, no change."""
    has_class = request.runtime_class == RUNTIME_CLASS
    without = f"without runtimeClassName: {RUNTIME_CLASS}" if has_class else ""
    yield Candidate(without, replace(request, runtime_class=None) if has_class else request)
    lacking = [] if has_class else [f"runtimeClassName: {RUNTIME_CLASS}"]
    if not request.sees_only_its_allocation:
        lacking.append(f"NVIDIA_VISIBLE_DEVICES from {ANNOTATION_VISIBLE_DEVICES}")
    by_environment = replace(request, runtime_class=RUNTIME_CLASS, sees_only_its_allocation=True)
    yield Candidate(" and ".join(lacking), by_environment)


def _as_gpuloom(gpu: GpuRequest) -> Iterator[GpuRequest]:
    if gpu.kind is RequestKind.WHOLE:
        yield replace(gpu, authority=Authority.GPULOOM)
    elif gpu.count == 1:
        for milli in load_catalog().mig_milli(gpu.mig_profile or ""):
            yield replace(gpu, authority=Authority.GPULOOM, milli=milli)


def _without_wishes(request: PodRequest) -> Iterator[Candidate]:
    gpu = request.gpu
    if gpu.architectures:
        change = f"without {ANNOTATION_GPU_ARCHITECTURE}"
        yield Candidate(change, replace(request, gpu=replace(gpu, architectures=())))
    if gpu.models:
        yield Candidate(f"without {ANNOTATION_GPU_MODEL}", replace(request, gpu=replace(gpu, models=())))


def _other_profiles(request: PodRequest, free_profiles: Iterable[str]) -> Iterator[Candidate]:
    """Those of nearly the same size first."""
    gpu = request.gpu
    wanted_gb = _gigabytes(gpu.mig_profile or "")
    others = set(free_profiles) - {gpu.mig_profile}
    nearest = sorted(others, key=lambda name: (abs(_gigabytes(name) - wanted_gb), name))
    for profile in nearest[:MAX_PROFILES]:
        if gpu.authority is Authority.NVIDIA:
            other = replace(gpu, mig_profile=profile)
            change = f"{mig_resource(profile)} instead of {mig_resource(gpu.mig_profile or '')}"
            yield Candidate(change, replace(request, gpu=other))
            continue
        for milli in load_catalog().mig_milli(profile):
            other = replace(gpu, mig_profile=profile, milli=milli)
            change = (
                f"{ANNOTATION_MIG_PROFILE}: {profile} with {RESOURCE_GPU_MILLI}: {milli} "
                f"instead of {gpu.mig_profile}"
            )
            yield Candidate(change, replace(request, gpu=other))


def _gigabytes(profile: str) -> int:
    """From the profile's own name, e.g. 20 of 3g.20gb; 0 if it does not say."""
    digits = profile.partition(".")[2].partition("gb")[0]
    return int(digits) if digits.isdecimal() and len(digits) <= 4 else 0
