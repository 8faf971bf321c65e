"""`python -m tests.bench.inference DATA`: each rival tuned on the first half, judged on the second."""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuloom.model.policies import InferenceMode
from tests.bench.inference.policies import Ours, foresight, hpa_in_flight, hpa_utilization, keda_queue
from tests.bench.inference.simulator import Outcome, Policy, simulate
from tests.bench.inference.trace import Arrivals, arrivals

SLO = 0.99


@dataclass(frozen=True)
class Rival:
    """`make` of one of `choices`, of which the cheapest that keeps the SLO on the first half is judged."""

    name: str
    choices: Sequence[tuple[float, ...]]
    make: Callable[[tuple[float, ...], int], Policy]


RIVALS = (
    Rival("ratio", [(60,), (300,)], lambda it, cold: Ours(InferenceMode.RATIO, it[0], cold)),
    Rival(
        "adaptive",
        [(20,), (40,), (80,), (160,)],
        lambda it, cold: Ours(InferenceMode.ADAPTIVE, it[0], cold),
    ),
    Rival("hpa utilization", [(40,), (50,), (60,), (80,)], lambda it, _: hpa_utilization(it[0])),
    Rival(
        "hpa running + waiting",
        [(0.2,), (0.3,), (0.4,), (0.5,), (0.6,), (0.7,)],
        lambda it, _: hpa_in_flight(it[0]),
    ),
    Rival(
        "hpa running + waiting, window tuned",
        [(share, window) for share in (0.4, 0.5, 0.6) for window in (900.0, 1800.0)],
        lambda it, _: hpa_in_flight(it[0], it[1]),
    ),
    Rival("keda queue", [(0.1,), (0.5,), (2,)], lambda it, _: keda_queue(it[0])),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, help="folder with azure_llm/")
    parser.add_argument(
        "--days", type=int, default=2, help="length of the trace; half of it tunes (default 2)"
    )
    parser.add_argument("--seed", type=int, default=7, help="which blocks are drawn (default 7)")
    parser.add_argument(
        "--cold-start", type=int, nargs="+", default=(180, 420), metavar="S", help="seconds (default 180 420)"
    )
    given = parser.parse_args()
    trace = arrivals(given.data, given.days, given.seed)
    for cold_start_s in given.cold_start:
        for line in report(trace, cold_start_s):
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()


def report(trace: Arrivals, cold_start_s: int) -> Iterator[str]:
    first, second = trace.half(second=False), trace.half(second=True)
    requests = sum(map(len, second.work_s))
    yield f"cold start {cold_start_s} s, {second.seconds // 3600} h judged, {requests} requests"
    yield f"{'policy':36} {'chosen':>14} {'SLO':>8} {'replica-h':>10} {'flips':>6}"
    oracle = simulate(second, foresight(second, cold_start_s), cold_start_s)
    yield _line("foresight", "-", oracle)
    for rival in RIVALS:
        choice = tuned(rival, first, cold_start_s)
        outcome = simulate(second, rival.make(choice, cold_start_s), cold_start_s)
        yield _line(rival.name, "/".join(f"{one:g}" for one in choice), outcome)


def tuned(rival: Rival, first: Arrivals, cold_start_s: int) -> tuple[float, ...]:
    """The cheapest choice that keeps the SLO; if none does, the one that comes nearest."""
    found = [(simulate(first, rival.make(one, cold_start_s), cold_start_s), one) for one in rival.choices]
    keeping = [(outcome.replica_hours, one) for outcome, one in found if outcome.slo >= SLO]
    if keeping:
        return min(keeping)[1]
    return max(found, key=lambda pair: pair[0].slo)[1]


def _line(name: str, choice: str, outcome: Outcome) -> str:
    return f"{name:36} {choice:>14} {outcome.slo:8.2%} {outcome.replica_hours:10.1f} {outcome.flips:6}"


if __name__ == "__main__":
    main()
