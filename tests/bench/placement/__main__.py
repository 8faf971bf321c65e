"""python -m tests.bench.placement DATA: how full a GPU cluster gets, ours beside BestFit and FGD.

One line a variant: the mean over seeds of allocated GPU in percent when arrivals reach all of the capacity.
"""

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, pstdev

from tests.bench.placement.ours import Product
from tests.bench.placement.rivals import BestFit, FragmentationGradientDescent, Policy
from tests.bench.placement.trace import (
    MEASURED_AT_PERCENT,
    Machine,
    Task,
    arrivals,
    capacity_milli,
    read_machines,
    read_tasks,
    read_variants,
    shuffled,
)

# Below these ours is no better than what is published for FGD; of other variants no figure is promised.
TARGETS = {"default": 96.0, "gpushare100": 88.0}
MAX_DECISION_MS = 1.0

PolicyMaker = Callable[[list[Machine], list[Task]], Policy]
POLICIES: dict[str, PolicyMaker] = {
    "gpuloom": lambda machines, _: Product(machines),
    "FGD": FragmentationGradientDescent,
    "BestFit": lambda machines, _: BestFit(machines),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    allocated_percent: float
    decision_ms: float


def main(arguments: list[str] | None = None) -> int:
    """0 if ours reaches its figures, 1 if not, or if there was nothing to measure."""
    options = _options(arguments)
    folder = Path(options.data)
    machines, variants = read_machines(folder), read_variants(folder)
    chosen = [name for name in variants if not options.variant or name in options.variant]
    met = True
    for name in chosen:
        tasks = read_tasks(variants[name])
        outcomes = {
            policy: [_run(make, machines, tasks, seed) for seed in range(options.seeds)]
            for policy, make in POLICIES.items()
        }
        sys.stdout.write(_line(name, outcomes) + "\n")
        sys.stdout.flush()
        met = met and _is_met(name, outcomes["gpuloom"])
    return 0 if met and chosen else 1


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.bench.placement", description=__doc__)
    parser.add_argument("data", help="folder with the openb node list and pod lists")
    parser.add_argument("--seeds", type=int, default=3, help="runs a variant and policy (default 3)")
    parser.add_argument("--variant", action="append", help="only this variant; may be repeated")
    return parser.parse_args(arguments)


def _run(make: PolicyMaker, machines: list[Machine], tasks: list[Task], seed: int) -> Outcome:
    policy = make(shuffled(machines, seed), tasks)
    capacity = capacity_milli(machines)
    allocated = decisions = 0
    measured: list[float] = []
    # The processor's time: on a machine that others use too, the clock's would measure them.
    begun_s = time.process_time()
    for task, arrived_percent in arrivals(tasks, capacity, seed):
        decisions += 1
        if policy.place(task):
            allocated += task.size_milli
        if round(arrived_percent) == MEASURED_AT_PERCENT:
            measured.append(100 * allocated / capacity)
    # In a small cluster no arrival may come that close.
    measured = measured or [100 * allocated / capacity]
    return Outcome(mean(measured), 1000 * (time.process_time() - begun_s) / decisions)


def _line(variant: str, outcomes: dict[str, list[Outcome]]) -> str:
    parts = []
    for policy, runs in outcomes.items():
        percents = [run.allocated_percent for run in runs]
        decision_ms = mean(run.decision_ms for run in runs)
        parts.append(
            f"{policy} {mean(percents):.2f} ± {pstdev(percents):.2f} ({decision_ms:.2f} ms a decision)"
        )
    return f"{variant}: " + ", ".join(parts)


def _is_met(variant: str, runs: list[Outcome]) -> bool:
    allocated = mean(run.allocated_percent for run in runs)
    return allocated >= TARGETS.get(variant, 0.0) and mean(run.decision_ms for run in runs) < MAX_DECISION_MS


if __name__ == "__main__":
    sys.exit(main())
