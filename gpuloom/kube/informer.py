"""A local, indexed copy of one resource that follows the API server: list, watch, and list again on a gap.

Decides when to reconnect and when to relist. Handlers hear every change once and in order; after a gap they
hear the difference. Never serves a guess: readers ask `synced` and `last_contact_age_s`.

A history that goes back, as after a restore of etcd from a backup, shows in no watch: one that starts at a
version the server has not reached is silent until it has. So the server is asked for its version after every
watch that broke, and every minute. If that is below what was seen, everything is listed anew, and whoever
must know hears of it first. ADR 19 says what this rests on.
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
from gpuloom.kube.cache import (
    Change,
    IndexFunction,
    ObjectCache,
    changes_of_event,
    changes_of_listing,
    changes_of_replacement,
    gone_back,
)
from gpuloom.kube.change_queue import ChangeQueue
from gpuloom.kube.errors import GoneError, RewoundHistoryError
from gpuloom.kube.listing import EVERYTHING, EventType, Listing, Selection, WatchEvent
from gpuloom.kube.objects import (
    JsonObject,
    is_older_version,
    key_of,
    resource_version_of,
    without_managed_fields,
)
from gpuloom.kube.resources import Resource
from gpuloom.runtime.backoff import Backoff
from gpuloom.runtime.clock import Clock
from gpuloom.runtime.interruption import interrupted_by

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

    async def newest_version(self, resource: Resource, namespace: str | None) -> str:
        """The version of the resource's present state, never an older one; GpuloomError if it fails."""


@dataclass(frozen=True, slots=True)
class InformerOptions:
    selection: Selection = EVERYTHING
    indexes: Mapping[str, IndexFunction] = field(default_factory=dict)
    transform: Callable[[JsonObject], JsonObject] = without_managed_fields
    """Applied to every object before it is kept; it must keep name, namespace, uid and resourceVersion."""
    watch_duration_s: float = 20.0
    """A quiet but healthy watch is renewed this often, which bounds last_contact_age_s."""
    idle_timeout_s: float = 30.0
    history_check_s: float = 60.0
    """As often the server is asked whether its history has gone back, beside after every watch that broke."""
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
        self._anew = False
        """The next list is believed whatever was seen before."""
        self._histories = 0
        self._doubted = asyncio.Event()
        self._rewind_handlers: list[Callable[[], None]] = []
        self._checked_s = -math.inf
        self._broken = False

    @property
    def synced(self) -> bool:
        """A list is complete and every handler has heard of it; not while everything is listed anew."""
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

    def on_rewind(self, handler: Callable[[], None]) -> None:
        """Call it when the server's history has gone back, before anything of the new one is told.

        What is told then turns the cache into the new state: objects vanish, appear, and go back.
        """
        self._rewind_handlers.append(handler)

    def begin_anew(self) -> None:
        """Somebody else knows that the server's history has gone back: believe nothing that was seen."""
        self._forget_history()
        self._doubted.set()

    def subscribe(self, capacity: int) -> ChangeQueue:
        queue = ChangeQueue(capacity)
        if len(self._cache) > 0:
            queue.put_resync()
        self._queues.append(queue)
        return queue

    async def run(self) -> None:
        """Follow the API until cancelled. Only a handler's error ends it by itself."""
        backoff = Backoff(self._options.first_backoff_s, self._options.backoff_cap_s, self._options.jitter)
        while True:
            try:
                if await self._follow(backoff):
                    continue
            except _HandlerError as failure:
                raise failure.cause from None
            except RewoundHistoryError as error:
                fields = {"resource": self.resource.plural, "error": str(error)}
                _log.error("the API server's history has gone back, listing anew", extra=fields)
                self._forget_history()
            except GoneError:
                self._must_list = True
                _log.info("watch fell behind, listing again", extra={"resource": self.resource.plural})
            except GpuloomError as error:
                self._broken = True
                fields = {"resource": self.resource.plural, "error": str(error)}
                _log.warning("can't follow the API server", extra=fields)
            await self._clock.sleep(backoff.next_delay_s())

    async def _follow(self, backoff: Backoff) -> bool:
        """List if needed, then one watch; True if it lasted, so that the next may follow at once."""
        if not self._must_list and self._is_check_due():
            await self._check_history()
        while self._must_list:
            await self._list()
        self._doubted.clear()
        lasted = False
        async with interrupted_by(self._doubted.wait) as interruption:
            lasted = await self._watch(backoff)
        return lasted and not interruption.happened

    async def _list(self) -> None:
        histories = self._histories
        listing = await self._api.list(self.resource, self._listed)
        if self._anew:
            changes = changes_of_replacement(self._cache, listing.items)
        else:
            self._require_progress(listing.resource_version)
            # A restore may set the version forward, so that every watch ends. Its objects are old even so.
            if (obj := gone_back(self._cache, listing.items, self._version)) is not None:
                raise RewoundHistoryError(f"{'/'.join(key_of(obj))} is as it was before")
            changes = changes_of_listing(self._cache, listing.items)
        self._last_contact_s = self._checked_s = self._clock.monotonic()
        for start in range(0, len(changes), _CHANGES_A_SLICE):
            for change in changes[start : start + _CHANGES_A_SLICE]:
                self._apply(change)
            await asyncio.sleep(0)
        if self._histories != histories:
            # Somebody told us while it was on its way or taken in: it may be of either history.
            return
        self._version = listing.resource_version
        self._must_list = self._anew = self._broken = False
        self._synced.set()

    def _is_check_due(self) -> bool:
        return self._broken or self._clock.monotonic() - self._checked_s >= self._options.history_check_s

    async def _check_history(self) -> None:
        self._require_progress(
            await self._api.newest_version(self.resource, self._options.selection.namespace)
        )
        self._checked_s = self._clock.monotonic()
        self._broken = False

    def _require_progress(self, version: str) -> None:
        if is_older_version(version, self._version):
            raise RewoundHistoryError(
                f"{self.resource.plural} are at version {version}, and were at {self._version} before"
            )

    def _forget_history(self) -> None:
        self._histories += 1
        self._must_list = self._anew = True
        self._version = ""
        self._synced.clear()
        for handler in self._rewind_handlers:
            handler()

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
                if not self._accept(event):
                    self._broken = True
                    return False
        if self._clock.monotonic() - started_s < _SHORT_WATCH_S:
            return False
        self._last_contact_s = self._clock.monotonic()
        backoff.reset()
        return True

    def _accept(self, event: WatchEvent) -> bool:
        """False if it is older than what was seen before: a repetition, or a history that has gone back."""
        version = resource_version_of(event.object)
        is_older = is_older_version(version, self._version)
        is_repeated = version == self._version or is_older
        # Repeated news of an object that was deleted since would bring it back. Repeated news of a deletion
        # does no harm, and some servers give it the version of the object's last state.
        if is_repeated and event.type is not EventType.DELETED:
            return not is_older
        if event.type is not EventType.BOOKMARK:
            for change in changes_of_event(self._cache, event.type, self._transformed(event.object)):
                self._apply(change)
        if version and not is_repeated:
            self._version = version
        return True

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
