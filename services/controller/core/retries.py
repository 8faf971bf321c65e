"""When a failed attempt is followed by the next one."""

import hashlib

from gpuloom.model.workload import RetryPolicy

RETRY_CAP_S = 300.0
MAX_JITTER = 0.1


def retry_delay_s(policy: RetryPolicy, attempt: int, seed: str) -> float:
    """After this attempt (the first is 0) failed: base times 2^attempt, up to 10 % jitter, at most 5 min.

    The jitter comes from the seed, so that a controller that is started later waits for the same moment.
    """
    doubled_s = float(policy.backoff_s) * 2.0 ** min(attempt, 32)
    digest = hashlib.sha256(f"{seed}/{attempt}".encode()).digest()
    jitter = MAX_JITTER * int.from_bytes(digest[:4], "big") / 0xFFFF_FFFF
    return min(RETRY_CAP_S, doubled_s * (1.0 + jitter))
