"""Names under gpuloom.dev/ on a pod that nothing reads: most likely misspelled. Pure."""

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from itertools import chain, islice
from typing import Any

from gpuloom.names import POD_KEYS, POD_RESOURCES, PREFIX

JsonObject = dict[str, Any]

MAX_NAMED = 8
MAX_NAME = 120


def unknown_names(pod: JsonObject) -> tuple[str, ...]:
    """A sentence for each such label, annotation and resource, in order; at most a few."""
    metadata = pod.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    # One by one: to look for what was meant takes a while, and a pod may have tens of thousands.
    found = chain(
        (_sentence("annotation", name, POD_KEYS) for name in _ours(metadata.get("annotations"))),
        (_sentence("label", name, POD_KEYS) for name in _ours(metadata.get("labels"))),
        (_sentence("resource", name, POD_RESOURCES) for name in sorted(set(_resources(pod)))),
    )
    return tuple(islice(filter(None, found), MAX_NAMED))


def _sentence(kind: str, name: str, known: frozenset[str]) -> str:
    if name in known:
        return ""
    close = get_close_matches(name, sorted(known), n=1, cutoff=0.8)
    shown = name if len(name) <= MAX_NAME else f"{name[:MAX_NAME]}…"
    hint = f"; did you mean {close[0]}?" if close else ""
    return f"{kind} {shown} means nothing to this version of GPULoom{hint}"


def _resources(pod: JsonObject) -> Iterator[str]:
    spec = pod.get("spec")
    for key in ("initContainers", "containers"):
        containers = spec.get(key) if isinstance(spec, dict) else None
        for container in containers if isinstance(containers, list) else ():
            resources = container.get("resources") if isinstance(container, dict) else None
            for part in ("limits", "requests"):
                yield from _ours(resources.get(part) if isinstance(resources, dict) else None)


def _ours(mapping: object) -> Iterable[str]:
    return sorted(name for name in mapping if name.startswith(PREFIX)) if isinstance(mapping, dict) else ()
