"""What of a pod decides the advice on it, so that pods of one kind are one question.

The names of single pods, the index of a Job's pod, or the volume of its service account's token say nothing
about what it needs: hundreds of pods that come at once are asked about once.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

import orjson

Json = dict[str, Any]

_OUR_MARKS = ("gpuloom.dev/", "gpu-autoscaler.io/")
_TEMPLATE_HASH = "pod-template-hash"
_OF_A_CONTAINER = ("name", "image", "command", "args", "resources", "ports", "restartPolicy")
_OF_AN_OWNER = ("kind", "name", "controller")


def question_of(pod: Mapping[str, Any]) -> Json:
    """The pod without what makes no difference. What is no pod is left as it is, and judged elsewhere."""
    metadata, spec = pod.get("metadata"), pod.get("spec")
    return {
        "metadata": _identity(metadata) if isinstance(metadata, dict) else metadata,
        "spec": _work(spec) if isinstance(spec, dict) else spec,
    }


def key_of_question(question: Json, namespace: str) -> bytes:
    """The same for equal questions. Raise TypeError for JSON that is too deep to write."""
    text = orjson.dumps([namespace, question], option=orjson.OPT_SORT_KEYS)
    return hashlib.blake2b(text, digest_size=16).digest()


def _identity(metadata: Json) -> Json:
    owners = metadata.get("ownerReferences")
    known = [one for one in owners if isinstance(one, dict)] if isinstance(owners, list) else []
    controllers = [_picked(one, _OF_AN_OWNER) for one in known if one.get("controller")]
    kept = {key: _ours(metadata.get(key)) for key in ("labels", "annotations")}
    if controllers:
        return {**kept, "ownerReferences": controllers}
    name = "generateName" if metadata.get("generateName") else "name"
    return {**kept, name: metadata.get(name)}


def _work(spec: Json) -> Json:
    kept = _picked(spec, ("resources", "overhead"))
    for kind in ("initContainers", "containers"):
        found = spec.get(kind)
        if isinstance(found, list):
            found = [_picked(one, _OF_A_CONTAINER) if isinstance(one, dict) else one for one in found]
        if found is not None:
            kept[kind] = found
    return kept


def _ours(marks: object) -> object:
    if not isinstance(marks, dict):
        return marks
    return {key: marks[key] for key in marks if key.startswith(_OUR_MARKS) or key == _TEMPLATE_HASH}


def _picked(values: Json, keys: tuple[str, ...]) -> Json:
    return {key: values[key] for key in keys if key in values}
