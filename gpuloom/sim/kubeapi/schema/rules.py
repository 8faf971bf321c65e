"""CEL rules (`x-kubernetes-validations`), by the CEL library of its authors.

Rules use standard CEL only: what Kubernetes adds to the language is not there. Rules that say `oldSelf`
compare with the stored object; only the real server evaluates them.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cel_expr_python import cel

from gpuloom.sim.kubeapi.schema.structural import schema_of
from gpuloom.sim.kubeapi.status import FieldProblem

Object = dict[str, Any]

_TRANSITION = re.compile(r"\boldSelf\b")


class SchemaError(Exception):
    """The schema itself is wrong; the text says where and why."""


@dataclass(frozen=True, slots=True)
class Rule:
    expression: cel.Expression
    message: str
    field_path: str
    reason: str


class Rules:
    """All rules of a schema, each with the place it stands at."""

    def __init__(self, schema: Object) -> None:
        environment = cel.NewEnv(variables={"self": cel.Type.DYN})
        self._root = _Place.of(schema, environment, "")

    def __bool__(self) -> bool:
        return self._root.has_rules

    def problems(self, obj: Object) -> list[FieldProblem]:
        return list(self._root.problems(obj, ""))


@dataclass(frozen=True, slots=True)
class _Place:
    """The rules of one schema node, and the nodes below it that have any."""

    schema: Object
    rules: tuple[Rule, ...]
    fields: Mapping[str, "_Place"]
    others: "_Place | None"
    items: "_Place | None"

    @staticmethod
    def of(schema: Object, environment: cel.Env, where: str) -> "_Place":
        def below(node: Any, step: str) -> "_Place | None":
            if not isinstance(node, dict):
                return None
            place = _Place.of(node, environment, f"{where}.{step}".lstrip("."))
            return place if place.has_rules else None

        fields = {key: below(node, key) for key, node in (schema.get("properties") or {}).items()}
        return _Place(
            schema=schema,
            rules=tuple(_rules(schema, environment, where)),
            fields={key: place for key, place in fields.items() if place is not None},
            others=below(schema.get("additionalProperties"), "*"),
            items=below(schema.get("items"), "[]"),
        )

    @property
    def has_rules(self) -> bool:
        return bool(self.rules or self.fields or self.others or self.items)

    def problems(self, value: Any, path: str) -> Iterator[FieldProblem]:
        if self.rules:
            seen = as_typed(value, self.schema)
            yield from (_problem(rule, path) for rule in self.rules if not _holds(rule, seen))
        if isinstance(value, dict):
            for key, one in value.items():
                place = self.fields.get(key, self.others if key not in self._known else None)
                if place is not None:
                    yield from place.problems(one, f"{path}.{key}".lstrip("."))
        elif isinstance(value, list) and self.items is not None:
            for index, one in enumerate(value):
                yield from self.items.problems(one, f"{path}[{index}]")

    @property
    def _known(self) -> Mapping[str, Any]:
        known: Mapping[str, Any] = self.schema.get("properties") or {}
        return known


def as_typed(value: Any, schema: Object) -> Any:
    """The value as CEL sees it: a whole number is a double where the schema says number."""
    if isinstance(value, dict):
        return {key: as_typed(one, schema_of(schema, key)) for key, one in value.items()}
    if isinstance(value, list):
        return [as_typed(one, schema.get("items") or {}) for one in value]
    if schema.get("type") == "number" and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    return value


def _rules(schema: Object, environment: cel.Env, where: str) -> Iterator[Rule]:
    for one in schema.get("x-kubernetes-validations") or ():
        source = str(one.get("rule", ""))
        if _TRANSITION.search(source):
            continue
        try:
            expression = environment.compile(source)
        except RuntimeError as error:
            raise SchemaError(f"{where}: the rule {source!r} does not compile: {error}") from None
        message = str(one.get("message") or f"failed rule: {source}")
        reason = str(one.get("reason") or "FieldValueInvalid")
        yield Rule(expression, message, str(one.get("fieldPath") or ""), reason)


def _holds(rule: Rule, value: Any) -> bool:
    # An evaluation that fails gives an error as its value; as on the real server, the object is then refused.
    return rule.expression.eval(data={"self": value}).value() is True


def _problem(rule: Rule, path: str) -> FieldProblem:
    return FieldProblem(f"{path}{rule.field_path}", f"Invalid value: {rule.message}", rule.reason)
