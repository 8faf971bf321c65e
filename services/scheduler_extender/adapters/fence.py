"""The steps of a takeover on the Kubernetes API."""

import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from gpuloom.errors import GpuloomError, NotFoundError
from gpuloom.kube.client import KubeClient
from gpuloom.kube.listing import Selection
from gpuloom.kube.objects import JsonObject, ObjectKey, is_older_version, resource_version_of
from gpuloom.kube.resources import PODS
from gpuloom.names import ANNOTATION_EPOCH
from gpuloom.runtime.backoff import Backoff
from gpuloom.runtime.clock import Clock, deadline
from services.scheduler_extender.adapters.kubernetes import KubernetesMarker
from services.scheduler_extender.adapters.pod_informer import PodInformer
from services.scheduler_extender.leadership.takeover import REFUSALS, Patience, stamp_unbound
from services.scheduler_extender.ports import Stamped

_log = logging.getLogger(__name__)

_T = TypeVar("_T")

# Without a version to start from, the answer is the newest state, agreed upon by the whole of etcd.
UNBOUND = Selection(field_selector="spec.nodeName=")
CATCH_UP_S = 3.0
"""A watch that has not shown our own write by then is given up for a new list."""


class KubernetesFence:
    """`own_pod` is the (namespace, name) of the pod that this process runs in, if it is known."""

    def __init__(
        self,
        client: KubeClient,
        feed: PodInformer,
        own_pod: ObjectKey | None,
        clock: Clock,
        patience: Patience | None = None,
    ) -> None:
        self._client = client
        self._patience = patience
        self._feed = feed
        self._own_pod = own_pod
        self._clock = clock
        self._epoch = ""

    async def unbound_pods(self) -> Sequence[JsonObject]:
        # Of this takeover alone: a pod that has it already would not change by it.
        self._epoch = secrets.token_hex(8)
        applied = self._feed.applied
        listing = await self._insist("unbound pods not listed", lambda: self._client.list(PODS, UNBOUND))
        if is_older_version(listing.resource_version, applied):
            # Restored from a backup. A list shows the informer so, which then tells everybody.
            await self._feed.relist()
        return listing.items

    async def stamp(self, pods: Sequence[JsonObject]) -> Stamped:
        marker = KubernetesMarker(self._client)
        stamped = await stamp_unbound(pods, self._epoch, marker, self._clock, self._patience)
        _log.info("unbound pods stamped", extra={"pods": stamped.pods, "epoch": self._epoch})
        return stamped

    async def catch_up(self) -> None:
        """Write on our own pod, and wait until the informer shows that; else list again.

        The write is an event that is sure to come, also when nothing else happens to any pod, and its version
        is above that of every write before it.
        """
        version = await self._insist("own pod not stamped", self._own_version)
        # A version that is no number can't be compared.
        if version.isdecimal():
            try:
                async with deadline(self._clock, CATCH_UP_S):
                    await self._feed.reached(version)
                return
            except TimeoutError:
                _log.warning("the watch of pods lags, listing again", extra={"version": version})
        await self._feed.relist()

    async def _own_version(self) -> str:
        """Empty if there is no own pod, or if it may not be written."""
        if self._own_pod is None:
            return ""
        namespace, name = self._own_pod
        patch = {"metadata": {"annotations": {ANNOTATION_EPOCH: self._epoch}}}
        try:
            return resource_version_of(await self._client.patch(PODS, name, namespace, patch))
        except (NotFoundError, *REFUSALS):
            return ""

    async def _insist(self, complaint: str, act: Callable[[], Awaitable[_T]]) -> _T:
        """A takeover has no way around any of its steps; losing the lease ends it."""
        backoff = Backoff(0.1, 2.0)
        while True:
            try:
                return await act()
            except GpuloomError as error:
                _log.warning("a step of the takeover failed, trying again", extra=_fields(complaint, error))
            await self._clock.sleep(backoff.next_delay_s())


def _fields(complaint: str, error: GpuloomError) -> dict[str, str]:
    return {"step": complaint, "reason": str(error)}
