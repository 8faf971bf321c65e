"""How an extender comes to power. Every start is a takeover: somebody else may have held it a moment ago.

1. Stamp every managed pod that is unbound. Its resourceVersion changes, so a Binding that an earlier
   process sent or is about to send under the old version fails.
2. List: the informers start only now, so what they show is from after the stamps.
3. Serve, once pods, nodes and device facts are all there.
"""

import asyncio
import logging
from collections.abc import Iterable

from gpuloom.errors import GpuloomError, NotFoundError
from gpuloom.kube.objects import JsonObject
from gpuloom.model.node import PodRef
from gpuloom.runtime.backoff import Backoff
from gpuloom.runtime.clock import Clock
from services.scheduler_extender.ledger import ObservedPod
from services.scheduler_extender.pods import observed_pod
from services.scheduler_extender.ports import Marker

_log = logging.getLogger(__name__)

CONCURRENT_STAMPS = 32
FEW_PODS = 500
"""Up to so many unbound pods a takeover is quick; beyond, its time grows with their number."""


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
