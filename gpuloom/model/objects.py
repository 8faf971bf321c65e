"""What custom resources have in common: who they are, conditions, selectors of labels."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class ObjectMeta:
    """Who an object is. `namespace` is empty for a cluster-wide kind, `uid` for an object not yet created."""

    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    """Counts changes of the spec."""


class ConditionStatus(StrEnum):
    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class Condition:
    type: str
    status: ConditionStatus
    reason: str
    message: str
    last_transition: datetime
    observed_generation: int | None = None
    """The generation it is about; None: not said."""


class SelectorOperator(StrEnum):
    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


@dataclass(frozen=True, slots=True)
class LabelRequirement:
    key: str
    operator: SelectorOperator
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        if self.operator is SelectorOperator.EXISTS:
            return self.key in labels
        if self.operator is SelectorOperator.DOES_NOT_EXIST:
            return self.key not in labels
        # As in Kubernetes, NotIn also holds where the label is absent.
        return (labels.get(self.key) in self.values) == (self.operator is SelectorOperator.IN)


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """Everything must hold; an empty selector selects all."""

    match_labels: Mapping[str, str] = field(default_factory=dict)
    match_expressions: tuple[LabelRequirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        return all(labels.get(key) == value for key, value in self.match_labels.items()) and all(
            requirement.matches(labels) for requirement in self.match_expressions
        )
