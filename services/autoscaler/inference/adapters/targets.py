"""Scale targets in Kubernetes: which resource a kind is, its scale, its pods, and who else scales it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpuloom.errors import InvalidRequestError, NotAllowedError, NotFoundError
from gpuloom.kube.client import KubeClient
from gpuloom.kube.listing import Selection
from gpuloom.kube.objects import JsonObject, key_of, metadata_of, resource_version_of, uid_of
from gpuloom.kube.parse import parse_time
from gpuloom.kube.resources import DEPLOYMENTS, PODS, Resource
from gpuloom.model.policies import ScaleTarget
from services.autoscaler.inference.core.measures import Replicas

HPAS = Resource("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler")
INFERENCE_SERVICE = "InferenceService"
SETTLED_AFTER = timedelta(seconds=120)
_GROUP_VERSION = re.compile(r"([a-z0-9.-]+/)?v[0-9][a-z0-9]*")


@dataclass(frozen=True, slots=True)
class Scale:
    """As read from the target's scale subresource."""

    resource: Resource
    namespace: str
    name: str
    uid: str
    version: str
    replicas: int
    selector: str


class Targets:
    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._known: dict[tuple[str, str], Resource] = {}

    async def read(self, target: ScaleTarget, namespace: str) -> Scale:
        """NotFoundError if there is none; InvalidRequestError if it has no scale."""
        resource, name = await self._place(target)
        scale = await self._client.get_scale(resource, name, namespace)
        spec, status = scale.get("spec") or {}, scale.get("status") or {}
        return Scale(
            resource,
            namespace,
            name,
            uid_of(scale),
            resource_version_of(scale),
            int(spec.get("replicas") or 0),
            str(status.get("selector") or ""),
        )

    async def write(self, scale: Scale, replicas: int, timeout_s: float) -> None:
        """ConflictError if anything of the target changed since it was read."""
        await self._client.patch_scale(
            scale.resource,
            scale.name,
            scale.namespace,
            replicas,
            resource_version=scale.version,
            timeout_s=timeout_s,
        )

    async def object(self, scale: Scale) -> JsonObject | None:
        """The target itself; None if we may not read it, which only explanations need."""
        try:
            return await self._client.get(scale.resource, scale.name, scale.namespace)
        except (NotAllowedError, NotFoundError):
            return None

    async def autoscalers(self, namespace: str) -> Sequence[JsonObject]:
        try:
            return (await self._client.list(HPAS, Selection(namespace=namespace))).items
        except NotFoundError:
            # An API server without autoscaling/v2 has nobody to interfere.
            return ()

    async def pods(self, scale: Scale) -> Sequence[JsonObject]:
        if not scale.selector:
            return ()
        selection = Selection(namespace=scale.namespace, label_selector=scale.selector)
        return (await self._client.list(PODS, selection)).items

    async def _place(self, target: ScaleTarget) -> tuple[Resource, str]:
        kind, name = scaled_object(target.api_version, target.kind, target.name)
        if kind != target.kind:
            return DEPLOYMENTS, name
        key = target.api_version, target.kind
        if key not in self._known:
            self._known[key] = await self._discover(target)
        return self._known[key], target.name

    async def _discover(self, target: ScaleTarget) -> Resource:
        if not _GROUP_VERSION.fullmatch(target.api_version):
            raise InvalidRequestError(f"{target.api_version} is no API version")
        served = await self._client.served(target.api_version)
        plural = next(
            (one["name"] for one in served if one.get("kind") == target.kind and "/" not in one["name"]), ""
        )
        if not plural:
            raise InvalidRequestError(f"{target.api_version} has no kind {target.kind}")
        if f"{plural}/scale" not in {one["name"] for one in served}:
            raise InvalidRequestError(f"{target.kind} has no scale subresource")
        group, _, version = target.api_version.rpartition("/")
        return Resource(group, version, plural, target.kind)


def scaled_object(api_version: str, kind: str, name: str) -> tuple[str, str]:
    """Kind and name of what is really scaled: an InferenceService has no scale, its Deployment has."""
    if kind == INFERENCE_SERVICE and api_version.startswith("serving.kserve.io/"):
        return DEPLOYMENTS.kind, f"{name}-predictor"
    return kind, name


def replicas_of(current: int, pods: Sequence[JsonObject], now: datetime) -> Replicas:
    """Pods that end count for nothing; those that are not ready yet are on their way."""
    alive = [pod for pod in pods if not _ends(pod)]
    since = {key_of(pod)[1]: _ready_since(pod) for pod in alive}
    ready = {name: at for name, at in since.items() if at is not None}
    settled = sum(now - at >= SETTLED_AFTER for at in ready.values())
    # A controller makes its pods a moment after the number: what is asked for is on its way as well.
    starting = max(current, len(alive)) - len(ready)
    return Replicas(current, tuple(sorted(ready)), starting, settled, tuple(sorted(since)))


def cold_starts_s(pods: Sequence[JsonObject]) -> list[float]:
    """Of pods that became ready once and stayed so: from their creation on, so with the wait for a node."""
    found = []
    for pod in pods:
        created, since = _time(metadata_of(pod).get("creationTimestamp")), _ready_since(pod)
        containers = (pod.get("status") or {}).get("containerStatuses") or ()
        if (
            created is not None
            and since is not None
            and not any(one.get("restartCount") for one in containers)
        ):
            found.append(max(0.0, (since - created).total_seconds()))
    return found


def _ends(pod: JsonObject) -> bool:
    finished = (pod.get("status") or {}).get("phase") in ("Failed", "Succeeded")
    return finished or bool(metadata_of(pod).get("deletionTimestamp"))


def _ready_since(pod: JsonObject) -> datetime | None:
    for one in (pod.get("status") or {}).get("conditions") or ():
        if one.get("type") == "Ready" and one.get("status") == "True":
            return _time(one.get("lastTransitionTime")) or _time(metadata_of(pod).get("creationTimestamp"))
    return None


def _time(raw: str | None) -> datetime | None:
    return parse_time(raw) if raw else None
