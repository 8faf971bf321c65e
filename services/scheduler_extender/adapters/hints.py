"""Which nodes the optimizer would prefer for a pod: asked when the pod appears, never while a filter waits.

Whatever goes wrong there is no hint, and the pod is judged as it is. An answer that takes longer than its
deadline comes too late to matter.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping

from prometheus_client import CollectorRegistry, Counter

from gpuloom.codec.pod import pod_ref, pod_request
from gpuloom.errors import GpuloomError, InvalidRequestError
from gpuloom.kube.cache import Change
from gpuloom.kube.objects import JsonObject, uid_of
from gpuloom.model.node import PodRef
from gpuloom.model.optimization import NodeHints
from gpuloom.runtime.clock import Clock

MAX_WAITING = 1000
MAX_KNOWN = 5000
ASKERS = 4
# The optimizer hears of a new pod when we do: it may not know it at once.
TRIES_AFTER_S = (0.0, 0.1, 0.5)

_NOTHING: Mapping[str, float] = {}
_log = logging.getLogger(__name__)

Ask = Callable[[PodRef], Awaitable[NodeHints]]


class Hints:
    def __init__(self, ask: Ask, weight: float, clock: Clock, registry: CollectorRegistry) -> None:
        """`weight`: so many points are a node's that the optimizer prefers most."""
        self._ask = ask
        self._weight = weight
        self._clock = clock
        self._waiting: OrderedDict[str, PodRef] = OrderedDict()
        self._known: OrderedDict[str, Mapping[str, float]] = OrderedDict()
        self._arrived = asyncio.Event()
        self._answers = Counter(
            "gpuloom_extender_hints_total",
            "Pods for which the optimizer was asked, by what came of it",
            ["result"],
            registry=registry,
        )
        for result in ("hint", "neutral", "failed"):
            self._answers.labels(result)

    def of(self, pod_uid: str) -> Mapping[str, float]:
        """Points by node name; nothing if there is no hint, or not yet."""
        return self._known.get(pod_uid, _NOTHING)

    def observe(self, change: Change) -> None:
        """As the pods informer shows it."""
        if change.new is None or (change.new.get("spec") or {}).get("nodeName"):
            uid = uid_of(change.object)
            self._waiting.pop(uid, None)
            self._known.pop(uid, None)
        elif change.old is None and _asks_for_gpus(change.new) and len(self._waiting) < MAX_WAITING:
            ref = pod_ref(change.new)
            self._waiting[ref.uid] = ref
            self._arrived.set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as askers:
            for _ in range(ASKERS):
                askers.create_task(self._ask_on())

    async def _ask_on(self) -> None:
        while True:
            await self._arrived.wait()
            if not self._waiting:
                self._arrived.clear()
                continue
            uid, ref = self._waiting.popitem(last=False)
            found = await self._answer(ref)
            self._answers.labels("failed" if found is None else "hint" if found.points else "neutral").inc()
            if found is not None and found.points:
                # In doubt a hint weighs less.
                scale = self._weight * found.confidence
                self._known[uid] = {name: points * scale for name, points in found.points}
                if len(self._known) > MAX_KNOWN:
                    self._known.popitem(last=False)

    async def _answer(self, ref: PodRef) -> NodeHints | None:
        reason = ""
        for delay_s in TRIES_AFTER_S:
            await self._clock.sleep(delay_s)
            try:
                return await self._ask(ref)
            except (GpuloomError, TimeoutError) as error:
                reason = str(error)
        _log.debug("no hint", extra={"pod": str(ref), "reason": reason})
        return None


def _asks_for_gpus(pod: JsonObject) -> bool:
    try:
        return pod_request(pod) is not None
    except InvalidRequestError:
        return False
