"""What discovery says of itself, out of its metrics. Pure."""

from dataclasses import dataclass, fields

from prometheus_client.parser import text_string_to_metric_families

_PREFIX = "gpuloom_discovery_"


@dataclass(frozen=True, slots=True)
class OwnFigures:
    """Totals since the start, and how things stand (nodes, agents, readers)."""

    messages_in: int
    deltas_out: int
    bytes_out: int
    node_changes: int
    trusted_nodes: int
    closed_gpus: int
    agents_heard: int
    readers: int

    def since(self, earlier: "OwnFigures") -> "OwnFigures":
        """The totals of the time between, and how things stand now."""
        counted = {
            field.name: getattr(self, field.name) - getattr(earlier, field.name)
            for field in fields(self)
            if field.name in _TOTALS
        }
        standing = {field.name: getattr(self, field.name) for field in fields(self)} | counted
        return OwnFigures(**standing)


_TOTALS = frozenset({"messages_in", "deltas_out", "bytes_out", "node_changes"})


def parse_own_figures(text: str) -> OwnFigures:
    of = {
        sample.name.removeprefix(_PREFIX): int(sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith(_PREFIX) and not sample.labels
    }
    return OwnFigures(
        messages_in=of["agent_messages_total"],
        deltas_out=of["deltas_total"],
        bytes_out=of["sent_bytes_total"],
        node_changes=of["node_changes_total"],
        trusted_nodes=of["nodes"] - of["untrusted_nodes"],
        closed_gpus=of["closed_gpus"],
        agents_heard=of["agents_heard"],
        readers=of["readers"],
    )
