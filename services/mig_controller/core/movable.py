"""Which pods may be moved to make room, and what that would cost of their work. Pure."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from gpuloom.codec.pod import pod_ref
from gpuloom.errors import InvalidRequestError
from gpuloom.kube.parse import parse_time
from gpuloom.model.gpu import MILLI_PER_GPU
from gpuloom.model.money import NANO_PER_USD
from gpuloom.names import ANNOTATION_CHECKPOINT_TIME, ANNOTATION_NO_DISRUPT, ANNOTATION_NO_PREEMPT, LABEL_GANG

Pod = Mapping[str, Any]
_MIRROR = "kubernetes.io/config.mirror"


def reason_to_stay(pod: Pod) -> str:
    """Why this pod is not moved; empty if it may be. PodDisruptionBudgets are the API server's to heed."""
    metadata = pod.get("metadata") or {}
    annotations, labels = metadata.get("annotations") or {}, metadata.get("labels") or {}
    for name in (ANNOTATION_NO_DISRUPT, ANNOTATION_NO_PREEMPT):
        if str(annotations.get(name, "")).lower() == "true":
            return f"it says {name}"
    if labels.get(LABEL_GANG):
        return "it is a member of a gang, which would stand still as a whole"
    owner = _controller(metadata)
    if owner is None or _MIRROR in annotations:
        return "no controller would make it anew elsewhere"
    if owner.get("kind") == "DaemonSet":
        return "it belongs to its node"
    return ""


def name_of(pod: Pod) -> str:
    """As in the owner of a slice; empty for what is no pod."""
    try:
        return str(pod_ref(pod))
    except InvalidRequestError:
        return ""


def usd_lost(pod: Pod, milli: int, nano_usd_per_gpu_hour: int | None, now: datetime) -> float | None:
    """What its slice cost since it began, or since it last saved its work; None if that is not known."""
    since = _since(pod)
    if since is None or nano_usd_per_gpu_hour is None:
        return None
    hours = max(0.0, (now - since).total_seconds()) / 3600
    return hours * milli / MILLI_PER_GPU * nano_usd_per_gpu_hour / NANO_PER_USD


def _since(pod: Pod) -> datetime | None:
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    times = (annotations.get(ANNOTATION_CHECKPOINT_TIME), (pod.get("status") or {}).get("startTime"))
    found = [time for text in times if (time := _time(text)) is not None]
    return max(found, default=None)


def _time(text: object) -> datetime | None:
    try:
        return parse_time(text) if isinstance(text, str) else None
    except ValueError:
        return None


def _controller(metadata: Mapping[str, Any]) -> Mapping[str, Any] | None:
    owners = metadata.get("ownerReferences") or ()
    return next((owner for owner in owners if owner.get("controller")), None)
