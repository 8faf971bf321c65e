"""Sizes of gangs from the objects that own their pods: read when needed, never listed or watched.

A kind that is not installed, or may not be read, says nothing. Answers are kept for a while, since the pods
of one owner come together.
"""

import logging
from collections import OrderedDict

from gpuloom.errors import GpuloomError, NotFoundError
from gpuloom.kube.client import KubeClient
from gpuloom.kube.objects import JsonObject, metadata_of
from gpuloom.kube.resources import GANG_OWNERS, JOBS, LEADER_WORKER_SETS, Resource
from gpuloom.runtime.clock import Clock
from services.scheduler_extender.core.gangs.sizes import size_by_owner

KEPT_S = 30.0
MOST_KEPT = 1000
MOST_STEPS = 3
LABEL_LEADER_WORKER_SET = "leaderworkerset.sigs.k8s.io/name"

_BY_KIND = {resource.kind: resource for resource in GANG_OWNERS}

_log = logging.getLogger(__name__)


class OwnerSizes:
    def __init__(self, client: KubeClient, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._kept: OrderedDict[tuple[str, str, str], tuple[float, JsonObject | None]] = OrderedDict()

    async def size_of(self, pod: JsonObject) -> int | None:
        """By the owner that is furthest up and says so: a JobSet knows more than one of its Jobs."""
        namespace = str(metadata_of(pod).get("namespace") or "default")
        labels = metadata_of(pod).get("labels") or {}
        if name := labels.get(LABEL_LEADER_WORKER_SET):
            found = await self._get(LEADER_WORKER_SETS, str(name), namespace)
            return None if found is None else size_by_owner(LEADER_WORKER_SETS.kind, found)
        size: int | None = None
        owner = _controller(pod)
        for _ in range(MOST_STEPS):
            resource = None if owner is None else _BY_KIND.get(owner[0])
            if owner is None or resource is None or (size is not None and resource is JOBS):
                break
            found = await self._get(resource, owner[1], namespace)
            if found is None:
                break
            size = size_by_owner(resource.kind, found) or size
            owner = _controller(found)
        return size

    async def _get(self, resource: Resource, name: str, namespace: str) -> JsonObject | None:
        key = resource.kind, namespace, name
        kept = self._kept.get(key)
        if kept is not None and self._clock.monotonic() - kept[0] < KEPT_S:
            return kept[1]
        try:
            found: JsonObject | None = await self._client.get(resource, name, namespace, timeout_s=3.0)
        except NotFoundError:
            found = None
        except GpuloomError as error:
            _log.info("owner of a gang not read", extra={"owner": "/".join(key), "reason": str(error)})
            return None
        self._kept[key] = self._clock.monotonic(), found
        if len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)
        return found


def _controller(obj: JsonObject) -> tuple[str, str] | None:
    """Kind and name of what controls it."""
    owners = metadata_of(obj).get("ownerReferences")
    for owner in owners if isinstance(owners, list) else ():
        if isinstance(owner, dict) and owner.get("controller") is True:
            return str(owner.get("kind")), str(owner.get("name"))
    return None
