"""An Event, once, on a pod that carries names under gpuloom.dev/ which nothing reads.

A misspelled wish is no wish, and its pod runs anywhere: somebody should say so. Every replica notes such pods
when they come, the leader tells, and what an earlier leader told is not told again.
"""

from collections import OrderedDict
from collections.abc import Callable

from gpuloom.codec.pod_names import unknown_names
from gpuloom.kube.cache import Change
from gpuloom.kube.events import EventRecorder
from gpuloom.kube.objects import JsonObject, metadata_of, uid_of
from gpuloom.runtime.clock import Clock

REASON = "UnknownName"
MAX_UNTOLD = 1000


class NameWarnings:
    def __init__(self, recorder: EventRecorder, clock: Clock, may_write: Callable[[], bool]) -> None:
        self._recorder = recorder
        self._clock = clock
        self._may_write = may_write
        self._untold: OrderedDict[str, tuple[JsonObject, str]] = OrderedDict()

    def observe(self, change: Change) -> None:
        """As the pods informer shows it."""
        if change.new is None:
            self._untold.pop(uid_of(change.old or {}), None)
        elif change.old is None:
            self._note(change.new)

    async def run(self, interval_s: float) -> None:
        while True:
            await self._clock.sleep(interval_s)
            await self.tell()

    async def tell(self) -> None:
        if not self._may_write():
            return
        while self._untold:
            _, (about, message) = self._untold.popitem(last=False)
            self._recorder.warn_once(about, REASON, message)
        await self._recorder.write_due()

    def _note(self, pod: JsonObject) -> None:
        sentences = unknown_names(pod)
        if not sentences:
            return
        about = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata_of(pod)}
        self._untold[uid_of(pod)] = about, "; ".join(sentences)
        if len(self._untold) > MAX_UNTOLD:
            self._untold.popitem(last=False)
