"""One custom resource's schema, ready to be used. Made once for equal schemas."""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import orjson

from gpuloom.sim.kubeapi.schema import structural, values
from gpuloom.sim.kubeapi.schema.rules import Rules, SchemaError
from gpuloom.sim.kubeapi.status import FieldProblem

__all__ = ["CustomSchema", "SchemaError"]

Object = dict[str, Any]

_KEPT = 128

# A rule can't be asked about values that are not of their type, or too large.
_BLOCKING = frozenset(
    {
        "FieldValueRequired",
        "FieldValueNotSupported",
        "FieldValueTypeInvalid",
        "FieldValueTooLong",
        "FieldValueTooMany",
    }
)
_RULES_SKIPPED = FieldProblem(
    "<nil>",
    "Invalid value: null: some validation rules were not checked because the object was invalid;"
    " correct the existing errors to complete validation",
)


@dataclass(frozen=True)
class CustomSchema:
    """An openAPIV3Schema, as the JSON text by which it compares."""

    text: bytes

    @staticmethod
    def of(schema: Any) -> "CustomSchema":
        """Raise SchemaError for a schema that can't be used."""
        return _made(orjson.dumps(schema, option=orjson.OPT_SORT_KEYS))

    def complete(self, obj: Object) -> tuple[Object, list[str]]:
        """The object without fields that the schema does not know and with its defaults; and those fields."""
        pruned, unknown = structural.pruned(obj, self.tree)
        return structural.with_defaults(pruned, self.tree), sorted(unknown)

    def problems(self, obj: Object) -> list[FieldProblem]:
        """What is wrong with a completed object."""
        content = {key: value for key, value in obj.items() if key != "metadata"}
        found = self.validator.problems(content)
        if not self.rules:
            return found
        if any(problem.reason in _BLOCKING for problem in found):
            return [*found, _RULES_SKIPPED]
        return [*found, *self.rules.problems(content)]

    @cached_property
    def tree(self) -> Object:
        tree: Object = orjson.loads(self.text)
        return tree

    @cached_property
    def validator(self) -> values.Validator:
        return values.Validator(self.tree)

    @cached_property
    def rules(self) -> Rules:
        return Rules(self.tree)


@lru_cache(maxsize=_KEPT)
def _made(text: bytes) -> CustomSchema:
    made = CustomSchema(text)
    values.require_usable(made.tree)
    # Rules compile here, so that a wrong one is told to whoever wrote the definition.
    _ = made.rules
    return made
