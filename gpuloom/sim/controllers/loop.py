"""Carries out what the controllers decide: follows objects, asks the planners, writes, waits to see it.

An object is planned again only when every write of its last plan has shown up in the caches; a write that
never shows (an object gone at once, a cache that lists anew) holds it for EXPECTATION_S at most.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from gpuloom.errors import ConflictError, GpuloomError, NotFoundError
from gpuloom.kube.cache import Change
from gpuloom.kube.client import DeleteOptions, KubeClient
from gpuloom.kube.informer import Informer, InformerOptions
from gpuloom.kube.objects import JsonObject, key_of, metadata_of, resource_version_of
from gpuloom.kube.resources import DEPLOYMENTS, JOBS, NODES, PODS, REPLICASETS, STATEFULSETS, Resource
from gpuloom.runtime.clock import Clock
from gpuloom.sim.controllers.decision import Action, Create, Decision, Delete
from gpuloom.sim.controllers.deployments import plan_deployment
from gpuloom.sim.controllers.jobs import plan_job, release_pods
from gpuloom.sim.controllers.lost_pods import find_lost_pods
from gpuloom.sim.controllers.pods import controller_of, is_controlled_by, is_deleting
from gpuloom.sim.controllers.replica_sets import plan_replica_set
from gpuloom.sim.controllers.stateful_sets import plan_stateful_set
from gpuloom.sim.wakeup import wait_changed

_log = logging.getLogger(__name__)

EXPECTATION_S = 10.0
RETRY_S = 1.0
LOST_PODS_INTERVAL_S = 10.0
_OWNER = "owner"

Key = tuple[str, str, str]
"""(kind, namespace, name) of a workload."""
Planner = Callable[[JsonObject, Sequence[JsonObject], datetime], Decision]


@dataclass(frozen=True, slots=True)
class Controller:
    """`owned` is the kind of object that the workload makes."""

    resource: Resource
    owned: Resource
    plan: Planner


CONTROLLERS = {
    controller.resource.kind: controller
    for controller in (
        Controller(JOBS, PODS, plan_job),
        Controller(DEPLOYMENTS, REPLICASETS, plan_deployment),
        Controller(REPLICASETS, PODS, plan_replica_set),
        Controller(STATEFULSETS, PODS, plan_stateful_set),
    )
}


@dataclass(frozen=True, slots=True)
class _Expectation:
    """A write that must show: an object at `version` or later, or the end of the object of that `uid`."""

    resource: Resource
    expires_s: float
    version: int = 0
    uid: str = ""


class ControllerLoop:
    """`run` until cancelled."""

    def __init__(self, client: KubeClient, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        resources = (PODS, NODES, REPLICASETS, DEPLOYMENTS, STATEFULSETS, JOBS)
        options = InformerOptions(indexes={_OWNER: _owner_values})
        self._informers = {one: Informer(client, one, clock, options) for one in resources}
        self._seen = dict.fromkeys(resources, 0)
        self._due_s: dict[Key, float] = {}
        self._expected: dict[Key, list[_Expectation]] = {}
        self._changed = asyncio.Event()
        self._missing_since_s: dict[str, float] = {}
        for resource, informer in self._informers.items():
            informer.on_change(self._follower(resource))

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for informer in self._informers.values():
                tasks.create_task(informer.run())
            for informer in self._informers.values():
                # With half of the pods known, the other half would be made again.
                await informer.wait_synced()
            tasks.create_task(self._delete_lost_pods())
            await self._work()

    async def _work(self) -> None:
        while True:
            self._changed.clear()
            now_s = self._clock.monotonic()
            for key in sorted(key for key, due_s in self._due_s.items() if due_s <= now_s):
                del self._due_s[key]
                await self._reconcile(key)
            next_s = min(self._due_s.values(), default=math.inf)
            timeout_s = None if next_s == math.inf else max(0.0, next_s - self._clock.monotonic())
            await wait_changed(self._changed, self._clock, timeout_s)

    async def _reconcile(self, key: Key) -> None:
        if (wait_s := self._unseen_s(key)) > 0:
            self._wake(key, wait_s)
            return
        decision = self._plan(key)
        if decision.wake_after_s is not None:
            self._wake(key, decision.wake_after_s)
        try:
            for action in decision.actions:
                await self._carry_out(key, action)
        except (ConflictError, NotFoundError):
            # The cache is behind; what it lacks wakes this key. The pause is for a change that did not.
            self._wake(key, RETRY_S)
        except GpuloomError as error:
            _log.warning("workload not reconciled", extra={"workload": "/".join(key), "error": str(error)})
            self._wake(key, RETRY_S)

    def _plan(self, key: Key) -> Decision:
        kind, namespace, name = key
        controller = CONTROLLERS[kind]
        workload = self._informers[controller.resource].get(name, namespace)
        owned = self._informers[controller.owned].by_index(_OWNER, "/".join(key))
        if kind == JOBS.kind:
            lost = [pod for pod in owned if workload is None or not is_controlled_by(pod, workload)]
            if lost:
                return Decision(release_pods(lost))
        if workload is None:
            return Decision()
        mine = [obj for obj in owned if is_controlled_by(obj, workload)]
        mine.sort(key=key_of)
        typed = {"apiVersion": controller.resource.api_version, "kind": kind, **workload}
        return controller.plan(typed, mine, self._clock.now())

    async def _carry_out(self, key: Key, action: Action) -> None:
        client, expires_s = self._client, self._clock.monotonic() + EXPECTATION_S
        if isinstance(action, Delete):
            await self._delete(action)
            expected = _Expectation(action.resource, expires_s, uid=action.uid)
        else:
            if isinstance(action, Create):
                written = await client.create(action.resource, action.obj)
            else:
                patch = client.patch_status if action.status else client.patch
                place = (action.resource, action.name, action.namespace)
                written = await patch(*place, action.body, resource_version=action.version)
            expected = _Expectation(action.resource, expires_s, version=_version(written))
        self._expected.setdefault(key, []).append(expected)

    async def _delete(self, action: Delete) -> None:
        options = DeleteOptions(uid=action.uid, grace_period_s=0 if action.force else None)
        try:
            await self._client.delete(action.resource, action.name, action.namespace, options)
        except NotFoundError:
            return

    def _unseen_s(self, key: Key) -> float:
        """How long to wait at most for writes that the caches don't show yet; 0: all are there."""
        now_s = self._clock.monotonic()
        unseen = [
            one for one in self._expected.pop(key, ()) if one.expires_s > now_s and not self._is_seen(one)
        ]
        if not unseen:
            return 0.0
        self._expected[key] = unseen
        return max(one.expires_s for one in unseen) - now_s

    def _is_seen(self, expected: _Expectation) -> bool:
        if expected.uid:
            obj = self._informers[expected.resource].by_uid(expected.uid)
            return obj is None or is_deleting(obj)
        return self._seen[expected.resource] >= expected.version

    def _follower(self, resource: Resource) -> Callable[[Change], None]:
        def follow(change: Change) -> None:
            self._seen[resource] = max(self._seen[resource], _version(change.object))
            if resource.kind in CONTROLLERS:
                self._wake((resource.kind, *change.key))
            for value in _owner_values(change.object):
                kind, namespace, name = value.split("/")
                self._wake((kind, namespace, name))

        return follow

    def _wake(self, key: Key, after_s: float = 0.0) -> None:
        due_s = self._clock.monotonic() + after_s
        self._due_s[key] = min(due_s, self._due_s.get(key, math.inf))
        self._changed.set()

    async def _delete_lost_pods(self) -> None:
        while True:
            nodes = {metadata_of(node)["name"] for node in self._informers[NODES].objects()}
            pods = self._informers[PODS].objects()
            lost = find_lost_pods(pods, nodes, self._missing_since_s, self._clock.monotonic())
            self._missing_since_s = dict(lost.missing_since_s)
            for deletion in lost.deletions:
                try:
                    await self._delete(deletion)
                except GpuloomError as error:
                    _log.warning("lost pod not deleted", extra={"pod": deletion.name, "error": str(error)})
            await self._clock.sleep(LOST_PODS_INTERVAL_S)


def _owner_values(obj: JsonObject) -> Iterable[str]:
    owner = controller_of(obj)
    if owner is None or owner.get("kind") not in CONTROLLERS:
        return ()
    return ("/".join((owner["kind"], key_of(obj)[0], owner["name"])),)


def _version(obj: JsonObject) -> int:
    text = resource_version_of(obj)
    return int(text) if text.isdecimal() else 0
