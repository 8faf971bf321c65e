"""Cost of what is bought for a batch of pods, against a lower bound and against other autoscalers' rules."""

import statistics
import time
from collections.abc import Iterator
from pathlib import Path

from services.autoscaler.core.buying.pending import units_of
from services.autoscaler.core.buying.plan import Effort, Problem, make_plan
from tests.bench.autoscaler.batches import a_batch, read_offerings, read_pods
from tests.bench.autoscaler.bound import lower_bound_nano_usd
from tests.bench.autoscaler.rivals import karpenter, least_waste


def report(data: Path, batches: int, restarts: int) -> Iterator[str]:
    rows, offerings = read_pods(data), read_offerings(data)
    yield f"{len(offerings)} machine types, {batches} batches of each size, {restarts} restarts"
    header = ("pods", "ours", "worst", "least-waste", "karpenter", "CPU s mean", "CPU s max")
    yield " ".join(f"{title:>11}" for title in header)
    for size in (10, 30, 80):
        ours, waste, first_fit, times = [], [], [], []
        for seed in range(batches):
            pods = a_batch(rows, size, seed)
            bound = lower_bound_nano_usd(pods, offerings)
            began_s = time.process_time()
            units, _ = units_of(pods)
            plan = make_plan(Problem(units, (), offerings), Effort(restarts=restarts))
            times.append(time.process_time() - began_s)
            assert not plan.unplaced, plan.unplaced
            ours.append(plan.nano_usd_per_hour / bound)
            waste.append(least_waste(pods, offerings) / bound)
            first_fit.append(karpenter(pods, offerings) / bound)
        mean = statistics.fmean
        ratios = (mean(ours), max(ours), mean(waste), mean(first_fit))
        figures = [*(f"{ratio:.3f}" for ratio in ratios), f"{mean(times):.2f}", f"{max(times):.2f}"]
        yield " ".join(f"{figure:>11}" for figure in (str(size), *figures))
