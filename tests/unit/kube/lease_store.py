"""Leases in memory behind unreliable links, and a clock that can be stopped for one process alone."""

import asyncio
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime

from gpuloom.errors import ConflictError, DeadlineError, NotFoundError, UnavailableError
from gpuloom.kube.errors import AlreadyExistsError
from gpuloom.kube.objects import JsonObject, key_of, resource_version_of
from gpuloom.kube.resources import Resource
from gpuloom.runtime.clock import Clock, FakeClock, deadline


class LeaseStore:
    def __init__(self) -> None:
        self.leases: dict[tuple[str, str], JsonObject] = {}
        self._version = 0

    def get(self, name: str, namespace: str | None) -> JsonObject:
        lease = self.leases.get((namespace or "", name))
        if lease is None:
            raise NotFoundError(f"no lease {name}")
        return lease

    def create(self, obj: JsonObject) -> JsonObject:
        if key_of(obj) in self.leases:
            raise AlreadyExistsError("exists")
        return self._write(obj)

    def replace(self, obj: JsonObject) -> JsonObject:
        present = self.get(key_of(obj)[1], key_of(obj)[0])
        if resource_version_of(present) != resource_version_of(obj):
            raise ConflictError("changed")
        return self._write(obj)

    def _write(self, obj: JsonObject) -> JsonObject:
        self._version += 1
        stored = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self._version)}}
        self.leases[key_of(obj)] = stored
        return stored


@dataclass(frozen=True)
class Fault:
    """How one request travels: late on its way, lost before or after the server acted."""

    there_s: float = 0.0
    back_s: float = 0.0
    lost: str = ""


class PausableClock:
    """The shared time as one process sees it: while paused, nothing of it runs, but time goes on."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self._running = asyncio.Event()
        self._running.set()

    def pause(self) -> None:
        self._running.clear()

    def resume(self) -> None:
        self._running.set()

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def now(self) -> datetime:
        return self._clock.now()

    async def sleep(self, delay_s: float) -> None:
        await self._clock.sleep(delay_s)
        await self._running.wait()

    async def until_running(self) -> None:
        await self._running.wait()


class LeaseLink:
    """One process' way to the store. A request that its sender gave up on still arrives."""

    def __init__(
        self, store: LeaseStore, clock: PausableClock, network: Clock, faults: Iterable[Fault] = ()
    ) -> None:
        self._store = store
        self._clock = clock
        self._network = network
        self._faults = itertools.cycle(list(faults) or [Fault()])
        self._travelling: set[asyncio.Task[JsonObject]] = set()

    def suffer(self, fault: Fault) -> None:
        """From now on every request."""
        self._faults = itertools.cycle([fault])

    def heal(self) -> None:
        self.suffer(Fault())

    async def get(
        self, resource: Resource, name: str, namespace: str | None, *, timeout_s: float
    ) -> JsonObject:
        return await self._call(lambda: self._store.get(name, namespace), timeout_s)

    async def create(self, resource: Resource, obj: JsonObject, *, timeout_s: float) -> JsonObject:
        return await self._call(lambda: self._store.create(obj), timeout_s)

    async def replace(self, resource: Resource, obj: JsonObject, *, timeout_s: float) -> JsonObject:
        return await self._call(lambda: self._store.replace(obj), timeout_s)

    async def _call(self, act: Callable[[], JsonObject], timeout_s: float) -> JsonObject:
        travel = asyncio.create_task(self._travel(act, next(self._faults)))
        self._travelling.add(travel)
        travel.add_done_callback(self._arrived)
        try:
            async with deadline(self._clock, timeout_s):
                return await asyncio.shield(travel)
        except TimeoutError:
            raise DeadlineError("no answer") from None
        finally:
            await self._clock.until_running()

    async def _travel(self, act: Callable[[], JsonObject], fault: Fault) -> JsonObject:
        await self._network.sleep(fault.there_s)
        if fault.lost == "request":
            raise UnavailableError("request lost")
        answer = act()
        await self._network.sleep(fault.back_s)
        if fault.lost == "answer":
            raise UnavailableError("answer lost")
        return answer

    def _arrived(self, travel: asyncio.Task[JsonObject]) -> None:
        self._travelling.discard(travel)
        if not travel.cancelled():
            travel.exception()
