"""Kubernetes objects as plain JSON, and the few metadata fields that everything here keys on.

Reads metadata only; what a pod or a node means is decided by the codec.
"""

from typing import Any

JsonObject = dict[str, Any]
ObjectKey = tuple[str, str]
"""(namespace, name); the namespace of a cluster-scoped object is the empty string."""


def metadata_of(obj: JsonObject) -> JsonObject:
    metadata = obj.get("metadata")
    return metadata if isinstance(metadata, dict) else {}


def key_of(obj: JsonObject) -> ObjectKey:
    metadata = metadata_of(obj)
    return metadata.get("namespace") or "", metadata.get("name") or ""


def uid_of(obj: JsonObject) -> str:
    return metadata_of(obj).get("uid") or ""


def resource_version_of(obj: JsonObject) -> str:
    return metadata_of(obj).get("resourceVersion") or ""


def without_managed_fields(obj: JsonObject) -> JsonObject:
    """The object without its field ownership, which is often half of its size and never read here."""
    metadata = metadata_of(obj)
    if "managedFields" not in metadata:
        return obj
    kept = {name: value for name, value in metadata.items() if name != "managedFields"}
    return {**obj, "metadata": kept}


def is_older_version(resource_version: str, than: str) -> bool:
    """True only if it certainly is. Versions that are not numbers can't be ordered.

    Kubernetes says so of its own resources from 1.35 on; with etcd behind it they have always been numbers.
    """
    if not (resource_version.isdecimal() and than.isdecimal()):
        return False
    return int(resource_version) < int(than)
