"""Sees when pods are bound, by a watch of its own: the same eyes for every variant."""

from collections.abc import Callable

from gpuloom.kube.client import KubeClient
from gpuloom.kube.listing import Selection
from gpuloom.kube.objects import JsonObject, key_of
from gpuloom.kube.resources import PODS
from gpuloom.runtime.clock import Clock
from tests.bench.workload import NAMESPACE


class BindingObserver:
    """`on_first` is called with the first binding, before anything else happens."""

    def __init__(self, expected: int, clock: Clock, on_first: Callable[[], None]) -> None:
        self.times_s: dict[str, float] = {}
        """By pod name, in the order seen."""
        self._expected = expected
        self._clock = clock
        self._on_first = on_first

    async def follow(self, client: KubeClient, resource_version: str) -> None:
        """Until the last pod is bound or this is cancelled."""
        async for event in client.watch(PODS, resource_version, Selection(namespace=NAMESPACE)):
            self.note(event.object)
            if len(self.times_s) == self._expected:
                return

    def note(self, pod: JsonObject) -> None:
        _, name = key_of(pod)
        if name in self.times_s or not (pod.get("spec") or {}).get("nodeName"):
            return
        self.times_s[name] = self._clock.monotonic()
        if len(self.times_s) == 1:
            self._on_first()
