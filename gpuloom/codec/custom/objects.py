"""Metadata, conditions and label selectors of custom resources."""

from collections.abc import Iterable

from gpuloom.codec.custom.reading import (
    MAX_LABEL,
    MAX_MESSAGE,
    Fields,
    Json,
    each,
    moment,
    name,
    one_of,
    part,
    text,
    text_map,
    time_text,
    whole,
)
from gpuloom.model.objects import (
    Condition,
    ConditionStatus,
    LabelRequirement,
    LabelSelector,
    ObjectMeta,
    SelectorOperator,
)

MAX_QUALIFIED = 317
"""A prefix, a slash and a name, as labels have them."""


def opened(obj: object) -> tuple[ObjectMeta, Fields, Fields]:
    """An object's metadata, its spec, and its status, which may be absent."""
    fields = Fields(obj, "")
    spec = fields.need("spec", part(_itself))
    status = fields.get("status", part(_itself)) or Fields({}, "status")
    return fields.need("metadata", part(_metadata)), spec, status


def conditions(fields: Fields) -> tuple[Condition, ...]:
    return fields.get_or("conditions", each(part(_condition), 16), ())


def conditions_to_json(told: Iterable[Condition]) -> list[Json]:
    return [
        {
            "type": one.type,
            "status": one.status.value,
            "reason": one.reason,
            "message": one.message,
            "lastTransitionTime": time_text(one.last_transition),
            "observedGeneration": one.observed_generation,
        }
        for one in told
    ]


def selector(fields: Fields) -> LabelSelector:
    return LabelSelector(
        match_labels=fields.get_or("matchLabels", text_map(64), {}),
        match_expressions=fields.get_or("matchExpressions", each(part(_requirement), 32), ()),
    )


def _itself(fields: Fields) -> Fields:
    return fields


def _metadata(fields: Fields) -> ObjectMeta:
    return ObjectMeta(
        name=fields.need("name", name()),
        namespace=fields.get_or("namespace", text(MAX_LABEL), ""),
        uid=fields.get_or("uid", text(128), ""),
        resource_version=fields.get_or("resourceVersion", text(128), ""),
        generation=fields.get_or("generation", whole(0), 0),
    )


def _condition(fields: Fields) -> Condition:
    return Condition(
        type=fields.need("type", text(316, shortest=1)),
        status=fields.need("status", one_of(ConditionStatus)),
        reason=fields.need("reason", text(1024, shortest=1)),
        message=fields.need("message", text(MAX_MESSAGE)),
        last_transition=fields.need("lastTransitionTime", moment),
        observed_generation=fields.get("observedGeneration", whole(0)),
    )


def _requirement(fields: Fields) -> LabelRequirement:
    return LabelRequirement(
        key=fields.need("key", name(MAX_QUALIFIED)),
        operator=fields.need("operator", one_of(SelectorOperator)),
        values=fields.get_or("values", each(name(MAX_LABEL), 64), ()),
    )
