"""The extender's HTTP protocol as kube-scheduler speaks it: JSON bodies in, checked answers out. Pure.

Keys are read without regard to case, as Go does; what a Go program would drop silently is dropped here too,
and what makes it fail raises ExtenderError.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from gpuloom.errors import GpuloomError
from gpuloom.kube.objects import JsonObject
from gpuloom.model.node import PodRef


class ExtenderError(GpuloomError):
    """The extender failed, answered nonsense, or said Error; the text goes to the pod's event."""


@dataclass(frozen=True, slots=True)
class FilterAnswer:
    nodes: tuple[str, ...]
    refused: Mapping[str, str] = field(default_factory=dict)


def filter_request(pod: JsonObject, nodes: Sequence[str]) -> bytes:
    return orjson.dumps({"Pod": pod, "Nodes": None, "NodeNames": list(nodes)})


def bind_request(pod: PodRef, node: str) -> bytes:
    return orjson.dumps({"PodName": pod.name, "PodNamespace": pod.namespace, "PodUID": pod.uid, "Node": node})


def filter_answer(body: bytes, asked: Sequence[str]) -> FilterAnswer:
    answer = _object(_json(body))
    _raise_error_field(answer)
    names = tuple(_strings(answer.get("nodenames")))
    unknown = set(names) - set(asked)
    if unknown:
        raise ExtenderError(f"extender returned node {sorted(unknown)[0]!r}, which was not asked about")
    refused: dict[str, str] = {}
    for key in ("failednodes", "failedandunresolvablenodes"):
        reasons = {} if answer.get(key) is None else answer[key]
        if not isinstance(reasons, dict) or not all(isinstance(text, str) for text in reasons.values()):
            raise ExtenderError(f"extender's answer: {key} must map node names to texts")
        refused |= reasons
    return FilterAnswer(names, refused)


def prioritize_answer(body: bytes) -> dict[str, int]:
    """Scores are whole numbers: one float loses the whole answer, as in Go."""
    answer = _json(body)
    if answer is None:
        return {}
    if not isinstance(answer, list):
        raise ExtenderError("extender's priorities must be a list")
    scores = {}
    for entry in answer:
        fields = _object(entry)
        host, score = fields.get("host", ""), fields.get("score", 0)
        if not isinstance(host, str) or isinstance(score, bool) or not isinstance(score, int):
            raise ExtenderError("an extender's priority has a Host (text) and a Score (whole number)")
        scores[host] = score
    return scores


def bind_answer(body: bytes) -> None:
    _raise_error_field(_object(_json(body)))


def _raise_error_field(answer: Mapping[str, Any]) -> None:
    error = answer.get("error") or ""
    if not isinstance(error, str):
        raise ExtenderError("extender's answer: Error must be a text")
    if error:
        raise ExtenderError(error)


def _json(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ExtenderError(f"extender's answer is not JSON: {error}") from None


def _object(value: Any) -> dict[str, Any]:
    """null is an empty answer."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ExtenderError(f"extender's answer must be an object, not {type(value).__name__}")
    return {key.lower(): entry for key, entry in value.items()}


def _strings(value: Any) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
        raise ExtenderError("extender's answer: NodeNames must be a list of texts")
    return value
