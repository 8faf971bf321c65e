"""A run as numbers for the classifier. Pure."""

import math

import numpy as np
from numpy.typing import NDArray

from services.optimizer.core.run import Run
from services.optimizer.core.workload import Workload, requested_gpus

FEATURES = (
    "mean",
    "p50",
    "p95",
    "idle",
    "burstiness",
    "memory_gib",
    "power_w",
    "log_minutes",
    "gpus",
    "job",
    "deployment",
    "stateful_set",
    "bare",
    "serves",
)
LEAST_MEASURED_S = 120.0

Row = NDArray[np.float32]


def features_of(run: Run, workload: Workload) -> Row | None:
    """None if too little was measured to say anything, or if something is no number."""
    mean, median, high = run.mean_ratio, run.quantile(0.5), run.quantile(0.95)
    if mean is None or median is None or high is None or run.measured_ns < LEAST_MEASURED_S * 1e9:
        return None
    kind = workload.owner.kind
    row = np.array(
        [
            mean,
            median,
            high,
            run.idle_ratio,
            run.burstiness,
            (run.memory_mib or 0.0) / 1024,
            run.power_w or 0.0,
            math.log1p(run.duration_s / 60),
            requested_gpus(workload.request),
            kind == "Job",
            kind == "Deployment",
            kind == "StatefulSet",
            not kind,
            workload.serves,
        ],
        dtype=np.float32,
    )
    return row if bool(np.isfinite(row).all()) else None
