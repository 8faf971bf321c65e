"""Whether and when a failed call is tried again: few times, spread by chance, within the deadline."""

import random

MAX_ATTEMPTS = 3
_FIRST_STEP_S = 0.1
_LONGEST_STEP_S = 1.0


def retry_delay_s(attempts: int, left_s: float, chance: random.Random) -> float | None:
    """How long to wait after that many failed attempts. None: no further attempt, or no time for one."""
    if attempts >= MAX_ATTEMPTS:
        return None
    longest_s = min(_LONGEST_STEP_S, _FIRST_STEP_S * 2.0 ** (attempts - 1))
    delay_s = chance.uniform(0.0, longest_s)
    return delay_s if delay_s < left_s else None
