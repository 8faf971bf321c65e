"""Distributions in a few hundred bytes: KLL sketches, which can be merged in any order. Pure.

Kept for as long as profiles are; the latest runs themselves are what predictions stand on.
"""

import zlib
from collections.abc import Iterable, Mapping

from datasketches import kll_doubles_sketch

from services.optimizer.core.predict import Outcome

K = 128
"""Ranks are exact to about 2 %."""
_CHECKSUM_BYTES = 4
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
    found = _read(sketch)
    for value in values:
        found.update(value)
    return _written(found)


def merged(sketches: Iterable[bytes]) -> bytes:
    total = kll_doubles_sketch(K)
    for sketch in sketches:
        total.merge(_read(sketch))
    return _written(total)


def quantile_of(sketch: bytes | None, level: float) -> float | None:
    found = _read(sketch)
    return None if found.is_empty() else float(found.get_quantile(level))


def _read(sketch: bytes | None) -> kll_doubles_sketch:
    """An empty one for what is none: the library would crash on bytes that it did not write itself."""
    checksum, data = (sketch or b"")[:_CHECKSUM_BYTES], (sketch or b"")[_CHECKSUM_BYTES:]
    is_whole = len(data) > 0 and checksum == _checksum(data)
    return kll_doubles_sketch.deserialize(data) if is_whole else kll_doubles_sketch(K)


def _written(sketch: kll_doubles_sketch) -> bytes:
    data: bytes = sketch.serialize()
    return _checksum(data) + data


def _checksum(data: bytes) -> bytes:
    return zlib.crc32(data).to_bytes(_CHECKSUM_BYTES, "little")
