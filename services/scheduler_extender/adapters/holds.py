"""GPUHolds in Kubernetes: the informer of them, and the writes.

A cluster without the definition of the kind has no holds: it is looked for again now and then. One whose
holds may not be listed keeps the extender from serving, because it can't know what is held.
"""

from collections.abc import AsyncGenerator, Sequence
from datetime import datetime

from gpuloom.codec.hold import hold_from_object, hold_to_object
from gpuloom.errors import ConflictError, NotFoundError
from gpuloom.kube.client import DeleteOptions, KubeClient
from gpuloom.kube.errors import GoneError
from gpuloom.kube.informer import InformerOptions
from gpuloom.kube.listing import Listing, Selection, WatchEvent
from gpuloom.kube.objects import JsonObject
from gpuloom.kube.parse import format_time
from gpuloom.kube.resources import GPU_HOLDS, Resource
from gpuloom.model.ledger import Hold
from gpuloom.runtime.clock import Clock
from services.scheduler_extender.adapters.pod_informer import TrackedInformer, TrackedSource
from services.scheduler_extender.ports import Fence, Stamped

LOOK_AGAIN_S = 30.0


class HoldFeed(TrackedInformer):
    def __init__(self, client: KubeClient, clock: Clock, *, prompt: bool) -> None:
        source = OptionalSource(client, clock)
        super().__init__(source, GPU_HOLDS, clock, InformerOptions(), prompt=prompt)


class HoldFence:
    """A takeover that has heard of every hold, too: one was promised only when its object was there."""

    def __init__(self, pods: Fence, holds: HoldFeed) -> None:
        self._pods = pods
        self._holds = holds

    async def unbound_pods(self) -> Sequence[JsonObject]:
        return await self._pods.unbound_pods()

    async def stamp(self, pods: Sequence[JsonObject]) -> Stamped:
        return await self._pods.stamp(pods)

    async def catch_up(self) -> None:
        await self._pods.catch_up()
        await self._holds.relist()


class KubernetesHolds:
    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def create(self, hold: Hold, *, timeout_s: float) -> Hold:
        created = await self._client.create(GPU_HOLDS, hold_to_object(hold), timeout_s=timeout_s)
        return hold_from_object(created)

    async def read(self, name: str) -> Hold:
        return hold_from_object(await self._client.get(GPU_HOLDS, name, timeout_s=3.0))

    async def renew(self, hold: Hold, expires: datetime | None, *, timeout_s: float) -> Hold:
        """The UID in the patch is a precondition: a namesake is left alone."""
        metadata = {"uid": hold.uid} if hold.uid else {}
        patch = {
            "metadata": metadata,
            "spec": {"expiresAt": None if expires is None else format_time(expires)},
        }
        try:
            renewed = await self._client.patch(GPU_HOLDS, hold.name, None, patch, timeout_s=timeout_s)
        except ConflictError:
            raise NotFoundError(f"the hold {hold.name} was replaced by another") from None
        return hold_from_object(renewed)

    async def delete(self, hold: Hold, *, timeout_s: float, at_version: bool = False) -> None:
        options = DeleteOptions(
            uid=hold.uid or None, resource_version=(hold.version or None) if at_version else None
        )
        await self._client.delete(GPU_HOLDS, hold.name, None, options, timeout_s=timeout_s)


class OptionalSource(TrackedSource):
    """Where the kind is not defined, nothing is there, and nothing happens."""

    def __init__(self, client: KubeClient, clock: Clock) -> None:
        super().__init__(client)
        self._clock = clock
        self._defined = True

    async def list(self, resource: Resource, selection: Selection) -> Listing:
        try:
            listing = await super().list(resource, selection)
        except NotFoundError:
            self._defined = False
            self._listing = self._wanted
            return Listing((), "")
        self._defined = True
        return listing

    async def newest_version(self, resource: Resource, namespace: str | None) -> str:
        return await super().newest_version(resource, namespace) if self._defined else ""

    async def watch(
        self,
        resource: Resource,
        resource_version: str,
        selection: Selection,
        *,
        duration_s: float,
        idle_timeout_s: float,
    ) -> AsyncGenerator[WatchEvent, None]:
        if not self._defined:
            self.listed = self._listing
            self._note(resource_version)
            if self.listed >= self._wanted:
                await self._clock.sleep(LOOK_AGAIN_S)
            raise GoneError("the kind may be defined by now")
        events = super().watch(
            resource, resource_version, selection, duration_s=duration_s, idle_timeout_s=idle_timeout_s
        )
        async for event in events:
            yield event
