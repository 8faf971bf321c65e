"""How an extender comes to power. Every leader does this before it serves: another led a moment ago, maybe.

1. List the unbound pods. The lease is ours by now, so every pod that an earlier leader can still send a
   Binding for existed before this list.
2. Stamp those that are managed. Their resourceVersions change, and a Binding carries the version that its
   sender read while it held the lease: one that has not been applied by now fails.
3. Catch up: what was applied before the stamps is on the ledger before anything is given out.
Only then serve. Why this suffices, and why each step is needed, is told in ADR 8.
"""

import asyncio
import logging
from collections.abc import Iterable

from gpuloom.errors import GpuloomError, NotFoundError
from gpuloom.kube.objects import JsonObject
from gpuloom.model.node import PodRef
from gpuloom.runtime.backoff import Backoff
from gpuloom.runtime.clock import Clock
from services.scheduler_extender.claims import ObservedPod
from services.scheduler_extender.pods import observed_pod
from services.scheduler_extender.ports import Fence, Marker

_log = logging.getLogger(__name__)

CONCURRENT_STAMPS = 32
FEW_PODS = 500
"""Up to so many unbound pods a takeover is quick; beyond, its time grows with their number."""


async def take_over(fence: Fence) -> int:
    """How many pods were stamped. To be called with the lease in hand."""
    unbound = await fence.unbound_pods()
    stamped = await fence.stamp(unbound)
    await fence.catch_up()
    return stamped


async def stamp_unbound(pods: Iterable[JsonObject], epoch: str, marker: Marker, clock: Clock) -> int:
    """Stamp all managed, unbound pods; how many there were. Returns when each is stamped or gone."""
    unbound = list(_unbound(pods))
    if len(unbound) > FEW_PODS:
        _log.warning("many unbound pods, the takeover takes longer", extra={"pods": len(unbound)})
    limit = asyncio.Semaphore(CONCURRENT_STAMPS)

    async def stamp(pod: PodRef) -> None:
        async with limit:
            await _stamp_one(pod, epoch, marker, clock)

    async with asyncio.TaskGroup() as group:
        for pod in unbound:
            group.create_task(stamp(pod))
    return len(unbound)


async def _stamp_one(pod: PodRef, epoch: str, marker: Marker, clock: Clock) -> None:
    """Without this stamp nothing may be served, so it is tried until it succeeds."""
    backoff = Backoff(0.1, 2.0)
    while True:
        try:
            await marker.stamp(pod.namespace, pod.name, pod.uid, epoch)
            return
        except NotFoundError:
            return
        except GpuloomError as error:
            _log.warning("pod not stamped, trying again", extra={"pod": str(pod), "reason": str(error)})
        await clock.sleep(backoff.next_delay_s())


def _unbound(pods: Iterable[JsonObject]) -> Iterable[PodRef]:
    for pod in pods:
        try:
            observed: ObservedPod | None = observed_pod(pod)
        except GpuloomError:
            # What no request can be read from was never bound by an extender.
            continue
        if observed is not None and not observed.node_name and not observed.terminal:
            yield observed.ref
