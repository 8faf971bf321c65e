"""How much a pod wastes. Pure.

The rule: under half of what it was given, for more than five of the last ten minutes. What was not measured
is not waste. The score is the sum of parts that a person can check one by one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from gpuloom.model.gpu import MILLI_PER_GPU
from gpuloom.model.optimization import WasteParts, WorkloadClass
from gpuloom.model.request import RequestKind
from services.optimizer.core.offers import Fit, held_gpus
from services.optimizer.core.run import Run, Stretch
from services.optimizer.core.workload import Workload

IDLE_POINTS = 60.0
OVERSIZED_POINTS = 25.0
WRONG_KIND_POINTS = 10.0
SHARABLE_POINTS = 5.0
_LARGE_CARD_MIB = 32 * 1024
_LITTLE_MEMORY = 0.25
_SMALL_KINDS = (WorkloadClass.INFERENCE, WorkloadClass.INTERACTIVE, WorkloadClass.IDLE)


@dataclass(frozen=True, slots=True)
class WasteRule:
    """Below `ratio` for more than `after_s` of the last `window_s`."""

    ratio: float = 0.5
    after_s: float = 300.0
    window_s: float = 600.0


@dataclass(frozen=True, slots=True)
class Observed:
    """The last minutes of a pod. `ratio` is of what it was given; `since` is when it went below the rule."""

    ratio: float
    low_s: float
    since: datetime


def observe(run: Run, rule: WasteRule, now: datetime) -> Observed | None:
    """None if the pod does not waste, or if the last minutes are not known."""
    recent = [each for each in run.recent if each.ends_at_s > run.recent[-1].ends_at_s - rule.window_s]
    if not recent or now.timestamp() - recent[-1].ends_at_s > rule.window_s:
        return None
    share = (run.given_milli or MILLI_PER_GPU) / MILLI_PER_GPU
    measured_s = sum(each.measured_s for each in recent)
    low = [each for each in recent if (ratio := _ratio(each, share)) is not None and ratio < rule.ratio]
    low_s = sum(each.duration_s * each.measured_s / each.held_s for each in low if each.held_s)
    if not measured_s or low_s <= rule.after_s:
        return None
    ratio = min(1.0, sum(each.used_s for each in recent) / (measured_s * share))
    if ratio >= rule.ratio:
        return None
    return Observed(ratio, low_s, _since(run.recent, share, rule))


def waste_parts(
    workload: Workload, observed: Observed, found: WorkloadClass, fit: Fit | None, run: Run
) -> WasteParts:
    now = held_gpus(workload.request)
    smaller = 0.0 if fit is None or not now else max(0.0, 1 - fit.gpus / now)
    whole = workload.request.kind is RequestKind.WHOLE
    little = run.memory_mib is not None and run.memory_mib < _LITTLE_MEMORY * _LARGE_CARD_MIB
    return WasteParts(
        idle=IDLE_POINTS * (1 - observed.ratio),
        oversized=OVERSIZED_POINTS * smaller,
        wrong_kind=WRONG_KIND_POINTS if whole and little and found in _SMALL_KINDS else 0.0,
        sharable=SHARABLE_POINTS if whole and workload.may_share and smaller > 0 else 0.0,
    )


def _ratio(stretch: Stretch, share: float) -> float | None:
    return stretch.used_s / (stretch.measured_s * share) if stretch.measured_s else None


def _since(recent: Sequence[Stretch], share: float, rule: WasteRule) -> datetime:
    """The beginning of the last time in which it was always low."""
    begun_s = recent[-1].ends_at_s
    for each in reversed(recent):
        ratio = _ratio(each, share)
        if ratio is not None and ratio >= rule.ratio:
            break
        begun_s = each.ends_at_s - each.duration_s
    return datetime.fromtimestamp(begun_s, UTC)
