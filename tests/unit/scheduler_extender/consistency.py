"""Whether what the extender keeps of its nodes is what it would make anew of all that it knows."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from gpuloom.codec.node_ledger import node_ledger_from_proto, node_ledger_to_proto
from gpuloom.model.ledger import EntryState
from gpuloom.placement.devices import NodeView
from gpuloom.placement.occupancy.node_view import node_view
from gpuloom.v1.scheduler_extender_pb2 import NodeLedger as NodeLedgerMessage
from services.scheduler_extender.core.views.views import Views
from services.scheduler_extender.state.cluster import ClusterState


def out_of_step(state: ClusterState, node_names: Iterable[str]) -> str:
    """The first kept view that is not as one made from scratch; empty if there is none."""
    stale = state.views.stale
    # The ledger tells what changed to the first who asks, so the kept ones are looked at first.
    kept = {name: state.views.view(name) for name in node_names}
    scratch = Views(state.ledger, state.hosts, lambda: stale, holds=state.ledger.holds)
    for name, view in kept.items():
        anew = scratch.view(name)
        if view != anew:
            return f"{name} is kept as {view}, and would be {anew}"
        if not stale and (problem := _differs_for_readers(state, name, view)):
            return problem
    return ""


def _differs_for_readers(state: ClusterState, name: str, view: NodeView | None) -> str:
    """Whether who follows the ledger makes another view of the node; empty if it makes the same."""
    ledger, facts = state.views.node_ledger(name), state.ledger.facts(name)
    if ledger is None or view is None:
        return "" if ledger is None and view is None else f"{name} is not there for everybody"
    read = node_ledger_from_proto(
        NodeLedgerMessage.FromString(node_ledger_to_proto(ledger).SerializeToString())
    )
    # What the extender says of its own view is left out: readers must come to it by themselves.
    made = node_view(replace(read, closed_reason=""), facts)
    if (made, read.closed_reason) == (view, view.closed_reason):
        return ""
    return f"{name} is {view}, and for readers of the ledger {made}"


def miscounted(state: ClusterState) -> str:
    """How the numbers of owners by state differ from those on the ledger; empty if they don't."""
    counted = state.entry_counts()
    owners = Counter(entry.state for entry in state.ledger.entries())
    there = {entry_state: owners[entry_state] for entry_state in EntryState}
    return "" if counted == there else f"counted {counted}, and there are {there}"
