"""What something costs, as a number that is the same on every machine, however busy it is."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

OURS = ("/services/", "/gpuloom/")


def lines_run(act: Callable[[], object]) -> int:
    """How many lines of our own code this takes."""
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        if not any(folder in frame.f_code.co_filename for folder in OURS):
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    finally:
        sys.settrace(before)
    return count
