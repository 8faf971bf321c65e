"""kube-scheduler's extender protocol: JSON in, JSON out, and nothing else.

The outer keys are Go field names (PascalCase) and are read without regard to case, as Go does; the objects
inside are ordinary Kubernetes JSON. Whatever is malformed raises InvalidRequestError.

A call ends with the names of nearly all nodes. If they come as kube-scheduler writes them, they are checked
but not made into strings.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import orjson

from gpuloom.errors import InvalidRequestError
from gpuloom.kube.objects import uid_of
from services.scheduler_extender.core.verbs.node_names import OfferedNames, listed_text

JsonObject = dict[str, Any]

MAX_NODES = 20_000

_NAMES_BEGIN = b'"NodeNames":['
_NAMES_END = b"]}"
_MOST_REMEMBERED = 8
_MOST_REMEMBERED_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class NodesCall:
    """A filter or prioritize call. `nodes` is set only if kube-scheduler sends whole Node objects."""

    pod: JsonObject
    node_names: OfferedNames
    nodes: tuple[JsonObject, ...] | None = None


@dataclass(frozen=True, slots=True)
class BindCall:
    namespace: str
    name: str
    uid: str
    node_name: str


@dataclass(frozen=True, slots=True)
class FilterAnswer:
    """`failed` may be cured by evicting pods, `hopeless` may not; both say why, per node.

    `best` are the best nodes, best first, and may be more than are answered: they are kept for `explain`.
    """

    node_names: tuple[str, ...]
    failed: Mapping[str, str]
    hopeless: Mapping[str, str]
    best: tuple[str, ...] = ()


def parse_nodes_call(body: bytes) -> NodesCall:
    """Nobody may change the pod: the next call about it may get the same object."""
    names_text, rest = _without_names(body)
    fields = _object(rest) if len(rest) > _MOST_REMEMBERED_BYTES else _remembered_object(rest)
    pod = fields.get("pod")
    if not isinstance(pod, dict):
        raise InvalidRequestError("the call has no Pod object")
    if names_text is not None and fields.get("nodenames", names_text) is None:
        return NodesCall(pod, _bounded(OfferedNames(text=names_text)))
    if names_text is not None:
        # What looked like the names is the end of something else.
        fields = _object(body)
    names, nodes = fields.get("nodenames"), fields.get("nodes")
    if names is not None:
        return NodesCall(pod, _names(names))
    if isinstance(nodes, dict):
        items = nodes.get("items") or []
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            raise InvalidRequestError("Nodes.items is not a list of objects")
        return NodesCall(pod, _names([_node_name(item) for item in items]), tuple(items))
    return NodesCall(pod, OfferedNames())


def parse_bind_call(body: bytes) -> BindCall:
    fields = _object(body)
    values = {}
    for key in ("PodName", "PodNamespace", "PodUID", "Node"):
        value = fields.get(key.lower())
        if not isinstance(value, str) or not value:
            raise InvalidRequestError(f"the bind call has no {key}")
        values[key] = value
    return BindCall(values["PodNamespace"], values["PodName"], values["PodUID"], values["Node"])


def parse_preempt_call(body: bytes) -> JsonObject:
    pod = _object(body).get("pod")
    if not isinstance(pod, dict):
        raise InvalidRequestError("the preempt call has no Pod object")
    return pod


def victims_offered(body: bytes, node_name: str) -> frozenset[str]:
    """UIDs of the pods that kube-scheduler would evict from this node; none if it does not consider it."""
    fields = _object(body)
    for key in ("nodenametometavictims", "nodenametovictims"):
        by_node = fields.get(key)
        victims = by_node.get(node_name) if isinstance(by_node, dict) else None
        pods = victims.get("Pods", victims.get("pods")) if isinstance(victims, dict) else None
        if isinstance(pods, list):
            return frozenset(filter(None, (_victim_uid(pod) for pod in pods)))
    return frozenset()


def _victim_uid(pod: object) -> str:
    """A MetaPod has the UID alone, a Pod has it in its metadata."""
    if not isinstance(pod, dict):
        return ""
    uid: object = pod.get("UID") or pod.get("uid") or uid_of(pod)
    return uid if isinstance(uid, str) else ""


def encode_filter(call: NodesCall, answer: FilterAnswer) -> bytes:
    """Raise InvalidRequestError if a Node of the call, which is sent back as it came, can't be written."""
    kept = set(answer.node_names)
    nodes = None
    if call.nodes is not None:
        nodes = {"metadata": {}, "items": [node for node in call.nodes if _node_name(node) in kept]}
    fields = {
        "Nodes": nodes,
        "NodeNames": None if call.nodes is not None else answer.node_names,
        "FailedNodes": answer.failed,
        "FailedAndUnresolvableNodes": answer.hopeless,
        "Error": "",
    }
    try:
        return orjson.dumps(fields)
    except orjson.JSONEncodeError:
        # More levels can be read than written.
        raise InvalidRequestError("a Node is nested too deeply") from None


def encode_filter_error(text: str) -> bytes:
    return orjson.dumps(
        {
            "Nodes": None,
            "NodeNames": None,
            "FailedNodes": {},
            "FailedAndUnresolvableNodes": {},
            "Error": text,
        }
    )


def encode_scores(scores: Iterable[tuple[str, int]]) -> bytes:
    return orjson.dumps([{"Host": host, "Score": score} for host, score in scores])


def encode_bind(error: str) -> bytes:
    return orjson.dumps({"Error": error})


def encode_no_victims() -> bytes:
    """No node may be freed by eviction: without this answer kube-scheduler would evict and gain nothing."""
    return orjson.dumps({"NodeNameToMetaVictims": {}})


def encode_victims(node_name: str, uids: frozenset[str]) -> bytes:
    victims = {"Pods": [{"UID": uid} for uid in sorted(uids)], "NumPDBViolations": 0}
    return orjson.dumps({"NodeNameToMetaVictims": {node_name: victims}})


def _object(body: bytes) -> JsonObject:
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidRequestError(f"the body is not JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise InvalidRequestError("the body is not a JSON object")
    return {key.lower(): value for key, value in parsed.items()}


@lru_cache(maxsize=_MOST_REMEMBERED)
def _remembered_object(body: bytes) -> JsonObject:
    """A prioritize comes with the pod of the filter before it, to the letter."""
    return _object(body)


def _without_names(body: bytes) -> tuple[bytes | None, bytes]:
    """The text of the names at the end of a call, and the same JSON with null in their place.

    None where there is anything else at the end. A list was replaced by null, so the rest is JSON exactly if
    the body is; whose value the list was, only the rest tells.
    """
    begin = body.rfind(_NAMES_BEGIN)
    if begin < 0 or not body.endswith(_NAMES_END):
        return None, body
    text = body[begin + len(_NAMES_BEGIN) : -len(_NAMES_END)]
    if not listed_text(text):
        return None, body
    return text, body[: begin + len(_NAMES_BEGIN) - 1] + b"null}"


def _names(values: object) -> OfferedNames:
    # Types as a set: this is asked of thousands of names in every call.
    if not isinstance(values, list) or not set(map(type, values)) <= {str}:
        raise InvalidRequestError("NodeNames is not a list of strings")
    return _bounded(OfferedNames(values))


def _bounded(names: OfferedNames) -> OfferedNames:
    if len(names) > MAX_NODES:
        raise InvalidRequestError(f"more than {MAX_NODES} nodes in one call")
    return names


def _node_name(node: JsonObject) -> str:
    metadata = node.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not isinstance(name, str) or not name:
        raise InvalidRequestError("a Node without metadata.name")
    return name
