"""Which pending pods wait for a slice that could be made. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from gpuloom.codec.fields import JsonObject, object_field
from gpuloom.codec.pod import bound_node, is_terminal, pod_ref, pod_request
from gpuloom.errors import InvalidRequestError
from gpuloom.model.node import PodRef
from gpuloom.model.request import Authority, RequestKind


@dataclass(frozen=True, slots=True)
class Wish:
    """A pod that waits for one slice. Empty `models` and `architectures`: any."""

    pod: PodRef
    profile: str
    models: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    priority: int = 0
    since_s: float = 0.0

    def takes(self, model: str, architecture: str) -> bool:
        return (not self.models or model in self.models) and (
            not self.architectures or architecture in self.architectures
        )


def wish_of(pod: JsonObject, since_s: float) -> Wish | None:
    """What this pod waits for; None if it does not wait, or for nothing that is cut on demand."""
    try:
        request = None if bound_node(pod) or is_terminal(pod) or _is_held_back(pod) else pod_request(pod)
        if request is None or request.gpu.kind is not RequestKind.MIG:
            return None
        if request.gpu.authority is not Authority.GPULOOM or request.gpu.mig_profile is None:
            return None
        spec = object_field(pod, "spec", "pod")
        priority = spec.get("priority")
        return Wish(
            pod=pod_ref(pod),
            profile=request.gpu.mig_profile,
            models=request.gpu.models,
            architectures=request.gpu.architectures,
            priority=priority if isinstance(priority, int) else 0,
            since_s=since_s,
        )
    except InvalidRequestError:
        # The extender tells its owner what is wrong with it.
        return None


def wishes_of(pods: Iterable[JsonObject], since_s: Mapping[str, float], now_s: float) -> tuple[Wish, ...]:
    """Those that wait, the most urgent first; `since_s` by pod UID, as the controller saw them first."""
    found = []
    for pod in pods:
        wish = wish_of(pod, now_s)
        if wish is not None:
            found.append(replace(wish, since_s=since_s.get(wish.pod.uid, now_s)))
    return tuple(sorted(found, key=lambda wish: (-wish.priority, wish.since_s, str(wish.pod))))


def _is_held_back(pod: JsonObject) -> bool:
    """Gated, or on its way out: nobody is to schedule it now."""
    metadata, spec = object_field(pod, "metadata", "pod"), object_field(pod, "spec", "pod")
    return bool(metadata.get("deletionTimestamp") or spec.get("schedulingGates"))
