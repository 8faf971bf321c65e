"""What 10,000 observed pods take in the service's process: a module of its own, without scikit-learn."""

import asyncio
import random
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from gpuloom.kube.objects import JsonObject
from gpuloom.model.gpu import DeviceRef
from gpuloom.model.node import PodRef
from gpuloom.model.usage import DeviceUsage, UsageBatch, UsageCursor, UsageWindow
from gpuloom.runtime.clock import FakeClock
from services.optimizer import app
from services.optimizer.adapters.pods import trimmed
from services.optimizer.core.predict import Outcome
from services.optimizer.core.workload import Workload, workload_of
from services.optimizer.metrics import OptimizerMetrics
from services.optimizer.profiles import Profiles

PODS, KINDS, WINDOWS, ENDED = 10_000, 2_000, 15, 50_000
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
MINUTE_NS = 60_000_000_000


def measure_memory() -> list[str]:
    command = [sys.executable, "-m", "tests.bench.optimizer.memory"]
    return subprocess.run(  # noqa: S603 - our own module
        command, capture_output=True, text=True, check=True, timeout=300
    ).stdout.splitlines()


class Forgetful:
    """A database that keeps nothing: only memory is measured."""

    async def keep_windows(self, *_: object) -> None:
        return


async def main() -> None:
    assert app.SERVICE, "all that the service imports is in this process"
    before = _peak_mib()
    pods = [_pod(number) for number in range(PODS)]
    workloads = {pod["metadata"]["uid"]: _workload(pod) for pod in pods}
    store: Any = Forgetful()
    profiles = Profiles(store, workloads.get, FakeClock(NOON), OptimizerMetrics(CollectorRegistry()))
    rng, uids = random.Random(1), sorted(workloads)
    for number in range(WINDOWS):
        for first in range(0, PODS, 8):
            await profiles.take(_batch(number, uids[first : first + 8], rng))
    for number in range(ENDED):
        ended = workloads[uids[number % PODS]]
        profiles.history.add(ended.signature, Outcome(f"{number:036d}", NOON, rng.random(), 0.5, 60.0))
    print(  # noqa: T201 - a bench prints
        f"{PODS:,} pods that run, {KINDS:,} kinds, {ENDED:,} that ended: {_peak_mib():.0f} MiB, "
        f"of which {before:.0f} are the program"
    )


def _pod(number: int) -> JsonObject:
    owner = {"kind": "Job", "name": f"train-{number % KINDS}", "controller": True}
    amounts = {"limits": {"nvidia.com/gpu": "1"}, "requests": {"nvidia.com/gpu": "1"}}
    metadata = {
        "name": f"train-{number % KINDS}-{number:05d}",
        "namespace": f"team-{number % 50}",
        "uid": f"{number:036d}",
        "resourceVersion": str(number),
        "labels": {"app": "train", "gpu-project": f"project-{number % 100}"},
        "ownerReferences": [owner],
    }
    container = {
        "name": "main",
        "image": f"registry.example.com/train-{number % 100}:1",
        "resources": amounts,
    }
    return trimmed({"metadata": metadata, "spec": {"nodeName": "n", "containers": [container]}})


def _workload(pod: JsonObject) -> Workload:
    workload = workload_of(pod)
    assert workload is not None
    return workload


def _batch(number: int, uids: list[str], rng: random.Random) -> UsageBatch:
    devices = tuple(
        DeviceUsage(
            DeviceRef(f"GPU-{uid}"),
            PodRef("team", "train", uid),
            milli=1000,
            held_ns=MINUTE_NS,
            measured_ns=MINUTE_NS,
            used_ns=int(rng.random() * MINUTE_NS),
            memory_peak_bytes=1 << 30,
            energy_mj=1000,
        )
        for uid in uids
    )
    window = UsageWindow(number + 1, "n", NOON + timedelta(minutes=number), MINUTE_NS, devices)
    return UsageBatch(UsageCursor("n", f"spool-{uids[0]}", number + 1), "n", (window,))


def _peak_mib() -> float:
    """Not by getrusage, which begins with the peak of the process that started this one."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    (peak,) = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
    return int(peak) / 1024


if __name__ == "__main__":
    asyncio.run(main())
