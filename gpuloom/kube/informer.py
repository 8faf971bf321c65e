"""A local, indexed copy of one resource that follows the API server: list, watch, and list again on a gap.

Decides when to reconnect and when to relist. Handlers hear every change once and in order; after a gap they
hear the difference. Never serves a guess: readers ask `synced` and `last_contact_age_s`.
"""

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from random import Random
from typing import Protocol

from gpuloom.errors import GpuloomError
from gpuloom.kube.cache import Change, IndexFunction, ObjectCache, changes_of_event, changes_of_listing
from gpuloom.kube.change_queue import ChangeQueue
from gpuloom.kube.errors import GoneError, RewoundHistoryError
from gpuloom.kube.listing import EVERYTHING, EventType, Listing, Selection, WatchEvent
from gpuloom.kube.objects import JsonObject, is_older_version, resource_version_of, without_managed_fields
from gpuloom.kube.resources import Resource
from gpuloom.runtime.backoff import Backoff
from gpuloom.runtime.clock import Clock

_log = logging.getLogger(__name__)

ChangeHandler = Callable[[Change], None]

# A server that ends watches faster than this is in trouble, even if it ends them politely.
_SHORT_WATCH_S = 1.0
# Between slices of a big list other tasks get their turn.
_CHANGES_A_SLICE = 200


class ListWatch(Protocol):
    """What the informer needs of an API; KubeClient gives it."""

    async def list(self, resource: Resource, selection: Selection) -> Listing:
        """The present state, each object as `selection.keep` leaves it. Raise a GpuloomError if it fails."""

    def watch(
        self,
        resource: Resource,
        resource_version: str,
        selection: Selection,
        *,
        duration_s: float,
        idle_timeout_s: float,
    ) -> AsyncGenerator[WatchEvent, None]:
        """What came after that version, in order. Raise GoneError if that version is no longer kept."""


@dataclass(frozen=True, slots=True)
class InformerOptions:
    selection: Selection = EVERYTHING
    indexes: Mapping[str, IndexFunction] = field(default_factory=dict)
    transform: Callable[[JsonObject], JsonObject] = without_managed_fields
    """Applied to every object before it is kept; it must keep name, namespace, uid and resourceVersion."""
    watch_duration_s: float = 20.0
    """A quiet but healthy watch is renewed this often, which bounds last_contact_age_s."""
    idle_timeout_s: float = 30.0
    first_backoff_s: float = 0.2
    backoff_cap_s: float = 10.0
    jitter: Random = field(default_factory=Random)


