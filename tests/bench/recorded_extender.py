"""Our extender, unchanged, in a process that keeps how long each call took; with --profile also where.

The configuration is the service's own, from the environment. Recording costs one list entry a call; profiling
begins with the first call and makes everything slower, so figures of a profiled run compare to nothing.
"""

import argparse
import cProfile
import time
from pathlib import Path
from typing import cast
from unittest.mock import patch

from prometheus_client import CollectorRegistry, Histogram

from gpuloom.runtime.service import run_service
from services.scheduler_extender import app
from services.scheduler_extender.config import ExtenderConfig
from services.scheduler_extender.metrics import ExtenderMetrics
from tests.bench.calls import CallRecorder


class Recording:
    """In the place of the histogram of call durations: everything goes on to it."""

    def __init__(
        self, histogram: Histogram, recorder: CallRecorder, profiler: cProfile.Profile | None
    ) -> None:
        self._histogram = histogram
        self._recorder = recorder
        self._profiler = profiler
        self._profiling = False

    def labels(self, verb: str) -> "_OfVerb":
        return _OfVerb(self, verb, self._histogram.labels(verb))

    def record(self, verb: str, seconds: float) -> None:
        self._recorder.record(verb, seconds)
        if self._profiler is not None and not self._profiling:
            self._profiling = True
            self._profiler.enable()


class _OfVerb:
    def __init__(self, recording: Recording, verb: str, histogram: Histogram) -> None:
        self._recording = recording
        self._verb = verb
        self._histogram = histogram

    def observe(self, seconds: float) -> None:
        self._histogram.observe(seconds)
        self._recording.record(self._verb, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.recorded_extender", description=__doc__)
    parser.add_argument("--calls", type=Path, required=True, help="file for the time of every call")
    parser.add_argument("--profile", type=Path, help="file for the profile")
    options = parser.parse_args()
    recorder = CallRecorder(options.calls)
    # By processor time: by the clock, whoever wakes another process would seem to be slow.
    profiler = cProfile.Profile(time.thread_time) if options.profile else None

    def recorded_metrics(registry: CollectorRegistry) -> ExtenderMetrics:
        metrics = ExtenderMetrics(registry)
        recording = Recording(metrics.call_duration, recorder, profiler)
        metrics.call_duration = cast(Histogram, recording)
        return metrics

    try:
        with patch.object(app, "ExtenderMetrics", recorded_metrics):
            run_service("scheduler_extender", ExtenderConfig, app.build, argv=[])
    finally:
        recorder.write()
        if profiler is not None:
            profiler.disable()
            profiler.dump_stats(options.profile)


if __name__ == "__main__":
    main()
