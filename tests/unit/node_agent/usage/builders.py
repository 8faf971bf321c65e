from datetime import UTC, datetime, timedelta
from itertools import accumulate

from gpuloom.model.gpu import DeviceRef
from gpuloom.model.node import PodRef
from gpuloom.model.usage import DeviceUsage, UsageWindow
from services.node_agent.usage.core.sample import Held, Reading, Sample

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
S = 1_000_000_000
CARD = DeviceRef("GPU-a")


def a_pod(name: str) -> PodRef:
    return PodRef("default", name, f"uid-{name}")


def a_sample(at_ns: int, ratio: float | None = 0.5, **changes: object) -> Sample:
    """Pod `train` on card GPU-a, at a time after noon that both clocks agree on."""
    given: dict[str, object] = {
        "at_ns": at_ns,
        "wall": NOON + timedelta(microseconds=at_ns // 1000),
        "node_uid": "node-1",
        "holders_known": True,
        "readings": holding(train=ratio),
        "energy_j": {"GPU-a": at_ns / S * 100},
    }
    return Sample(**{**given, **changes})  # type: ignore[arg-type]


def holding(**ratios: float | None) -> dict[Held, Reading]:
    """These pods on GPU-a; nobody, if there are none."""
    pods = {a_pod(name): ratio for name, ratio in ratios.items()}
    if not pods:
        return {(None, CARD): Reading()}
    return {
        (pod, CARD): Reading(1000 // len(pods), ratio, 1024, frozenset(set(pods) - {pod}))
        for pod, ratio in pods.items()
    }


def a_window(number: int, duration_ns: int = 60 * S, pod: str = "train") -> UsageWindow:
    """The minute of this number after noon, in which the pod had the card and used half of it."""
    usage = DeviceUsage(CARD, a_pod(pod), 1000, duration_ns, duration_ns, duration_ns // 2)
    return UsageWindow(0, "node-1", NOON + timedelta(minutes=number), duration_ns, (usage,))


def moments(gaps_ns: list[int]) -> list[int]:
    return list(accumulate(gaps_ns, initial=0))
