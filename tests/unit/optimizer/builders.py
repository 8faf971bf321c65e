from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from gpuloom.model.gpu import DeviceRef
from gpuloom.model.node import PodRef
from gpuloom.model.usage import DeviceUsage, UsageWindow
from services.optimizer.core.run import MIB, Run, add_window, begin_run
from services.optimizer.core.workload import Workload, workload_of

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
S = 1_000_000_000


def a_pod(
    name: str = "serve-1",
    resources: dict[str, str] | None = None,
    owner: tuple[str, str] | None = None,
    **labels: str,
) -> dict[str, Any]:
    references = [{"kind": owner[0], "name": owner[1], "controller": True}] if owner else []
    amounts = resources or {"nvidia.com/gpu": "1"}
    container = {
        "name": "main",
        "image": "registry.example.com/serve:7",
        "resources": {"limits": amounts, "requests": amounts},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": f"uid-{name}",
            "labels": labels,
            "ownerReferences": references,
        },
        "spec": {"containers": [container], "nodeName": "n1"},
        "status": {"phase": "Running"},
    }


def a_workload(name: str = "serve-1", **given: Any) -> Workload:
    workload = workload_of(a_pod(name, **given))
    assert workload is not None
    return workload


def a_usage(
    ratio: float | None, duration_ns: int, memory_mib: float = 4096, milli: int = 1000
) -> DeviceUsage:
    return DeviceUsage(
        device=DeviceRef("GPU-a"),
        pod=PodRef("team", "serve-1", "uid-serve-1"),
        milli=milli,
        held_ns=duration_ns,
        measured_ns=0 if ratio is None else duration_ns,
        used_ns=0 if ratio is None else int(ratio * duration_ns),
        memory_peak_bytes=int(memory_mib * MIB),
        energy_mj=1000,
    )


def a_run(ratios: Iterable[float | None], window_s: int = 60, uid: str = "uid-serve-1", **usage: Any) -> Run:
    run = begin_run(uid, "signature", NOON)
    for number, ratio in enumerate(ratios):
        start = NOON + timedelta(seconds=number * window_s)
        window = UsageWindow(number + 1, "node", start, window_s * S)
        run = add_window(run, window, [a_usage(ratio, window_s * S, **usage)])
    return run
