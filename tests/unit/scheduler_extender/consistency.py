"""Whether what the extender keeps of its nodes is what it would make anew of all that it knows."""

from collections import Counter
from collections.abc import Iterable

from gpuloom.model.ledger import EntryState
from services.scheduler_extender.core.views.views import Views
from services.scheduler_extender.state.cluster import ClusterState


def out_of_step(state: ClusterState, node_names: Iterable[str]) -> str:
    """The first kept view that is not as one made from scratch; empty if there is none."""
    stale = state.views.stale
    # The ledger tells what changed to the first who asks, so the kept ones are looked at first.
    kept = {name: state.views.view(name) for name in node_names}
    scratch = Views(state.ledger, state.hosts, lambda: stale)
    for name, view in kept.items():
        anew = scratch.view(name)
        if view != anew:
            return f"{name} is kept as {view}, and would be {anew}"
    return ""


def miscounted(state: ClusterState) -> str:
    """How the numbers of owners by state differ from those on the ledger; empty if they don't."""
    counted = state.entry_counts()
    owners = Counter(entry.state for entry in state.ledger.entries())
    there = {entry_state: owners[entry_state] for entry_state in EntryState}
    return "" if counted == there else f"counted {counted}, and there are {there}"
