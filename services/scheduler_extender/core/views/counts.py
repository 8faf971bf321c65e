"""Owners by state and closed nodes, counted as nodes change, so that a scrape is cheap. Pure."""

from collections import Counter
from collections.abc import Sequence

from gpuloom.model.ledger import Claim, EntryState


class Census:
    def __init__(self) -> None:
        self.owners: Counter[EntryState] = Counter()
        self.closed: set[str] = set()
        """Nodes that have facts and yet nothing to give out."""
        self._states: dict[str, tuple[EntryState, ...]] = {}

    def count(self, node_name: str, claims: Sequence[Claim]) -> None:
        states = tuple(claim.state for claim in claims)
        self.owners.subtract(self._states.pop(node_name, ()))
        self.owners.update(states)
        if states:
            self._states[node_name] = states

    def note_closed(self, node_name: str, is_closed: bool) -> None:
        if is_closed:
            self.closed.add(node_name)
        else:
            self.closed.discard(node_name)

    def forget(self, node_name: str) -> None:
        self.count(node_name, ())
        self.note_closed(node_name, False)
