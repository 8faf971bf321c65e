"""Costs by namespace, label, team or whatever is asked for. Any grouping adds up to the same total."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from operator import add, attrgetter

from gpuloom.errors import InvalidRequestError
from gpuloom.model.money import split_by
from services.cost_engine.core.attribution import HOST, IDLE
from services.cost_engine.core.intervals import PodIdentity
from services.cost_engine.core.teams import UNALLOCATED, TeamRule, team_weights

LABEL_PREFIX = "label:"
DIMENSIONS = (
    "cluster",
    "namespace",
    "pod",
    "workload",
    "node",
    "pool",
    "capacity_type",
    "instance_type",
    "team",
    "quality",
)
MAX_DIMENSIONS = 4


@dataclass(frozen=True, slots=True)
class Amounts:
    """Sums in nano-USD, and GPU time in units times milliseconds."""

    cost: int = 0
    used: int = 0
    idle: int = 0
    unknown: int = 0
    unallocated: int = 0
    """What nobody held, and what is not for GPUs; `cost` has it too."""
    baseline: int = 0
    on_demand: int = 0
    unit_ms: int = 0
    unpriced_ns: int = 0
    energy_mj: int = 0

    def __add__(self, other: "Amounts") -> "Amounts":
        return Amounts(*map(add, _values(self), _values(other)))

    @property
    def allocated(self) -> int:
        return self.cost - self.unallocated


_NAMES = tuple(field.name for field in fields(Amounts))
_values = attrgetter(*_NAMES)


@dataclass(frozen=True, slots=True)
class CostFact:
    """A row of cost with what it can be grouped by. `pod` None: nobody held it.

    `team` None: rules say who pays.
    """

    bucket_ns: int
    owner: str
    amounts: Amounts
    pod: PodIdentity | None = None
    node: str = ""
    pool: str = ""
    capacity_type: str = ""
    instance_type: str = ""
    quality: str = ""
    mechanism: str = ""
    team: str | None = None


@dataclass(frozen=True, slots=True)
class GroupedRow:
    bucket_ns: int
    group: tuple[str, ...]
    amounts: Amounts


def check_dimensions(group_by: Sequence[str]) -> None:
    """Raise ValueError for what can't be grouped by."""
    if len(group_by) > MAX_DIMENSIONS:
        raise ValueError(f"group by at most {MAX_DIMENSIONS} dimensions")
    for name in group_by:
        if name not in DIMENSIONS and not (name.startswith(LABEL_PREFIX) and len(name) > len(LABEL_PREFIX)):
            raise ValueError(f"can't group by {name!r}: use {', '.join(DIMENSIONS)} or label:<name>")


def grouped(
    facts: Iterable[CostFact],
    group_by: Sequence[str],
    rules: Sequence[TeamRule] = (),
    most_rows: int | None = None,
) -> list[GroupedRow]:
    """Sorted by bucket, then by group. Raise InvalidRequestError for more than `most_rows`."""
    sums: dict[tuple[int, tuple[str, ...]], Amounts] = {}
    for fact in facts:
        for group, amounts in _placed(fact, group_by, rules):
            key = (fact.bucket_ns, group)
            sums[key] = sums[key] + amounts if key in sums else amounts
            if most_rows is not None and len(sums) > most_rows:
                raise InvalidRequestError(
                    f"the answer has more than {most_rows} lines: group by namespace or another dimension of "
                    "fewer values, filter, or ask for a larger step or a shorter window"
                )
    return [GroupedRow(bucket, group, amounts) for (bucket, group), amounts in sorted(sums.items(), key=_key)]


def total(rows: Iterable[GroupedRow]) -> Amounts:
    found = Amounts()
    for row in rows:
        found += row.amounts
    return found


def _key(item: tuple[tuple[int, tuple[str, ...]], Amounts]) -> tuple[int, tuple[str, ...]]:
    return item[0]


def _placed(
    fact: CostFact, group_by: Sequence[str], rules: Sequence[TeamRule]
) -> list[tuple[tuple[str, ...], Amounts]]:
    if "team" not in group_by:
        return [(tuple(_value(fact, name) for name in group_by), fact.amounts)]
    teams = _teams(fact, rules)
    parts = _split(fact.amounts, list(teams.values()))
    return [
        (tuple(team if name == "team" else _value(fact, name) for name in group_by), part)
        for team, part in zip(teams, parts, strict=True)
    ]


def _teams(fact: CostFact, rules: Sequence[TeamRule]) -> Mapping[str, int]:
    if fact.team is not None:
        return {fact.team: 1}
    return {fact.owner: 1} if fact.owner == HOST else team_weights(rules, fact.pod, fact.pool)


def _split(amounts: Amounts, weights: Sequence[int]) -> list[Amounts]:
    """Used, idle, unknown and unallocated are split each; the cost of a part is their sum."""
    columns = {name: split_by(getattr(amounts, name), weights) for name in _NAMES if name != "cost"}
    parts = []
    for place in range(len(weights)):
        values = {name: column[place] for name, column in columns.items()}
        cost = values["used"] + values["idle"] + values["unknown"] + values["unallocated"]
        parts.append(Amounts(cost=cost, **values))
    return parts


def _value(fact: CostFact, name: str) -> str:
    if name in _OF_NODE:
        return _OF_NODE[name](fact)
    if fact.pod is None:
        return fact.owner
    if name.startswith(LABEL_PREFIX):
        return fact.pod.labels.get(name.removeprefix(LABEL_PREFIX)) or UNALLOCATED
    if name == "pod":
        return f"{fact.pod.namespace}/{fact.pod.name}"
    return (fact.pod.namespace if name == "namespace" else fact.pod.workload) or UNALLOCATED


_OF_NODE: Mapping[str, Callable[[CostFact], str]] = {
    "cluster": lambda _: "cluster",
    "node": lambda fact: fact.node,
    "pool": lambda fact: fact.pool or UNALLOCATED,
    "capacity_type": lambda fact: fact.capacity_type or UNALLOCATED,
    "instance_type": lambda fact: fact.instance_type or UNALLOCATED,
    "quality": lambda fact: fact.quality or "missing",
}
OWNERS_WITHOUT_POD = frozenset({IDLE, HOST})
