"""Publishes the model's changes a few times a second, and says when this replica may be read.

What goes into the model is put there by those who learn of it: informers and followers of agents.
"""

import logging
from collections.abc import Callable
from functools import partial

from gpuloom.model.snapshot import NodeFacts
from gpuloom.runtime.clock import Clock
from services.discovery.core.cluster import Changes, ClusterModel
from services.discovery.core.findings import MISMATCHES, Cause
from services.discovery.feed import ClusterFeed
from services.discovery.metrics import DiscoveryMetrics

USAGE_INTERVAL_S = 5.0
_LOGGED_DETAILS = 8

_log = logging.getLogger(__name__)


class ReadModel:
    def __init__(
        self,
        model: ClusterModel,
        listed: Callable[[], bool],
        clock: Clock,
        metrics: DiscoveryMetrics,
        usage_interval_s: float = USAGE_INTERVAL_S,
    ) -> None:
        """`listed`: whether Kubernetes has told what there is. Changes of usage alone go out less often."""
        self.feed = ClusterFeed(clock, usage_interval_s, metrics)
        self._model = model
        self._listed = listed
        self._clock = clock
        self._metrics = metrics
        self._handlers: list[Callable[[Changes], None]] = []
        self._was_synced = False
        self._watch(metrics)

    def unsynced_reason(self) -> str:
        """Why readers must wait; empty once and for all when everybody who was there has been heard.

        A node that joins later is untrusted until its agent reports, which is no reason to refuse the rest.
        """
        if self._was_synced:
            return ""
        if not self._listed():
            return "nodes and pods are not listed yet"
        reason = self._model.unsynced_reason(self._clock.monotonic())
        self._was_synced = not reason
        return reason

    def on_publish(self, handler: Callable[[Changes], None]) -> None:
        """Hear what every publication brought, after readers were told."""
        self._handlers.append(handler)

    def facts(self) -> tuple[NodeFacts, ...]:
        """The newest of every node, by name. What readers have may lack the latest usage."""
        return tuple(self._model.facts())

    async def run(self, interval_s: float) -> None:
        while True:
            self.publish()
            await self._clock.sleep(interval_s)

    def publish(self) -> None:
        """Tell readers what changed, and the usage that was held back if it is time."""
        now_s = self._clock.monotonic()
        self._model.check_silence(now_s)
        changes = self._model.changes(now_s)
        for facts in changes.facts:
            self._report(facts)
        for change in changes.distrust:
            if change.appeared and change.finding.cause in MISMATCHES:
                self._metrics.mismatches.labels(change.finding.cause).inc()
        before = self.feed.number
        self.feed.publish(changes)
        self._metrics.changes.inc(self.feed.number - before)
        for handler in self._handlers:
            handler(changes)

    def _report(self, facts: NodeFacts) -> None:
        """One line when what may be used of a node becomes another."""
        before = self.feed.facts_of(facts.state.node_uid)
        if before is not None and _distrust(before) == _distrust(facts):
            return
        fields = {
            "node": facts.state.node_name,
            "reasons": list(facts.untrusted_reasons),
            "closed_gpus": [gpu.gpu_uuid for gpu in facts.closed_gpus],
            "details": list(facts.details[:_LOGGED_DETAILS]),
        }
        _log.info("trust changed" if any(_distrust(facts)) else "node trusted", extra=fields)

    def _watch(self, metrics: DiscoveryMetrics) -> None:
        """What can be counted is counted when Prometheus asks."""
        metrics.agents_heard.set_function(lambda: self._agent_counts()[0])
        metrics.agents_expected.set_function(lambda: self._agent_counts()[1])
        metrics.nodes.set_function(lambda: len(self.feed.node_uids()))
        metrics.untrusted_nodes.set_function(lambda: sum(not facts.trusted for facts in self.feed.facts()))
        metrics.closed_gpus.set_function(
            lambda: sum(len(facts.closed_gpus) for facts in self.feed.facts() if facts.trusted),
        )
        for cause in Cause:
            metrics.distrust.labels(cause).set_function(partial(self._distrust_count, cause))
        metrics.version.set_function(lambda: self.feed.number)

    def _agent_counts(self) -> tuple[int, int]:
        return self._model.agent_counts(self._clock.monotonic())

    def _distrust_count(self, cause: Cause) -> int:
        return self._model.distrust_counts()[cause]


def _distrust(facts: NodeFacts) -> tuple[object, object]:
    return facts.untrusted_reasons, facts.closed_gpus
