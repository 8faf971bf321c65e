"""Nodes as placement sees them: the ledger's claims and the device facts, put together.

A view is kept until its node changes, so that a filter over a quiet cluster costs next to nothing. Whatever
is not known closes the node, with the reason.

Views are the same for all pods, but for these nodes: where a pod has a bind under way it gets its own devices
back, where something is held for it it sees that, too, and where others are nominated to that come before it,
it sees what they leave.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from gpuloom.model.ledger import Claim, NodeLedger
from gpuloom.placement.devices import NodeView
from gpuloom.placement.fleet.fleet import Fleet
from gpuloom.placement.occupancy.node_view import STALE, closed_view, node_view
from gpuloom.placement.occupancy.nominations import (
    NOBODY,
    Asker,
    Nomination,
    Nominations,
    Remainders,
)
from gpuloom.placement.potential import Prices, neutral_prices
from services.scheduler_extender.core.ledger.holds import ANYWHERE, Holds
from services.scheduler_extender.core.ledger.ledger import Ledger
from services.scheduler_extender.core.views.counts import Census
from services.scheduler_extender.core.views.hosts import Hosts
from services.scheduler_extender.core.views.nominated import PromisedViews

ViewOf = Callable[[str], NodeView | None]


class Views:
    """`facts_are_stale` says whether the device facts as a whole are too old to be used.

    Views of nodes that changed are made again a few at a time by whoever calls `refresh`, and at the latest
    when somebody asks. With a fleet to keep, each goes there too.
    """

    def __init__(
        self,
        ledger: Ledger,
        hosts: Hosts,
        facts_are_stale: Callable[[], bool],
        nominations: Nominations | None = None,
        holds: Holds | None = None,
    ) -> None:
        self._ledger = ledger
        self._hosts = hosts
        self._facts_are_stale = facts_are_stale
        self._nominations = Nominations() if nominations is None else nominations
        self._holds = Holds() if holds is None else holds
        self._remainders = Remainders()
        self._promised = PromisedViews(self._beside_promised)
        self._promised_at: Prices | None = None
        self._kept: dict[str, NodeView] = {}
        self._changed: set[str] = set()
        self._fleet: Fleet | None = None
        self._stale = True
        self._freshened = False
        self._wake: Callable[[], None] = _nobody
        self._tell: Callable[[str, bool], None] = _nothing
        self._census = Census()
        self._uncounted: set[str] = set()
        """Names of nodes where claims changed their state, and which the census has to count anew."""

    def keep(self, fleet: Fleet) -> None:
        """From now on this fleet holds the view of every node."""
        self._fleet = fleet
        self._changed.update(self._kept)

    def forget(self, node_name: str) -> None:
        """Something about this node changed."""
        self._changed.add(node_name)
        self._wake()

    def on_poke(self, wake: Callable[[], None]) -> None:
        """Who is to be called when something may have changed."""
        self._wake = wake

    def on_change(self, tell: Callable[[str, bool], None]) -> None:
        """Who is to be told the name of every node that changed, and whether it is there."""
        self._tell = tell

    def wake(self) -> None:
        """Something has changed."""
        self._wake()

    def poke(self) -> None:
        """Something may have changed on the ledger."""
        if self._changed or self._ledger.touched:
            self._wake()

    def node_names(self) -> list[str]:
        """Of all nodes that Kubernetes shows."""
        self.refresh(most=sys.maxsize)
        return sorted(self._kept)

    def node_ledger(self, node_name: str) -> NodeLedger | None:
        """All that a view of this node is made of beside its facts, and why it is closed, if it is."""
        self._note_changed()
        uid = self._ledger.node_uid(node_name)
        if uid is None:
            return None
        if node_name in self._changed or node_name not in self._kept:
            self._changed.discard(node_name)
            self._make(node_name)
        ledger = self._node_ledger(node_name, uid, self._ledger.claims(node_name), NOBODY)
        return replace(ledger, closed_reason=self._kept[node_name].closed_reason)

    @property
    def stale(self) -> bool:
        """Whether nothing is given out anywhere, because the facts as a whole are too old."""
        self._note_changed()
        return self._stale

    @property
    def outdated(self) -> int:
        """How many nodes are known to have changed since their view was made."""
        return len(self._changed)

    def take_freshened(self) -> bool:
        """Whether the facts, stale as a whole, came to be used again since the last call."""
        self._note_changed()
        freshened, self._freshened = self._freshened, False
        return freshened

    def refresh(self, most: int) -> bool:
        """Make views of at most so many changed nodes again; whether some are left."""
        self._note_changed()
        for _ in range(min(most, len(self._changed))):
            self._make(self._changed.pop())
        return bool(self._changed)

    def census(self) -> Census:
        """As of now. A bind that is confirmed outdates no view, so its node is counted anew only here."""
        self.refresh(most=sys.maxsize)
        uncounted, self._uncounted = self._uncounted, set()
        for name in uncounted:
            self._census.count(name, self._ledger.claims(name))
        return self._census

    def view(self, node_name: str, asker: Asker | str = NOBODY) -> NodeView | None:
        """The node now, as this pod sees it; None if Kubernetes shows no such node."""
        self._note_changed()
        # Whoever asks about one node is about to change it.
        self._wake()
        return self.view_now(node_name, self._known_asker(asker))

    def viewer(self, asker: Asker | str = NOBODY) -> "Viewer":
        """Many nodes at this moment: use what it gives without an await in between.

        Of an asker that is only a UID no more is known than what its own nomination tells.
        """
        self.refresh(most=sys.maxsize)
        return Viewer(self, self._known_asker(asker), None if self._stale else self._fleet)

    def view_now(self, node_name: str, asker: Asker) -> NodeView | None:
        """As of the last time that changes were noted."""
        uid = self._ledger.node_uid(node_name)
        if uid is None:
            return None
        if self._stale or self._sees_otherwise(asker, node_name, uid):
            view = self._build(node_name, uid, asker)
        else:
            if node_name in self._changed or node_name not in self._kept:
                self._changed.discard(node_name)
                self._make(node_name)
            view = self._kept[node_name]
        ahead = self._ahead_of(asker, node_name) if self._nominations else ()
        return self._remainders.beside(view, ahead, self._prices()) if ahead else view

    def view_without(
        self, node_name: str, pods: frozenset[str] | None, asker: Asker = NOBODY
    ) -> NodeView | None:
        """The node as it would be if the pods of these UIDs had left; None: if nothing were taken there."""
        uid = self._ledger.node_uid(node_name)
        if uid is None or self._stale:
            return self.view_now(node_name, asker)
        if pods is None:
            account = self._hosts.account(node_name)
            ledger = NodeLedger(node_name, uid, account=account)
        else:
            claims = [
                claim for claim in self._ledger.claims(node_name, asker.uid) if claim.pod.uid not in pods
            ]
            ledger = self._node_ledger(node_name, uid, claims, asker)
        return node_view(ledger, self._ledger.facts(node_name), self._kept.get(node_name))

    def own_views(self, asker: Asker) -> tuple[NodeView, ...]:
        """Nodes that this pod sees otherwise than everybody: by its own attempts, or by nominated pods."""
        attempted = [attempt.node_name for attempt in self._ledger.attempts_of(asker.uid)]
        attempted += [name for name in self._holds.nodes_open_to(asker) if name not in attempted]
        if not self._nominations:
            return self._seen(attempted, asker)
        promised = {asker.nominated_node, self._nominations.node_of(asker.uid)} - {""}
        if not attempted and not promised:
            return self._promised_views(asker.priority)
        # The few nodes that this pod sees otherwise than others of its priority do.
        own = {*attempted, *(name for name in promised if self._ahead_of(asker, name))}
        shared = self._promised_views(asker.priority)
        apart = promised.union(attempted)
        return (*(view for view in shared if view.name not in apart), *self._seen(sorted(own), asker))

    def promised_nodes(self, asker: Asker) -> list[str]:
        """Names of nodes where this pod must leave room for nominated ones."""
        return [name for name in sorted(self._nominations.nodes()) if self._ahead_of(asker, name)]

    def _promised_views(self, priority: int) -> tuple[NodeView, ...]:
        """Of all nodes where pods of this priority, nominated to none, must leave room for others."""
        threshold = self._nominations.threshold(priority)
        if threshold is None:
            return ()
        self._note_promised()
        return self._promised.at(threshold, self._nominations.nodes())

    def _note_promised(self) -> None:
        """A bind that begins or ends takes its pod from those that are promised something, or brings it."""
        attempted = {self._nominations.node_of(uid) for uid in self._ledger.take_attempted()}
        self._promised.outdate(self._nominations.take_changed() | attempted)
        if self._promised_at is not self._prices():
            self._promised_at = self._prices()
            self._promised.clear()

    def _beside_promised(self, node_name: str, priority: int) -> NodeView | None:
        asker = Asker("", priority)
        return self.view_now(node_name, asker) if self._ahead_of(asker, node_name) else None

    def _seen(self, names: Iterable[str], asker: Asker) -> tuple[NodeView, ...]:
        views = (self.view_now(name, asker) for name in names)
        return tuple(view for view in views if view is not None)

    def _known_asker(self, asker: Asker | str) -> Asker:
        return asker if isinstance(asker, Asker) else self._nominations.asker(asker)

    def _ahead_of(self, asker: Asker, node_name: str) -> tuple[Nomination, ...]:
        """Without those that hold devices by a bind under way, here or elsewhere."""
        ahead = self._nominations.ahead_of(asker, node_name)
        return tuple(entry for entry in ahead if not self._ledger.has_attempt(entry.asker.uid))

    def _prices(self) -> Prices:
        return neutral_prices() if self._fleet is None else self._fleet.prices

    def _note_changed(self) -> None:
        stale = self._facts_are_stale()
        if stale != self._stale:
            self._stale = stale
            self._freshened = self._freshened or not stale
        self._changed |= self._ledger.take_touched()
        touched = self._holds.take_touched()
        self._changed |= touched - {ANYWHERE} | (set(self._kept) if ANYWHERE in touched else set())
        for name in self._ledger.take_confirmed():
            self._uncounted.add(name)
            self._tell(name, True)

    def _make(self, node_name: str) -> None:
        self._remainders.forget(node_name)
        self._promised.outdate((node_name,))
        uid = self._ledger.node_uid(node_name)
        if uid is None:
            # Of a node that was touched by pods alone, before Kubernetes showed it, nothing is kept.
            if self._kept.pop(node_name, None) is not None and self._fleet is not None:
                self._fleet.remove(node_name)
            self._census.forget(node_name)
            self._tell(node_name, False)
            return
        claims = self._ledger.claims(node_name)
        view = self._kept[node_name] = self._known(node_name, uid, claims, NOBODY)
        if self._fleet is not None:
            self._fleet.put(view)
        self._census.count(node_name, claims)
        self._census.note_closed(
            node_name, bool(view.closed_reason) and self._ledger.facts(node_name) is not None
        )
        self._tell(node_name, True)

    def _sees_otherwise(self, asker: Asker, node_name: str, node_uid: str) -> bool:
        """Its own binds under way and what is held for it are free for a pod, and for nobody else."""
        if not asker.uid:
            return False
        attempted = self._ledger.attempt(asker.uid, node_uid) is not None
        return attempted or self._holds.opens(node_name, asker)

    def _build(self, node_name: str, uid: str, asker: Asker) -> NodeView:
        if self._stale and self._ledger.facts(node_name) is not None:
            return closed_view(NodeLedger(node_name, uid), STALE)
        return self._known(node_name, uid, self._ledger.claims(node_name, asker.uid), asker)

    def _known(self, node_name: str, uid: str, claims: Sequence[Claim], asker: Asker) -> NodeView:
        ledger = self._node_ledger(node_name, uid, claims, asker)
        return node_view(ledger, self._ledger.facts(node_name), self._kept.get(node_name))

    def _node_ledger(self, node_name: str, uid: str, claims: Sequence[Claim], asker: Asker) -> NodeLedger:
        seen = [claim.pod for claim in claims if claim.unaccounted]
        return NodeLedger(
            node_name,
            uid,
            tuple(claims),
            tuple(pod for pod in seen if not self._hosts.accounts_for(pod.uid)),
            self._hosts.account(node_name, self._ledger.attempts_on(node_name, asker.uid)),
            holds=self._holds.on(node_name, asker),
        )


class Viewer:
    """The nodes at one moment, for one pod: its own holds are free for it, and promised room is not.

    `fleet` has them all, if there is one and the facts may be used; `own_views` are where this pod sees
    another node than everybody does.
    """

    def __init__(self, views: Views, asker: Asker, fleet: Fleet | None) -> None:
        self.fleet = fleet
        self._views = views
        self._asker = asker

    def __call__(self, node_name: str) -> NodeView | None:
        return self._views.view_now(node_name, self._asker)

    def own_views(self) -> tuple[NodeView, ...]:
        return self._views.own_views(self._asker)


def _nobody() -> None:
    return


def _nothing(_: str, __: bool) -> None:
    return
