"""Steps that fail each on its own: one that failed is left alone, longer each time, and no other waits."""

import logging
from collections.abc import Awaitable
from typing import TypeVar

from gpuloom.errors import ConflictError, GpuloomError
from gpuloom.runtime.backoff import Backoff
from services.autoscaler.nodes.sweeper import Tools

Result = TypeVar("Result")

_log = logging.getLogger(__name__)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 120.0


class Retries:
    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._failed: dict[str, Backoff] = {}
        self._due_s: dict[str, float] = {}

    def is_due(self, step: str) -> bool:
        return self._tools.clock.monotonic() >= self._due_s.get(step, 0.0)

    async def run(self, step: str, work: Awaitable[Result]) -> Result | None:
        """None if it failed, which is counted and told. A conflict is none: what changed is read again."""
        try:
            result = await work
        except ConflictError:
            raise
        except GpuloomError as error:
            self._tools.metrics.errors.inc()
            pause_s = self._failed.setdefault(step, Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)).next_delay_s()
            self._due_s[step] = self._tools.clock.monotonic() + pause_s
            fields = {"step": step, "error": str(error), "again_in_s": round(pause_s)}
            _log.warning("step failed", extra=fields)
            return None
        self._failed.pop(step, None)
        self._due_s.pop(step, None)
        return result
