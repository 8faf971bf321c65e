"""Ends a supervisor's processes when the supervisor itself is gone, however it went.

It reads `+pid` and `-pid` lines from its standard input; each pid leads a process group. The input ends with
the supervisor, because nobody else holds the other side of that pipe, so even SIGKILL leaves no orphans. A
signal on the parent's death (PR_SET_PDEATHSIG) would need code between fork and exec, which is not safe in a
process with threads, and would work on Linux only. The supervisor runs this file as a script with nothing but
the standard library, so it starts in a moment and never imports the product.
"""

import os
import signal
import sys
import time
from collections.abc import Iterable

GRACE_S = 3.0
POLL_S = 0.05


def main() -> None:
    groups: set[int] = set()
    for line in sys.stdin:
        groups = after(groups, line)
    end_groups(groups, GRACE_S)


def after(groups: set[int], line: str) -> set[int]:
    """The groups to end, after one more line; a line cut off by a kill is ignored."""
    sign, number = line[:1], line[1:].strip()
    if not line.endswith("\n") or not number.isdecimal():
        return groups
    return groups | {int(number)} if sign == "+" else groups - {int(number)}


def end_groups(groups: Iterable[int], grace_s: float) -> None:
    remaining = [group for group in groups if _signal(group, signal.SIGTERM)]
    # The one wait without an injected clock: this script stands alone.
    ends_s = time.monotonic() + grace_s
    while remaining and time.monotonic() < ends_s:
        time.sleep(POLL_S)
        remaining = [group for group in remaining if _signal(group, 0)]
    for group in remaining:
        _signal(group, signal.SIGKILL)


def _signal(group: int, number: int) -> bool:
    """False if there is no such group, or none of ours."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


if __name__ == "__main__":
    main()
