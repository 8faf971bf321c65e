"""Who may write what on pods, where the API server has no ValidatingAdmissionPolicy (before 1.30).

The same rule as the shipped policy: only the extender writes allocations. It fails closed, for these alone.
"""

from collections.abc import Mapping
from typing import Any

from gpuloom.names import (
    ANNOTATION_ALLOCATION,
    ANNOTATION_EPOCH,
    ANNOTATION_RESERVATION,
    ANNOTATION_VISIBLE_DEVICES,
)
from services.webhook.core.reviews import Review

GUARDED = (ANNOTATION_ALLOCATION, ANNOTATION_VISIBLE_DEVICES, ANNOTATION_EPOCH)
KINDS = frozenset({"Pod", "Binding"})
"""The API server copies the annotations of a Binding to its pod."""


def refusal(review: Review, writers: frozenset[str]) -> str | None:
    """Why this write must not be; None if it may."""
    if review.user in writers:
        return None
    before, after = _annotations(review.old), _annotations(review.object)
    # Which reservation a pod insists on it may say when it is made; which one it uses only its Binding says.
    is_new_pod = review.kind == "Pod" and not review.old
    for name in GUARDED if is_new_pod else (*GUARDED, ANNOTATION_RESERVATION):
        if before.get(name) != after.get(name):
            return (
                f"only GPULoom's scheduler extender writes {name}; leave it out, and the pod gets its GPUs "
                "when it is scheduled"
            )
    return None


def _annotations(obj: Mapping[str, Any]) -> Mapping[str, Any]:
    found = (obj.get("metadata") or {}).get("annotations")
    return found if isinstance(found, dict) else {}
