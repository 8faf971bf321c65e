"""How an extender comes to power. Every leader does this before it serves: another led a moment ago, maybe.

1. List the unbound pods. The lease is ours by now, so every pod that an earlier leader can still send a
   Binding for existed before this list.
2. Stamp those that are managed. Their resourceVersions change, and a Binding carries the version that its
   sender read while it held the lease: one that has not been applied by now fails.
   Where a pod can't be stamped, because somebody else's webhook or policy refuses to have it written, wait
   until the API server has given up every Binding that was sent for it.
3. Catch up: what was applied before the stamps is on the ledger before anything is given out.
Only then serve. Why this suffices, and why each step is needed, is told in ADR 8.
"""

import asyncio
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from gpuloom.errors import GpuloomError, InvalidRequestError, NotAllowedError, NotFoundError
from gpuloom.kube.objects import JsonObject
from gpuloom.model.node import PodRef
from gpuloom.runtime.backoff import Backoff
from gpuloom.runtime.clock import Clock
from services.scheduler_extender.core.ledger.claims import ObservedPod
from services.scheduler_extender.core.objects.pods import observed_pod
from services.scheduler_extender.ports import Fence, Marker, Stamped

_log = logging.getLogger(__name__)

CONCURRENT_STAMPS = 32
FEW_PODS = 500
"""Up to so many unbound pods a takeover is quick; beyond, its time grows with their number."""
PODS_A_TURN = 50
"""So many are read in about 1.5 ms. The lease is renewed and health is told in between."""

REFUSALS = (NotAllowedError, InvalidRequestError)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a stamp is tried, from the beginning of the takeover.

    `refused_s`: where the API server refuses it, which trying again may never change. No Binding of an
    earlier leader may be applied later than that. `failed_s`: where it fails otherwise, as it does while the
    API server is down, or a webhook in front of it.
    """

    refused_s: float = 10.0
    failed_s: float = 60.0

    def is_over(self, error: GpuloomError, waited_s: float) -> bool:
        most_s = self.refused_s if isinstance(error, REFUSALS) else max(self.refused_s, self.failed_s)
        return waited_s >= most_s


async def take_over(fence: Fence) -> Stamped:
    """To be called with the lease in hand."""
    unbound = await fence.unbound_pods()
    stamped = await fence.stamp(unbound)
    await fence.catch_up()
    return stamped


async def stamp_unbound(
    pods: Sequence[JsonObject], epoch: str, marker: Marker, clock: Clock, patience: Patience | None = None
) -> Stamped:
    """Stamp all managed, unbound pods. Returns when each is stamped, gone, or was tried for long enough."""
    started_s, patience = clock.monotonic(), patience or Patience()
    unbound = await _unbound(pods)
    if len(unbound) > FEW_PODS:
        _log.warning("many unbound pods, the takeover takes longer", extra={"pods": len(unbound)})
    given_up: dict[PodRef, GpuloomError] = {}
    waiting, backoff = unbound, Backoff(0.1, 2.0)
    while waiting:
        left = await _stamp_once(waiting, epoch, marker)
        waited_s = clock.monotonic() - started_s
        given_up |= {pod: error for pod, error in left.items() if patience.is_over(error, waited_s)}
        waiting = [pod for pod in left if pod not in given_up]
        if waiting:
            await clock.sleep(backoff.next_delay_s())
    for pod, error in given_up.items():
        _log.error("pod could not be stamped", extra={"pod": str(pod), "uid": pod.uid, "reason": str(error)})
    return Stamped(len(unbound) - len(given_up), tuple(given_up))


async def _stamp_once(pods: Sequence[PodRef], epoch: str, marker: Marker) -> dict[PodRef, GpuloomError]:
    """Try each of them once; those that are neither stamped nor gone, and why."""
    left: dict[PodRef, GpuloomError] = {}
    queue = iter(pods)
    async with asyncio.TaskGroup() as group:
        for _ in range(min(CONCURRENT_STAMPS, len(pods))):
            group.create_task(_stamp_from(queue, epoch, marker, left))
    return left


async def _stamp_from(
    queue: Iterator[PodRef], epoch: str, marker: Marker, left: dict[PodRef, GpuloomError]
) -> None:
    """Several of these share a queue, so that few tasks serve however many pods there are."""
    for pod in queue:
        try:
            await marker.stamp(pod.namespace, pod.name, pod.uid, epoch)
        except NotFoundError:
            continue
        except GpuloomError as error:
            left[pod] = error
            _log.warning("pod not stamped, trying again", extra={"pod": str(pod), "reason": str(error)})


async def _unbound(pods: Sequence[JsonObject]) -> list[PodRef]:
    found: list[PodRef] = []
    for start in range(0, len(pods), PODS_A_TURN):
        found += _managed(pods[start : start + PODS_A_TURN])
        await asyncio.sleep(0)
    return found


def _managed(pods: Iterable[JsonObject]) -> Iterable[PodRef]:
    for pod in pods:
        try:
            observed: ObservedPod | None = observed_pod(pod)
        except GpuloomError:
            # What no request can be read from was never bound by an extender.
            continue
        if observed is not None and not observed.node_name and not observed.terminal:
            yield observed.ref
