"""How long to wait before the next try: grows, is capped, and differs so that clients don't march in step."""

import random
from dataclasses import dataclass, field


@dataclass(slots=True)
class Backoff:
    first_s: float
    cap_s: float
    source: random.Random = field(default_factory=random.Random)
    _failures: int = 0

    def next_delay_s(self) -> float:
        ceiling_s = min(self.cap_s, self.first_s * 2.0 ** min(self._failures, 30))
        self._failures += 1
        return ceiling_s * self.source.uniform(0.5, 1.0)

    def reset(self) -> None:
        self._failures = 0
