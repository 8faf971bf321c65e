"""How long property tests look for a counterexample.

`make test` looks for a part of the time, so that it stays short; `make test-real`, and so CI, for all of it.
"""

import os

VARIABLE = "GPULOOM_TEST_EFFORT"
FULL = "full"

_PART_PERCENT = 30


def examples(full: int) -> int:
    """How many to try, where `full` is how many should be tried before a change lands."""
    if os.environ.get(VARIABLE) == FULL:
        return full
    return max(1, full * _PART_PERCENT // 100)
