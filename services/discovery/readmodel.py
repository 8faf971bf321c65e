"""Keeps the model, and tells readers of its changes a few times a second.

Readers that only place pods get a feed of their own, in which usage, which changes all the time, is left out.
"""

import logging
from collections.abc import Callable
from dataclasses import replace

from gpuloom.model.node import NodeState
from gpuloom.model.snapshot import NodeFacts
from gpuloom.rpc.streams import VersionedFeed
from gpuloom.runtime.clock import Clock
from services.discovery.cluster import Changes, ClusterModel, ClusterNode
from services.discovery.metrics import DiscoveryMetrics

_log = logging.getLogger(__name__)


class ReadModel:
    def __init__(
        self,
        model: ClusterModel,
        nodes_synced: Callable[[], bool],
        clock: Clock,
        metrics: DiscoveryMetrics,
    ) -> None:
        self.with_usage: VersionedFeed[Changes] = VersionedFeed(clock)
        self.without_usage: VersionedFeed[Changes] = VersionedFeed(clock)
        self._model = model
        self._nodes_synced = nodes_synced
        self._clock = clock
        self._metrics = metrics
        self._bare: dict[str, NodeFacts] = {}
        self._was_synced = False

    def hear(self, node_name: str, state: NodeState | None) -> None:
        self._model.hear(node_name, self._clock.monotonic(), state)

    def observe_node(self, node: ClusterNode) -> None:
        self._model.observe_node(node)

    def forget_node(self, name: str) -> None:
        self._model.forget_node(name)

    def expect_agent(self, name: str) -> None:
        self._model.expect_agent(name, self._clock.monotonic())

    def forget_agent(self, name: str) -> None:
        self._model.forget_agent(name)

    def unsynced_reason(self) -> str:
        """Why readers must wait; empty once and for all when everybody who was there has been heard.

        A node that joins later is untrusted until its agent reports, which is no reason to refuse the rest.
        """
        if self._was_synced:
            return ""
        if not self._nodes_synced():
            return "nodes are not listed yet"
        reason = self._model.unsynced_reason(self._clock.monotonic())
        self._was_synced = not reason
        return reason

    def facts(self) -> tuple[NodeFacts, ...]:
        """What has been published, so it is the state that both feeds' versions stand for."""
        return tuple(self._model.facts())

    async def run(self, interval_s: float) -> None:
        while True:
            self.publish()
            await self._clock.sleep(interval_s)

    def publish(self) -> None:
        now_s = self._clock.monotonic()
        self._model.check_silence(now_s)
        changes = self._model.changes(now_s)
        heard, expected = self._model.agent_counts(now_s)
        self._metrics.agents_heard.set(heard)
        self._metrics.agents_expected.set(expected)
        if not changes:
            return
        self._report(changes)
        self.with_usage.publish(changes)
        essential = self._essential(changes)
        if essential:
            self.without_usage.publish(essential)

    def _essential(self, changes: Changes) -> Changes:
        """The changes without those that are of usage alone."""
        for uid in changes.removed_node_uids:
            self._bare.pop(uid, None)
        changed = []
        for facts in changes.facts:
            bare = replace(facts, state=replace(facts.state, usage=()))
            if self._bare.get(bare.state.node_uid) != bare:
                self._bare[bare.state.node_uid] = bare
                changed.append(bare)
        return Changes(tuple(changed), changes.removed_node_uids)

    def _report(self, changes: Changes) -> None:
        for facts in changes.facts:
            before = self._bare.get(facts.state.node_uid)
            if before is None or before.untrusted_reasons != facts.untrusted_reasons:
                fields = {"node": facts.state.node_name, "reasons": list(facts.untrusted_reasons)}
                _log.info("trust changed" if facts.untrusted_reasons else "node trusted", extra=fields)
        self._metrics.untrusted_nodes.set(sum(not facts.trusted for facts in self._model.facts()))
        self._metrics.changes.inc(len(changes.facts) + len(changes.removed_node_uids))
