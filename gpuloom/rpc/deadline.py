"""How much time a call has, carried from the call being served to the calls made while serving it.

A task started while serving inherits the deadline like any context variable: long-lived loops belong to the
service, not to a handler.
"""

from contextvars import ContextVar

from gpuloom.errors import DeadlineError
from gpuloom.runtime.clock import Clock

DEFAULT_TIMEOUT_S = 10.0
"""For a unary call that names no deadline."""

HOP_MARGIN_S = 0.02
"""Kept back at each hop, so that a server can still answer when the call it made runs out of time."""

_ends_at_s: ContextVar[float | None] = ContextVar("gpuloom_rpc_ends_at_s", default=None)


def serve_until(ends_at_s: float | None) -> None:
    """Set when the call being served ends (monotonic), for the rest of this task. None: it has no end."""
    _ends_at_s.set(ends_at_s)


def remaining_s(clock: Clock) -> float | None:
    """What is left of the call being served. None outside a call, or if it has no end."""
    ends_at_s = _ends_at_s.get()
    return None if ends_at_s is None else ends_at_s - clock.monotonic()


def unary_timeout_s(own_s: float | None, left_s: float | None) -> float:
    """The time a unary call may take, given its own timeout and what is left of the call being served."""
    wanted_s = DEFAULT_TIMEOUT_S if own_s is None else own_s
    return wanted_s if left_s is None else _within(wanted_s, left_s)


def stream_timeout_s(own_s: float | None, left_s: float | None) -> float | None:
    """Like `unary_timeout_s`, but a stream may be without end."""
    if left_s is None:
        return own_s
    return _within(left_s if own_s is None else own_s, left_s)


def _within(wanted_s: float, left_s: float) -> float:
    usable_s = left_s - HOP_MARGIN_S
    if usable_s <= 0:
        raise DeadlineError("no time is left for a further call")
    return min(wanted_s, usable_s)