class Informer:
    def __init__(
        self, api: ListWatch, resource: Resource, clock: Clock, options: InformerOptions | None = None
    ) -> None:
        self.resource = resource
        self._api = api
        self._clock = clock
        self._options = options or InformerOptions()
        self._listed = replace(self._options.selection, keep=self._transformed)
        self._cache = ObjectCache(self._options.indexes)
        self._handlers: list[ChangeHandler] = []
        self._queues: list[ChangeQueue] = []
        self._synced = asyncio.Event()
        self._last_contact_s = -math.inf
        self._version = ""
        """Everything up to here has been applied."""
        self._must_list = True

    @property
    def synced(self) -> bool:
        """The first list is complete and every handler has heard of it."""
        return self._synced.is_set()

    async def wait_synced(self) -> None:
        await self._synced.wait()

    def last_contact_age_s(self) -> float:
        """Seconds since the API server last told anything; infinite before the first list."""
        return self._clock.monotonic() - self._last_contact_s

    def get(self, name: str, namespace: str = "") -> JsonObject | None:
        return self._cache.get(name, namespace)

    def by_uid(self, uid: str) -> JsonObject | None:
        return self._cache.by_uid(uid)

    def by_index(self, index: str, value: str) -> list[JsonObject]:
        return self._cache.by_index(index, value)

    def objects(self) -> list[JsonObject]:
        return self._cache.objects()

    def __len__(self) -> int:
        return len(self._cache)

    def on_change(self, handler: ChangeHandler) -> None:
        """Call it at the moment of every change; of what is already known it hears at once.

        A handler that raises ends `run` with its error: a follower that missed a change can't be trusted.
        """
        for obj in self._cache.objects():
            handler(Change(None, obj))
        self._handlers.append(handler)

    def subscribe(self, capacity: int) -> ChangeQueue:
        queue = ChangeQueue(capacity)
        if len(self._cache) > 0:
            queue.put_resync()
        self._queues.append(queue)
        return queue

    async def run(self) -> None:
        """Follow the API until cancelled. Only a handler's error or RewoundHistoryError ends it by itself."""
        backoff = Backoff(self._options.first_backoff_s, self._options.backoff_cap_s, self._options.jitter)
        while True:
            try:
                if self._must_list:
                    await self._list()
                if await self._watch(backoff):
                    continue
            except _HandlerError as failure:
                raise failure.cause from None
            except RewoundHistoryError:
                raise
            except GoneError:
                self._must_list = True
                _log.info("watch fell behind, listing again", extra={"resource": self.resource.plural})
            except GpuloomError as error:
                fields = {"resource": self.resource.plural, "error": str(error)}
                _log.warning("can't follow the API server", extra=fields)
            await self._clock.sleep(backoff.next_delay_s())

    async def _list(self) -> None:
        listing = await self._api.list(self.resource, self._listed)
        if is_older_version(listing.resource_version, self._version):
            raise RewoundHistoryError(
                f"list of {self.resource.plural} is of version {listing.resource_version},"
                f" older than {self._version} seen before"
            )
        self._last_contact_s = self._clock.monotonic()
        changes = changes_of_listing(self._cache, listing.items)
        for start in range(0, len(changes), _CHANGES_A_SLICE):
            for change in changes[start : start + _CHANGES_A_SLICE]:
                self._apply(change)
            await asyncio.sleep(0)
        self._version = listing.resource_version
        self._must_list = False
        self._synced.set()

    async def _watch(self, backoff: Backoff) -> bool:
        """One watch until the server ends it; True if it lasted, so that the next may follow at once."""
        options = self._options
        started_s = self._clock.monotonic()
        events = self._api.watch(
            self.resource,
            self._version,
            options.selection,
            duration_s=options.watch_duration_s * options.jitter.uniform(0.8, 1.0),
            idle_timeout_s=options.idle_timeout_s,
        )
        async with aclosing(events):
            async for event in events:
                self._last_contact_s = self._clock.monotonic()
                backoff.reset()
                self._accept(event)
        if self._clock.monotonic() - started_s < _SHORT_WATCH_S:
            return False
        self._last_contact_s = self._clock.monotonic()
        backoff.reset()
        return True

    def _accept(self, event: WatchEvent) -> None:
        version = resource_version_of(event.object)
        is_repeated = version == self._version or is_older_version(version, self._version)
        # Repeated news of an object that was deleted since would bring it back. Repeated news of a deletion
        # does no harm, and some servers give it the version of the object's last state.
        if is_repeated and event.type is not EventType.DELETED:
            return
        if event.type is not EventType.BOOKMARK:
            for change in changes_of_event(self._cache, event.type, self._transformed(event.object)):
                self._apply(change)
        if version and not is_repeated:
            self._version = version

    def _transformed(self, obj: JsonObject) -> JsonObject:
        try:
            return self._options.transform(obj)
        except Exception as error:
            raise _HandlerError(error) from error

    def _apply(self, change: Change) -> None:
        try:
            self._cache.commit(change)
            for handler in self._handlers:
                handler(change)
        except Exception as error:
            raise _HandlerError(error) from error
        for queue in self._queues:
            queue.put(change.key)


class _HandlerError(Exception):
    """Keeps an error of the caller's code apart from trouble with the API, which is survived."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause
