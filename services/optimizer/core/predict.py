"""What a pod will need, by how pods like it ended. Pure.

`high` is the conformal quantile: of n past runs and the next one each is as likely to need the most, so the
value at rank ⌈(n + 1) · 0.9⌉ suffices for the next with at least 90 %, whatever the distribution is. With
fewer than nine runs there is no such rank, and nothing is predicted. Only the latest runs count, so that a
workload that changed is predicted by what it has become.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from gpuloom.model.optimization import Prediction, Quantity
from services.optimizer.core.run import Run
from services.optimizer.core.workload import Signature, Workload

LEVEL = 0.9
LEAST_RUNS = 9
MAX_RUNS = 60
LEAST_OBSERVED_S = 600.0
BASES = ("signature", "owner", "image")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one run went. None is what was not measured; `duration_s` None: it has not ended yet."""

    pod_uid: str
    ended_at: datetime
    memory_mib: float | None = None
    utilization: float | None = None
    duration_s: float | None = None
    mean_ratio: float | None = None
    power_w: float | None = None
    burstiness: float = 0.0


class History:
    """The latest outcomes by each basis, one of each pod; the oldest go first."""

    def __init__(self) -> None:
        self._by_key: dict[tuple[str, str], list[Outcome]] = {}

    def add(self, signature: Signature, outcome: Outcome) -> None:
        for key in _keys(signature):
            kept = self._by_key.setdefault(key, [])
            # Windows that came after its end were taken for another run of it.
            if any(each.pod_uid == outcome.pod_uid for each in kept):
                continue
            kept.append(outcome)
            del kept[:-MAX_RUNS]

    def of(self, signature: Signature) -> tuple[str, Sequence[Outcome]]:
        """The narrowest basis with enough runs; else the widest, with what there is."""
        found: Sequence[Outcome] = ()
        basis = "none"
        for (basis, key), _ in zip(_keys(signature), BASES, strict=True):
            found = self._by_key.get((basis, key), ())
            if len(found) >= LEAST_RUNS:
                return basis, found
        return (basis if found else "none"), found

    def own(self, signature: Signature) -> Sequence[Outcome]:
        return self._by_key.get((BASES[0], signature.key), ())

    def of_owner(self, signature: Signature) -> Sequence[Outcome]:
        """Whatever its pods ran and asked for."""
        return self._by_key.get((BASES[1], signature.owner_key), ())

    def forget(self, before: datetime) -> None:
        for key, kept in list(self._by_key.items()):
            left = [outcome for outcome in kept if outcome.ended_at >= before]
            if left:
                self._by_key[key] = left
            else:
                del self._by_key[key]


def outcome_of(run: Run, *, ended: bool) -> Outcome:
    return Outcome(
        pod_uid=run.pod_uid,
        ended_at=run.seen_until,
        memory_mib=run.memory_mib,
        utilization=run.quantile(0.95),
        duration_s=run.duration_s if ended else None,
        mean_ratio=run.mean_ratio,
        power_w=run.power_w,
        burstiness=run.burstiness,
    )


def predict(workload: Workload, history: History, running: Mapping[str, Run]) -> Prediction:
    """`running` are present runs of the same signature; those seen for ten minutes count, too."""
    basis, ended = history.of(workload.signature)
    present = [outcome_of(run, ended=False) for run in running.values() if run.duration_s >= LEAST_OBSERVED_S]
    outcomes = [*ended, *present]
    if len(outcomes) < LEAST_RUNS:
        what = "run" if len(outcomes) == 1 else "runs"
        reason = f"{len(outcomes)} {what} like it, {LEAST_RUNS} are needed"
        return Prediction(runs=len(outcomes), basis=basis, reason=reason)
    return Prediction(
        memory_mib=quantity(outcome.memory_mib for outcome in outcomes),
        utilization=quantity(outcome.utilization for outcome in outcomes),
        duration_s=quantity(outcome.duration_s for outcome in outcomes),
        runs=len(outcomes),
        basis=basis,
    )


def quantity(amounts: Iterable[float | None]) -> Quantity | None:
    """None with fewer than nine numbers."""
    known = sorted(each for each in amounts if each is not None and math.isfinite(each) and each >= 0)
    high = conformal_high(known)
    return None if high is None else Quantity(known[(len(known) - 1) // 2], high)


def conformal_high(ordered: Sequence[float], level: float = LEVEL) -> float | None:
    rank = math.ceil((len(ordered) + 1) * level - 1e-9)
    return ordered[rank - 1] if 1 <= rank <= len(ordered) else None


def _keys(signature: Signature) -> tuple[tuple[str, str], ...]:
    return (
        (BASES[0], signature.key),
        (BASES[1], signature.owner_key),
        (BASES[2], signature.image_key),
    )
