"""Rules that say which team pays: the first that matches decides, and may split among several.

[[rule]]
namespaces = ["ml-*"]
labels = { gpu-project = "search" }
pools = ["research"]
teams = { vision = 60, language = 40 }
idle = true          # also what nobody held on nodes of these pools
"""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from gpuloom.model.money import split
from services.cost_engine.core.attribution import IDLE
from services.cost_engine.core.intervals import PodIdentity

UNALLOCATED = "__unallocated__"
"""The group of cost that no rule or label names an owner for."""
MAX_RULES = 256
_FIELDS = frozenset({"namespaces", "labels", "pools", "teams", "idle"})


@dataclass(frozen=True, slots=True)
class TeamRule:
    teams: Mapping[str, int]
    namespaces: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    pools: tuple[str, ...] = ()
    idle: bool = False

    def matches(self, pod: PodIdentity | None, pool: str) -> bool:
        """`pod` None: what nobody held on a node of that pool."""
        if self.pools and not any(fnmatchcase(pool, pattern) for pattern in self.pools):
            return False
        if pod is None:
            return self.idle
        if self.namespaces and not any(fnmatchcase(pod.namespace, pattern) for pattern in self.namespaces):
            return False
        return all(fnmatchcase(pod.labels.get(key, ""), value) for key, value in self.labels.items())

    def may_meet(self, other: "TeamRule") -> bool:
        """False only if no pod can match both."""
        apart = (
            self.namespaces
            and other.namespaces
            and not any(_alike(one, two) for one in self.namespaces for two in other.namespaces)
        )
        shared = self.labels.keys() & other.labels.keys()
        return not apart and all(_alike(self.labels[key], other.labels[key]) for key in shared)


def parse_rules(text: str) -> tuple[TeamRule, ...]:
    """Raise ValueError that names the rule and what is wrong with it."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"not TOML: {error}") from None
    rows = document.get("rule", [])
    if not isinstance(rows, list) or len(rows) > MAX_RULES:
        raise ValueError(f"must be a list of at most {MAX_RULES} [[rule]] tables")
    return tuple(_rule(row, number) for number, row in enumerate(rows, 1))


def team_amounts(
    rules: Iterable[TeamRule], pod: PodIdentity | None, pool: str, amount: int
) -> dict[str, int]:
    """Who pays how much of it; the parts add up to it."""
    for rule in rules:
        if rule.matches(pod, pool):
            return split(amount, dict(sorted(rule.teams.items())))
    return {UNALLOCATED if pod is not None else IDLE: amount}


def team_weights(rules: Iterable[TeamRule], pod: PodIdentity | None, pool: str) -> dict[str, int]:
    for rule in rules:
        if rule.matches(pod, pool):
            return dict(sorted(rule.teams.items()))
    return {UNALLOCATED if pod is not None else IDLE: 1}


def _alike(one: str, two: str) -> bool:
    if fnmatchcase(one, two) or fnmatchcase(two, one):
        return True
    return all(any(mark in pattern for mark in "*?[") for pattern in (one, two))


def _rule(row: Any, number: int) -> TeamRule:
    if not isinstance(row, dict) or set(row) - _FIELDS:
        other = sorted(set(row) - _FIELDS) if isinstance(row, dict) else []
        raise ValueError(f"rule {number}: unknown field {other[0]}" if other else f"rule {number}: no table")
    teams = row.get("teams")
    if not isinstance(teams, dict) or not teams:
        raise ValueError(f"rule {number}: teams must name at least one team and its weight")
    for name, weight in teams.items():
        if isinstance(weight, bool) or not isinstance(weight, int) or not 0 < weight <= 10**6:
            raise ValueError(f"rule {number}: the weight of {name} must be a whole number above 0")
    return TeamRule(
        teams=teams,
        namespaces=_texts(row, "namespaces", number),
        labels=_labels(row, number),
        pools=_texts(row, "pools", number),
        idle=row.get("idle") is True,
    )


def _labels(row: Mapping[str, Any], number: int) -> dict[str, str]:
    value = row.get("labels", {})
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise ValueError(f"rule {number}: labels must be a table of names and texts")
    return value


def _texts(row: Mapping[str, Any], key: str, number: int) -> tuple[str, ...]:
    value = row.get(key, [])
    if not isinstance(value, list) or not all(isinstance(entry, str) and entry for entry in value):
        raise ValueError(f"rule {number}: {key} must be a list of names")
    return tuple(value)
