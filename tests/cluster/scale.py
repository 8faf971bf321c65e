"""How large and how long the cluster tests run: short in CI, at full length under `make test-soak`."""

import os

SOAK = os.environ.get("GPULOOM_CLUSTER_SOAK") == "1"


def in_soak(full: int, short: int) -> int:
    return full if SOAK else short


def size_of(variable: str, full: int, short: int) -> int:
    """What the variable says, if it is set."""
    return int(os.environ.get(variable) or in_soak(full, short))
