"""An informer of a replica that may take over: how far it has come, and how to make it list afresh.

A new leader must know that what it believes of pods is not older than a certain moment. The API server's
versions are numbers that grow with every write, and an informer applies them in their order, so
"everything up to this version has been applied" can be waited for. Where no version is known that the
informer will surely come to hear of, it lists again instead.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing

from gpuloom.kube.client import KubeClient
from gpuloom.kube.errors import GoneError
from gpuloom.kube.informer import Informer, InformerOptions
from gpuloom.kube.listing import Listing, Selection, WatchEvent
from gpuloom.kube.objects import JsonObject, is_older_version, metadata_of, resource_version_of
from gpuloom.kube.resources import PODS, Resource
from gpuloom.names import LABEL_LEADER
from gpuloom.runtime.clock import Clock
from gpuloom.runtime.interruption import interrupted_by
from services.scheduler_extender.core.gangs.index import PLANNED, planned
from services.scheduler_extender.core.objects.trimming import trim_pod

# Together about as long as one call takes.
_EVENTS_A_TURN = 4
GATHER_S = 0.05
"""Each read wakes this process, which costs more than an event does. What we bind the ledger knows at once;
what others do may show so much later."""
LABEL_VALUE = "true"
LEADERS = "leaders"
"""The index of pods that wear the leader's label, by namespace."""


class TrackedInformer:
    """`prompt`: follow from the start; else nothing is listed until `relist` asks for it."""

    def __init__(
        self,
        source: "TrackedSource",
        resource: Resource,
        clock: Clock,
        options: InformerOptions,
        *,
        prompt: bool,
    ) -> None:
        self._source = source
        self.informer = Informer(source, resource, clock, options)
        self.informer.on_rewind(self._source.forget)
        self._begun = asyncio.Event()
        self._relist = asyncio.Event()
        if prompt:
            self._begun.set()

    async def run(self) -> None:
        await self._begun.wait()
        while True:
            async with interrupted_by(self._relist.wait):
                await self.informer.run()
            self._relist.clear()

    async def reached(self, version: str) -> None:
        """Return when everything up to this version of a pod has been applied."""
        while not self._source.has_reached(version):
            await self._source.progress()

    @property
    def applied(self) -> str:
        """Everything up to this version has been applied; empty before the first list."""
        return self._source.applied

    async def relist(self) -> None:
        """Return when a list that began after this call has been applied."""
        wanted = self._source.want_list()
        self._relist.set()
        self._begun.set()
        while self._source.listed < wanted:
            await self._source.progress()


class TrackedSource:
    """The API as the informer sees it. Of what the informer asks next it tells what it has applied."""

    def __init__(self, client: KubeClient) -> None:
        self.listed = 0
        """The newest wish for a list that has been fulfilled and applied."""
        self._client = client
        self._wanted = 0
        self._listing = 0
        self._applied = ""
        self._progress: asyncio.Event | None = None
        """There while somebody waits."""

    @property
    def applied(self) -> str:
        return self._applied

    def forget(self) -> None:
        """The API has another history now: how far it was followed before says nothing."""
        self._applied = ""

    def has_reached(self, version: str) -> bool:
        return bool(self._applied) and not is_older_version(self._applied, version)

    def want_list(self) -> int:
        self._wanted += 1
        return self._wanted

    async def progress(self) -> None:
        if self._progress is None:
            self._progress = asyncio.Event()
        await self._progress.wait()

    async def list(self, resource: Resource, selection: Selection) -> Listing:
        wanted = self._wanted
        listing = await self._client.list(resource, selection)
        self._listing = wanted
        return listing

    async def newest_version(self, resource: Resource, namespace: str | None) -> str:
        return await self._client.newest_version(resource, namespace)

    async def watch(
        self,
        resource: Resource,
        resource_version: str,
        selection: Selection,
        *,
        duration_s: float,
        idle_timeout_s: float,
    ) -> AsyncGenerator[WatchEvent, None]:
        # Whoever watches from a version has applied everything up to it, and so the list that it comes from.
        self.listed = self._listing
        self._note(resource_version)
        if self.listed < self._wanted:
            raise GoneError("a new list is wanted")
        events = self._client.watch(
            resource,
            resource_version,
            selection,
            duration_s=duration_s,
            idle_timeout_s=idle_timeout_s,
            gather_s=GATHER_S,
        )
        applied = 0
        async with aclosing(events):
            async for event in events:
                yield event
                # Asked for the next one: this one has been applied.
                self._note(resource_version_of(event.object))
                applied += 1
                # Many events may have come at once, and a call must not wait for all of them.
                if applied % _EVENTS_A_TURN == 0:
                    await asyncio.sleep(0)

    def _note(self, version: str) -> None:
        # The end of an object may come with the version of its last state.
        if version and not is_older_version(version, self._applied):
            self._applied = version
        if self._progress is not None:
            self._progress.set()
            self._progress = None


class PodInformer(TrackedInformer):
    def __init__(self, client: KubeClient, clock: Clock, *, prompt: bool) -> None:
        options = InformerOptions(
            indexes={LEADERS: _namespace_of_leader, PLANNED: planned}, transform=trim_pod
        )
        super().__init__(TrackedSource(client), PODS, clock, options, prompt=prompt)


def _namespace_of_leader(pod: JsonObject) -> Iterable[str]:
    metadata = metadata_of(pod)
    labels = metadata.get("labels")
    if isinstance(labels, dict) and labels.get(LABEL_LEADER) == LABEL_VALUE:
        yield str(metadata.get("namespace") or "")
