"""Kubernetes as the ports of the extender see it, answering from a script."""

from collections.abc import Awaitable, Callable, Iterable

from gpuloom.errors import GpuloomError, NotFoundError
from gpuloom.kube.client import PodBinding
from gpuloom.kube.objects import uid_of
from tests.unit.scheduler_extender.builders import JsonObject

Answer = Callable[[PodBinding], Awaitable[None]]


class ScriptedApi:
    """Pods, Binder and Marker in one. `shown` is the informer's cache, `present` what a direct read finds.

    Each Binding takes the next of `outcomes`: None is success, an error is raised, a function is called.
    """

    def __init__(self, *shown: JsonObject, outcomes: Iterable[GpuloomError | Answer | None] = ()) -> None:
        self.shown = {uid_of(pod): pod for pod in shown}
        self.present = {pod["metadata"]["name"]: pod for pod in shown}
        self.unreadable: GpuloomError | None = None
        self.bindings: list[PodBinding] = []
        self.stamps: list[tuple[str, str, str]] = []
        self.touches: list[str] = []
        self.marking_fails: list[GpuloomError] = []
        self._outcomes = list(outcomes)

    def show(self, pod: JsonObject) -> None:
        self.shown[uid_of(pod)] = pod
        self.present[pod["metadata"]["name"]] = pod

    def by_uid(self, uid: str) -> JsonObject | None:
        return self.shown.get(uid)

    async def read(self, namespace: str, name: str) -> JsonObject:
        if self.unreadable is not None:
            raise self.unreadable
        if name not in self.present:
            raise NotFoundError(f"no pod {namespace}/{name}")
        return self.present[name]

    async def bind(self, binding: PodBinding, *, timeout_s: float) -> None:
        self.bindings.append(binding)
        outcome = self._outcomes.pop(0) if self._outcomes else None
        if isinstance(outcome, GpuloomError):
            raise outcome
        if outcome is not None:
            await outcome(binding)

    async def stamp(self, namespace: str, name: str, uid: str, epoch: str) -> None:
        if self.marking_fails:
            raise self.marking_fails.pop(0)
        self.stamps.append((name, uid, epoch))

    async def touch(self, node_name: str, epoch: str) -> None:
        if self.marking_fails:
            raise self.marking_fails.pop(0)
        self.touches.append(node_name)
