"""What a pod that is about to be created should ask for instead, by how others of its kind did. Pure.

Only pods of the same owner count: an image alone says too little to rewrite a request by. With nine runs the
need is their conformal quantile; with fewer it is the most that any of them needed, and how long they were
seen decides whether that is enough to go by. In doubt nothing is advised, with the reason.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from gpuloom.model.optimization import PodAdvice
from gpuloom.model.request import RequestKind
from gpuloom.names import RESOURCE_GPU_MEMORY_MIB, RESOURCE_GPU_MILLI
from services.optimizer.core.offers import Fit, Need, Offers, fit_share, fit_slice, is_clearly_smaller
from services.optimizer.core.predict import Outcome, outcome_of, quantity
from services.optimizer.core.run import Run
from services.optimizer.core.workload import Workload

LEAST_CONFIDENCE = 0.5
_SURE_MINUTES = 20.0
_SURE_RUNS = 5.0
_MOST_SURE = 0.95


@dataclass(frozen=True, slots=True)
class Kin:
    """Runs of the same owner whose use and memory are known, and for how long they were seen."""

    basis: str
    outcomes: tuple[Outcome, ...]
    minutes: float

    @property
    def ended(self) -> int:
        return sum(each.duration_s is not None for each in self.outcomes)


def confidence_of(minutes: float, ended_runs: int) -> float:
    """Grows with how long it was measured, and with how many runs like it ended."""
    doubt = (1 - minutes / (minutes + _SURE_MINUTES)) * (1 - ended_runs / (ended_runs + _SURE_RUNS))
    return round(min(_MOST_SURE, 1 - doubt), 2)


def kin_of(basis: str, ended: Sequence[Outcome], running: Iterable[Run]) -> Kin:
    present = [(outcome_of(run, ended=False), run.measured_ns / 6e10) for run in running]
    past = [(outcome, (outcome.duration_s or 0.0) / 60) for outcome in ended]
    known = [each for each in (*past, *present) if _is_known(each[0])]
    return Kin(basis, tuple(outcome for outcome, _ in known), sum(minutes for _, minutes in known))


def advise(workload: Workload, kin: Kin, offers: Offers) -> PodAdvice:
    if workload.opted_out:
        return PodAdvice(reason="the pod opted out")
    if workload.request.kind is RequestKind.WHOLE and workload.request.count > 1:
        return PodAdvice(reason="it asks for several GPUs, and its program knows why")
    need = _need(kin.outcomes)
    if need is None:
        return PodAdvice(reason="no pod of its owner was measured yet")
    runs = len(kin.outcomes)
    stands_on = f"{runs} {'run' if runs == 1 else 'runs'} of the same {kin.basis}, {kin.minutes:.0f} min"
    found = PodAdvice(
        utilization_ratio=round(median(each.mean_ratio or 0.0 for each in kin.outcomes), 4),
        confidence=confidence_of(kin.minutes, kin.ended),
        runs=runs,
        basis=kin.basis,
    )
    if found.confidence < LEAST_CONFIDENCE:
        return replace(found, reason=f"not sure enough with {stands_on}")
    needs = f"{need.utilization:.0%} of a GPU and {need.memory_mib / 1024:.1f} GiB, by {stands_on}"
    found = _with_offers(found, workload, need, offers)
    if not (found.mig_profile or found.plugin_resource or found.milli):
        return replace(found, reason=f"it needs {needs}; this cluster offers nothing clearly smaller")
    return replace(found, reason=f"it needs {needs}")


def _is_known(outcome: Outcome) -> bool:
    mean, used, memory_mib = outcome.mean_ratio, outcome.utilization, outcome.memory_mib
    if mean is None or used is None or memory_mib is None:
        return False
    return 0 <= mean <= 1 and Need(used, memory_mib).believable


def _need(outcomes: Sequence[Outcome]) -> Need | None:
    if not outcomes:
        return None
    used = [each.utilization or 0.0 for each in outcomes]
    memory_mib = [each.memory_mib or 0.0 for each in outcomes]
    usual, largest = quantity(used), quantity(memory_mib)
    return Need(
        max(used) if usual is None else usual.high,
        max(memory_mib) if largest is None else largest.high,
    )


def _with_offers(found: PodAdvice, workload: Workload, need: Need, offers: Offers) -> PodAdvice:
    def smaller(fit: Fit | None) -> Fit | None:
        return fit if fit is not None and is_clearly_smaller(fit, workload.request) else None

    own = smaller(fit_slice(need, offers, on_demand=True))
    plugin = smaller(fit_slice(need, offers, on_demand=False))
    share = smaller(fit_share(need, offers)) if workload.may_share else None
    amounts = {} if share is None else dict(share.resources)
    return replace(
        found,
        mig_profile="" if own is None else own.mig_profile,
        plugin_resource="" if plugin is None else plugin.resources[0][0],
        milli=amounts.get(RESOURCE_GPU_MILLI, 0),
        memory_mib=amounts.get(RESOURCE_GPU_MEMORY_MIB, 0),
    )
