"""Who else sets the number of replicas of a target: another autoscaler, another policy, or a program.

One change by somebody else is a person's, and respected. Several in a short time are a fight, which nobody
wins: we stop and say who it is.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

FIGHT_WINDOW = timedelta(minutes=10)
FIGHT_CHANGES = 3
"""Our numbers that somebody else replaced within the window."""
OURS = "gpuloom"
EXTERNAL = {"external", "none"}
AUTOSCALER_CLASS = "serving.kserve.io/autoscalerClass"

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Written:
    """What we set last, and when it was replaced by others since."""

    replicas: int | None = None
    replaced: tuple[datetime, ...] = ()
    stopped_until: datetime | None = None

    def wrote(self, replicas: int) -> "Written":
        return replace(self, replicas=replicas)

    def observed(self, replicas: int, now: datetime) -> "Written":
        """With what is there now. A number that is not ours counts once."""
        if self.replicas is None or replicas == self.replicas:
            return self
        recent = tuple(at for at in self.replaced if now - at < FIGHT_WINDOW)
        replaced = (*recent, now)
        stopped = now + FIGHT_WINDOW if len(replaced) >= FIGHT_CHANGES else self.stopped_until
        return Written(None, replaced, stopped)

    def is_fight(self, now: datetime) -> bool:
        return self.stopped_until is not None and now < self.stopped_until


def other_autoscalers(hpas: Iterable[Json], kind: str, name: str) -> Iterator[str]:
    """HorizontalPodAutoscalers on the same target; KEDA and KServe work through one."""
    for hpa in hpas:
        target = (hpa.get("spec") or {}).get("scaleTargetRef") or {}
        if target.get("kind") == kind and target.get("name") == name:
            metadata = hpa.get("metadata") or {}
            owners = [
                f" of {one.get('kind')} {one.get('name')}" for one in metadata.get("ownerReferences") or ()
            ]
            yield f"HorizontalPodAutoscaler {metadata.get('name')}{''.join(owners)}"


def kserve_problem(target: Json) -> str:
    """Why KServe would scale the Deployment itself; empty if it is told not to, or it is none of its own."""
    metadata = target.get("metadata") or {}
    services = [one for one in metadata.get("ownerReferences") or () if one.get("kind") == "InferenceService"]
    if not services:
        return ""
    present = (metadata.get("annotations") or {}).get(AUTOSCALER_CLASS, "hpa")
    if present in EXTERNAL:
        return ""
    return (
        f"InferenceService {services[0].get('name')} has the autoscaler class {present}; "
        f"annotate it with {AUTOSCALER_CLASS}: external"
    )


def replicas_owner(target: Json) -> str:
    """The field manager that wrote spec.replicas last, other than us; empty if nobody did."""
    found = []
    for entry in (target.get("metadata") or {}).get("managedFields") or ():
        spec = (entry.get("fieldsV1") or {}).get("f:spec") or {}
        if "f:replicas" in spec and entry.get("manager") != OURS:
            found.append((str(entry.get("time") or ""), str(entry.get("manager") or "somebody")))
    return max(found)[1] if found else ""


def first_claim(claims: Sequence[tuple[str, str, str]]) -> str:
    """Of policies on one target, the one that acts: the oldest, then by name. (created, name, uid) each."""
    return min(claims)[2]
