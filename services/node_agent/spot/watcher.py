"""Asks the cloud again and again whether it takes this machine away, and publishes what changed.

A notice stands until the cloud itself no longer shows it: a service that fails, is slow or talks nonsense
neither makes a notice nor takes one back.
"""

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from gpuloom.model.spot import SpotNotice
from gpuloom.runtime.clock import Clock
from services.node_agent.node import Node
from services.node_agent.spot.core.clouds import Cloud, Unwatched
from services.node_agent.spot.core.problem import MetadataError, Problem
from services.node_agent.spot.metrics import SpotMetrics

_log = logging.getLogger(__name__)


class NoticeSource(Protocol):
    async def read(self) -> SpotNotice | None:
        """The notice that stands now, or None. Raise MetadataError if the cloud does not say."""


@dataclass(frozen=True, slots=True)
class WatcherParts:
    choose: Callable[[], Cloud | Unwatched]
    source_of: Callable[[Cloud], NoticeSource]
    clock: Clock
    metrics: SpotMetrics
    jitter: random.Random


class SpotWatcher:
    def __init__(self, node: Node, parts: WatcherParts, interval_s: float) -> None:
        self._node = node
        self._parts = parts
        self._interval_s = interval_s
        self._watched: tuple[Cloud, NoticeSource] | None = None
        self._unwatched_reason = ""
        self._problem: Problem | None = None

    async def run(self) -> None:
        clock = self._parts.clock
        # Agents that start together, as after a rollout, should not ask together.
        await clock.sleep(self._parts.jitter.uniform(0.0, self._interval_s))
        while True:
            started_s = clock.monotonic()
            await self.look()
            await clock.sleep(self._interval_s - (clock.monotonic() - started_s))

    async def look(self) -> None:
        watched = self._watched or self._choose()
        if watched is None:
            return
        cloud, source = watched
        try:
            notice = await source.read()
        except MetadataError as error:
            self._parts.metrics.count_problem(cloud, error.problem)
            self._report(cloud, error.problem, str(error))
            return
        self._parts.metrics.count_answer(cloud, notice)
        self._report(cloud, None, "")
        self._take(cloud, notice)

    def _choose(self) -> tuple[Cloud, NoticeSource] | None:
        """A machine stays in its cloud, so a choice is final; a node may get its providerID late."""
        chosen = self._parts.choose()
        node_name = self._node.state.node_name
        if isinstance(chosen, Unwatched):
            if chosen.reason != self._unwatched_reason:
                self._unwatched_reason = chosen.reason
                _log.info("spot notices are not watched", extra={"node": node_name, "reason": chosen.reason})
            return None
        _log.info("spot notices are watched", extra={"node": node_name, "cloud": str(chosen)})
        self._watched = chosen, self._parts.source_of(chosen)
        return self._watched

    def _take(self, cloud: Cloud, notice: SpotNotice | None) -> None:
        before = self._node.state.spot
        notice = keep_time(before, notice)
        if notice == before:
            return
        self._node.take_notice(notice)
        fields = {"node": self._node.state.node_name, "cloud": str(cloud)}
        if notice is None:
            _log.warning("the cloud took its notice back", extra=fields)
            return
        time = "" if notice.time is None else notice.time.isoformat()
        fields |= {"kind": str(notice.kind), "action": notice.action, "time": time}
        _log.warning("the cloud gave notice of this machine", extra=fields)

    def _report(self, cloud: Cloud, problem: Problem | None, reason: str) -> None:
        if problem is self._problem:
            return
        self._problem = problem
        fields = {"node": self._node.state.node_name, "cloud": str(cloud), "reason": reason}
        if problem is None:
            _log.info("the cloud says again whether it gives notice", extra=fields)
        else:
            _log.warning("the cloud does not say whether it gives notice", extra=fields)


def keep_time(before: SpotNotice | None, notice: SpotNotice | None) -> SpotNotice | None:
    """Azure drops the time of an event once it has started; whoever drains the node still goes by it."""
    if before is None or notice is None or notice.time is not None:
        return notice
    return before if replace(before, time=None) == notice else notice
