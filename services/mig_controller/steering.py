"""Asks NVIDIA's MIG manager to cut idle nodes of mode nvidia otherwise, by the one label that says so.

A node is held at the extender before it is asked about, so that nobody gets it meanwhile, and until the
manager has said how it ended. Never fights: a node that the manager is at work on is left alone, and so is
one for a while after it was asked.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gpuloom.errors import DeadlineError, GpuloomError, NotFoundError, NotReadyError, UnavailableError
from gpuloom.kube.objects import JsonObject
from gpuloom.model.claims import HoldTarget
from gpuloom.model.snapshot import NodeFacts
from gpuloom.runtime.clock import Clock
from services.mig_controller.core.steering import (
    NODE_HOLD,
    SETTLED,
    Steer,
    Want,
    busy_nodes,
    config_of,
    steers,
    unmet_demand,
)
from services.mig_controller.metrics import MigMetrics
from services.mig_controller.ports import Holds, NodeLabels

_log = logging.getLogger(__name__)

_HOLD_TTL_S = 120


@dataclass(frozen=True, slots=True)
class SteeringOptions:
    """`format_` makes the name of a layout of `{profile}`; `off` is that of GPUs that are not cut."""

    enabled: bool = False
    format_: str = "all-{profile}"
    off: str = "all-disabled"
    delay_s: float = 30.0
    pause_s: float = 600.0
    timeout_s: float = 900.0


@dataclass(slots=True)
class _Asked:
    steer: Steer
    since_s: float
    renewed_s: float
    begun: bool = False
    """Whether the manager was seen at work on it."""


class Steering:
    """For one term of leadership."""

    def __init__(
        self, holds: Holds, labels: NodeLabels, clock: Clock, metrics: MigMetrics, options: SteeringOptions
    ) -> None:
        self._holds = holds
        self._labels = labels
        self._clock = clock
        self._metrics = metrics
        self._options = options
        self._asked: dict[str, _Asked] = {}
        self._rests_until_s: dict[str, float] = {}
        self._wanted_since_s: dict[Want, float] = {}

    async def take_over(self, facts: Sequence[NodeFacts]) -> None:
        """Go on with nodes that were asked about before, and let go of what else was held.

        Raise UnavailableError or NotReadyError: then it is not known yet which those are.
        """
        names = {node.state.node_uid: node.state.node_name for node in facts}
        now_s = self._clock.monotonic()
        for hold in await self._holds.list_own():
            uid = hold.removeprefix(NODE_HOLD)
            if uid == hold:
                continue
            name = names.get(uid, "") if self._options.enabled else ""
            config, state = await self._labels_of(name) if name else ("", "")
            if config:
                steer = Steer(name, uid, config)
                # How long the hold still lasts is not known.
                self._asked[name] = _Asked(steer, now_s, now_s - _HOLD_TTL_S, state not in SETTLED)
            else:
                await self._holds.release(hold)

    async def step(self, pods: Sequence[JsonObject], facts: Sequence[NodeFacts]) -> None:
        if not self._options.enabled:
            return
        for entry in list(self._asked.values()):
            await self._follow(entry)
        demand = unmet_demand(pods, facts)
        now_s = self._clock.monotonic()
        self._wanted_since_s = {want: self._wanted_since_s.get(want, now_s) for want in demand}
        nodes = {node.state.node_name: node for node in facts}
        due = {
            want: count
            for want, count in demand.items()
            if now_s - self._wanted_since_s[want] >= self._options.delay_s
            and not any(self._is_for(entry.steer, want, nodes) for entry in self._asked.values())
        }
        self._rests_until_s = {n: s for n, s in self._rests_until_s.items() if s > now_s}
        out = self._asked.keys() | self._rests_until_s.keys()
        open_nodes = [node for node in facts if node.state.node_name not in out]
        for steer in steers(due, open_nodes, busy_nodes(pods), self._options.format_, self._options.off):
            await self._begin(steer)

    async def _begin(self, steer: Steer) -> None:
        now_s = self._clock.monotonic()
        try:
            # Refused if anybody has anything of it by the ledger, which is newer than what we decided on.
            await self._take(steer)
        except (NotReadyError, UnavailableError, DeadlineError) as error:
            # Nothing is wrong with the node: the next round asks again. The hold may be taken all the same.
            _log.info("a node can't be held now", extra={"node": steer.node_name, "reason": str(error)})
            await self._let_go(steer)
            return
        except GpuloomError as error:
            self._rest(steer, str(error))
            return
        try:
            refused = await self._labels.ask(steer.node_name, steer.node_uid, steer.config)
        except GpuloomError as error:
            # The label may be there although no answer came, and then the manager is at work.
            refused = ""
            fields = {"node": steer.node_name, "reason": str(error)}
            _log.info("whether a node was asked about is not known yet", extra=fields)
        if refused:
            await self._let_go(steer)
            self._rest(steer, refused)
            return
        self._asked[steer.node_name] = _Asked(steer, now_s, now_s)
        self._metrics.count_steered("asked")
        _log.info("a node is to be cut otherwise", extra={"node": steer.node_name, "config": steer.config})

    async def _follow(self, entry: _Asked) -> None:
        steer, now_s = entry.steer, self._clock.monotonic()
        try:
            config, state = await self._labels.read(steer.node_name)
        except GpuloomError as error:
            config, state = steer.config, "pending"
            _log.info(
                "a node's labels are not known now", extra={"node": steer.node_name, "reason": str(error)}
            )
        entry.begun = entry.begun or state not in SETTLED
        waited_s = now_s - entry.since_s
        # A success of before may be shown until the manager notices the label.
        ended = state in SETTLED and (entry.begun or waited_s > _HOLD_TTL_S)
        if ended or config != steer.config or waited_s > self._options.timeout_s:
            outcome = "done" if ended and state == "success" and config == steer.config else "failed"
            del self._asked[steer.node_name]
            await self._let_go(steer)
            self._metrics.count_steered(outcome)
            self._rest(steer, f"{outcome}: the manager says {state or 'nothing'} of {config or 'no layout'}")
            return
        if now_s - entry.renewed_s >= _HOLD_TTL_S / 3:
            entry.renewed_s = now_s
            try:
                await self._keep(steer)
            except GpuloomError as error:
                _log.warning("a hold can't be renewed", extra={"node": steer.node_name, "reason": str(error)})

    async def _keep(self, steer: Steer) -> None:
        try:
            await self._holds.renew(_hold_name(steer), _HOLD_TTL_S)
        except NotFoundError:
            # It ran out while nobody led, or while the extender could not be asked.
            await self._take(steer)

    async def _take(self, steer: Steer) -> None:
        reason = f"NVIDIA's MIG manager is asked for {steer.config}"
        target = HoldTarget(steer.node_name, steer.node_uid)
        await self._holds.take(_hold_name(steer), target, reason, _HOLD_TTL_S)

    async def _labels_of(self, node_name: str) -> tuple[str, str]:
        try:
            return await self._labels.read(node_name)
        except NotFoundError:
            return "", ""

    def _is_for(self, steer: Steer, want: Want, nodes: Mapping[str, NodeFacts]) -> bool:
        """Whether what is under way may serve it. A node that restarts is cordoned, tainted or gone."""
        config = config_of(want.profile, self._options.format_, self._options.off)
        node = nodes.get(steer.node_name)
        if steer.config != config or node is None:
            return steer.config == config
        return want.takes(replace(node, place=replace(node.place, taints=(), unschedulable=False)))

    async def _let_go(self, steer: Steer) -> None:
        try:
            await self._holds.release(_hold_name(steer))
        except GpuloomError as error:
            # It runs out by itself, and whoever leads next lets go of it.
            _log.warning("a hold can't be released", extra={"node": steer.node_name, "reason": str(error)})

    def _rest(self, steer: Steer, why: str) -> None:
        self._rests_until_s[steer.node_name] = self._clock.monotonic() + self._options.pause_s
        _log.info("a node is left alone for a while", extra={"node": steer.node_name, "reason": why})


def _hold_name(steer: Steer) -> str:
    return f"{NODE_HOLD}{steer.node_uid}"
