"""Label selectors in the text form that a scale has: `app=llm,tier in (a,b),!canary`."""

import re
from collections.abc import Mapping

_TERM = re.compile(
    r"\s*(?:(?P<not>!)\s*)?(?P<key>[^\s!=,()]+)\s*"
    r"(?:(?P<op>==|!=|=|\bin\b|\bnotin\b)\s*(?:\((?P<set>[^)]*)\)|(?P<value>[^,]*)))?\s*(?:,|$)"
)


def matches(selector: str, labels: Mapping[str, str]) -> bool:
    """Whether every term holds. A selector that can't be read, or an empty one, selects nothing."""
    position, holds = 0, bool(selector.strip())
    while holds and position < len(selector):
        term = _TERM.match(selector, position)
        if term is None:
            return False
        holds = _holds(term, labels)
        position = term.end()
    return holds


def _holds(term: re.Match[str], labels: Mapping[str, str]) -> bool:
    key, operator = term["key"], term["op"]
    if operator is None:
        return (key in labels) != bool(term["not"])
    if operator in ("in", "notin"):
        among = labels.get(key) in {one.strip() for one in (term["set"] or "").split(",")}
        return among if operator == "in" else not among
    equal = labels.get(key) == (term["value"] or "").strip()
    return not equal if operator == "!=" else equal
