"""What dashboards and rules ask of Prometheus, taken apart. Pure.

Reads every file that there is, so that those of a new service are asked without anybody naming them.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

MONITORING = Path(__file__).parents[2] / "deploy" / "monitoring"
DASHBOARDS = MONITORING / "dashboards"
RULES = MONITORING / "rules"

_CLAUSE = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^()]*\)")
_RANGE = re.compile(r"\[[^\]]*\]|\boffset\s+\w+")
_SELECTOR = re.compile(r"(?<![\w:.$\"])([a-zA-Z_:][\w:]*+)\s*+(\{[^{}]*\})?+(?!\s*\()|(\{[^{}]*\})")
_KEYWORDS = {"and", "or", "unless", "bool", "group_left", "group_right", "inf", "nan"}
_MATCHER = re.compile(r'([a-zA-Z_]\w*)\s*(=~|!~|!=|=)\s*"((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True)
class Query:
    """`place` names the dashboard and panel, or the rule."""

    place: str
    expression: str


@dataclass(frozen=True)
class Selector:
    """`name` is empty if the name is matched like a label."""

    name: str
    matchers: tuple[tuple[str, str, str], ...]

    @property
    def bare(self) -> str:
        """Without its label matchers; a name that is matched stays."""
        kept = [matcher for matcher in self.matchers if matcher[0] == "__name__"]
        return self.name + (_braces(kept) if kept else "")

    @property
    def text(self) -> str:
        return self.name + (_braces(self.matchers) if self.matchers else "")

    @property
    def labels(self) -> set[str]:
        return {label for label, _, _ in self.matchers if label != "__name__"}


def dashboard_queries() -> Iterator[Query]:
    for path in sorted(DASHBOARDS.glob("*.json")):
        document = json.loads(path.read_text(encoding="utf-8"))
        for panel in document["panels"]:
            for target in panel.get("targets", ()):
                yield Query(f"{path.name}: {panel['title']}", with_everything_chosen(target["expr"]))
        for variable in document["templating"]["list"]:
            if variable["type"] == "query":
                inner = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"])
                assert inner is not None, f"{path.name}: {variable['name']} is no label_values(…)"
                expression = f"count by ({inner[2]}) ({with_everything_chosen(inner[1])})"
                yield Query(f"{path.name}: variable {variable['name']}", expression)


def rule_queries() -> Iterator[Query]:
    for path in sorted(RULES.glob("*.yaml")):
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]:
            for rule in group["rules"]:
                yield Query(f"{path.name}: {rule.get('alert') or rule['record']}", rule["expr"])


def with_everything_chosen(expression: str) -> str:
    """As Grafana sends it when all values of all variables are chosen."""
    return re.sub(r"\$\{?(\w+)\}?", ".*", expression.replace("$__rate_interval", "10s"))


def selectors(expression: str) -> list[Selector]:
    """Every series that the expression reads."""
    plain = _RANGE.sub("", _CLAUSE.sub("", expression))
    found = []
    for name, braces, alone in _SELECTOR.findall(plain):
        if name.lower() in _KEYWORDS:
            continue
        found.append(Selector(name, tuple(_MATCHER.findall(braces or alone))))
    return found


def quick_rules(path: Path, interval: str) -> dict[str, Any]:
    """The file with all groups evaluated so often."""
    document: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return {"groups": [{**group, "interval": interval} for group in document["groups"]]}


def family_of(name: str, types: Mapping[str, str]) -> str | None:
    """The declared family of a series: histograms and summaries have suffixes that their families lack."""
    for suffix in ("", "_bucket", "_count", "_sum", "_total"):
        family = name.removesuffix(suffix) if suffix else name
        if name.endswith(suffix) and family in types:
            return family
    return None


def _braces(matchers: Any) -> str:
    return "{" + ", ".join(f'{label}{operator}"{value}"' for label, operator, value in matchers) + "}"
