"""Distributions in a few hundred bytes: KLL sketches, which can be merged in any order. Pure.

Kept for as long as profiles are; the latest runs themselves are what predictions stand on.
"""

from collections.abc import Iterable, Mapping

from datasketches import kll_doubles_sketch

from services.optimizer.core.predict import Outcome

K = 128
"""Ranks are exact to about 2 %."""
QUANTITIES = ("utilization", "memory_mib", "duration_s", "power_w", "burstiness")


def values_of(outcome: Outcome) -> Mapping[str, float | None]:
    return {
        "utilization": outcome.mean_ratio,
        "memory_mib": outcome.memory_mib,
        "duration_s": outcome.duration_s,
        "power_w": outcome.power_w,
        "burstiness": outcome.burstiness,
    }


def extended(sketch: bytes | None, values: Iterable[float]) -> bytes:
    """With these values, too."""
    found = kll_doubles_sketch(K) if sketch is None else kll_doubles_sketch.deserialize(sketch)
    for value in values:
        found.update(value)
    data: bytes = found.serialize()
    return data


def merged(sketches: Iterable[bytes]) -> bytes:
    total = kll_doubles_sketch(K)
    for sketch in sketches:
        total.merge(kll_doubles_sketch.deserialize(sketch))
    data: bytes = total.serialize()
    return data


def quantile_of(sketch: bytes | None, level: float) -> float | None:
    if sketch is None:
        return None
    found = kll_doubles_sketch.deserialize(sketch)
    return None if found.is_empty() else float(found.get_quantile(level))
