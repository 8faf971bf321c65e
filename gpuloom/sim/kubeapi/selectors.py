"""Label and field selectors: their grammar and whether an object matches. Pure; knows no resource."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuloom.sim.kubeapi.status import bad_request

LABEL_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")
LABEL_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
DNS_SUBDOMAIN = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*")
DNS_SUBDOMAIN_LENGTH = 253

_SET_TERM = re.compile(r"(?P<key>[^\s!=,()]+)\s+(?P<operator>in|notin)\s*\((?P<values>[^()]*)\)")
_VALUE_TERM = re.compile(r"(?P<key>[^\s!=,()]+)\s*(?P<operator>==|!=|=)\s*(?P<value>[^\s!=,()]*)")
_EXISTS_TERM = re.compile(r"(?P<negated>!?)\s*(?P<key>[^\s!=,()]+)")
_MAX_SELECTOR_CHARACTERS = 16 * 1024


@dataclass(frozen=True, slots=True)
class LabelTerm:
    """One requirement; `operator` is In, NotIn, Exists or DoesNotExist."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    def matches(self, labels: Mapping[str, str]) -> bool:
        if self.operator == "In":
            return self.key in labels and labels[self.key] in self.values
        if self.operator == "NotIn":
            return self.key not in labels or labels[self.key] not in self.values
        return (self.key in labels) == (self.operator == "Exists")


@dataclass(frozen=True, slots=True)
class FieldTerm:
    """One field that must (or must not) have a value; an absent field counts as the empty string."""

    path: tuple[str, ...]
    value: str
    equal: bool = True

    def matches(self, obj: Mapping[str, Any]) -> bool:
        return (field_text(obj, self.path) == self.value) == self.equal


@dataclass(frozen=True, slots=True)
class Selector:
    """All terms must hold; without terms it matches everything."""

    labels: tuple[LabelTerm, ...] = ()
    fields: tuple[FieldTerm, ...] = ()

    def matches(self, obj: Mapping[str, Any]) -> bool:
        if not all(term.matches(obj) for term in self.fields):
            return False
        if not self.labels:
            return True
        labels = obj["metadata"].get("labels") or {}
        return all(term.matches(labels) for term in self.labels)

    def exact(self, path: tuple[str, ...]) -> str | None:
        """The one value this field must have, if the selector fixes it. Indexes are used through this."""
        return next((term.value for term in self.fields if term.equal and term.path == path), None)


EVERYTHING = Selector()


def parse_selector(label_text: str, field_text: str) -> Selector:
    return Selector(parse_labels(label_text), parse_fields(field_text))


def parse_labels(text: str) -> tuple[LabelTerm, ...]:
    """Raise a 400 that names the term which can't be understood."""
    _require_length(text, "labelSelector")
    if not text.strip():
        return ()
    return tuple(_label_term(part.strip()) for part in _split_outside_parentheses(text))


def parse_fields(text: str) -> tuple[FieldTerm, ...]:
    _require_length(text, "fieldSelector")
    return tuple(_field_term(part) for part in re.split(r"(?<!\\),", text) if part.strip())


def label_query(selector: Mapping[str, Any]) -> tuple[LabelTerm, ...]:
    """The terms of a LabelSelector object (matchLabels and matchExpressions)."""
    terms = [LabelTerm(key, "In", frozenset([value])) for key, value in _pairs(selector.get("matchLabels"))]
    terms.extend(
        LabelTerm(str(one.get("key", "")), str(one.get("operator", "")), frozenset(one.get("values") or ()))
        for one in selector.get("matchExpressions") or ()
    )
    return tuple(terms)


def field_text(obj: Mapping[str, Any], path: Sequence[str]) -> str:
    """The field as a selector compares it: text, with absent (or not a plain value) as the empty string."""
    value: Any = obj
    for step in path:
        if not isinstance(value, Mapping):
            return ""
        value = value.get(step)
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, str | int | float) else ""


def is_qualified_name(text: str) -> bool:
    """A label or annotation key: an optional DNS prefix, a slash, and a name of at most 63 characters."""
    prefix, slash, name = text.rpartition("/")
    if slash and (len(prefix) > DNS_SUBDOMAIN_LENGTH or not DNS_SUBDOMAIN.fullmatch(prefix)):
        return False
    return LABEL_NAME.fullmatch(name) is not None


def _label_term(text: str) -> LabelTerm:
    readers: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], LabelTerm]], ...] = (
        (_SET_TERM, _set_term),
        (_VALUE_TERM, _value_term),
        (_EXISTS_TERM, _exists_term),
    )
    for pattern, read in readers:
        match = pattern.fullmatch(text)
        if match:
            return _checked(read(match), text)
    raise bad_request(f"unable to parse requirement in labelSelector: {text!r}")


def _set_term(match: re.Match[str]) -> LabelTerm:
    values = frozenset(value.strip() for value in match["values"].split(","))
    return LabelTerm(match["key"], "In" if match["operator"] == "in" else "NotIn", values)


def _value_term(match: re.Match[str]) -> LabelTerm:
    operator = "NotIn" if match["operator"] == "!=" else "In"
    return LabelTerm(match["key"], operator, frozenset([match["value"]]))


def _exists_term(match: re.Match[str]) -> LabelTerm:
    return LabelTerm(match["key"], "DoesNotExist" if match["negated"] else "Exists")


def _checked(term: LabelTerm, text: str) -> LabelTerm:
    if not is_qualified_name(term.key):
        raise bad_request(f"unable to parse requirement in labelSelector: {text!r}: invalid key {term.key!r}")
    for value in sorted(term.values):
        if not LABEL_VALUE.fullmatch(value):
            raise bad_request(
                f"unable to parse requirement in labelSelector: {text!r}: invalid value {value!r}"
            )
    return term


def _field_term(text: str) -> FieldTerm:
    match = re.fullmatch(r"\s*([A-Za-z][A-Za-z0-9_./-]*?)\s*(==|!=|=)(.*)", text, re.DOTALL)
    if not match:
        raise bad_request(f"invalid field selector: {text!r}; can't understand it")
    value = re.sub(r"\\([\\,=])", r"\1", match[3])
    return FieldTerm(tuple(match[1].split(".")), value, match[2] != "!=")


def _split_outside_parentheses(text: str) -> Iterator[str]:
    depth, start = 0, 0
    for position, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            yield text[start:position]
            start = position + 1
    yield text[start:]


def _require_length(text: str, name: str) -> None:
    if len(text) > _MAX_SELECTOR_CHARACTERS:
        raise bad_request(f"{name} is longer than {_MAX_SELECTOR_CHARACTERS} characters")


def _pairs(mapping: Mapping[str, Any] | None) -> list[tuple[str, Any]]:
    return list((mapping or {}).items())
