"""Leader election by a Lease: work runs only while nobody else can hold it.

Decides by its own monotonic clock, counted from before each renewal was sent. The work is cancelled when no
renewal succeeded within the renew deadline, which leaves it the rest of the lease to stop. A process that was
paused can't stop in time: whoever writes checks `leader_until_s` and fences its writes.
"""

import asyncio
import logging
import math
import random
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from gpuloom.errors import ConflictError, GpuloomError, InvalidRequestError, NotFoundError
from gpuloom.kube.errors import LeadershipLostError
from gpuloom.kube.lease import LeaseRecord, Observation, lease_object, record_from, released, taken
from gpuloom.kube.objects import JsonObject
from gpuloom.kube.resources import LEASES, Resource
from gpuloom.runtime.clock import Clock

_log = logging.getLogger(__name__)

_REMEMBERED_WRITES = 16
_LEAST_DELAY_S = 0.05
"""Two looks are at least so far apart."""


class LeaseApi(Protocol):
    """What the elector needs of an API; KubeClient gives it."""

    async def get(
        self, resource: Resource, name: str, namespace: str | None, *, timeout_s: float
    ) -> JsonObject: ...

    async def create(self, resource: Resource, obj: JsonObject, *, timeout_s: float) -> JsonObject: ...

    async def replace(self, resource: Resource, obj: JsonObject, *, timeout_s: float) -> JsonObject: ...


@dataclass(frozen=True, slots=True)
class LeaderSettings:
    lease_duration_s: int = 6
    """How long others wait after the last renewal that they saw."""
    renew_deadline_s: float = 4.0
    """Without a successful renewal for so long, the work is cancelled."""
    retry_period_s: float = 1.0
    request_timeout_s: float = 2.0
    margin_s: float = 0.5
    """Kept clear at the end of the lease, for clocks that run at different speeds."""

    def __post_init__(self) -> None:
        if not 0 < self.retry_period_s * 1.2 < self.renew_deadline_s:
            raise InvalidRequestError("leader election: retry_period_s must be well below renew_deadline_s")
        if not self.renew_deadline_s + self.margin_s < self.lease_duration_s:
            raise InvalidRequestError(
                "leader election: renew_deadline_s and margin_s together must be below lease_duration_s"
            )


class LeaderElector:
    """One candidate. `identity` should be unique to the process; two with the same are still kept apart."""

    def __init__(
        self,
        client: LeaseApi,
        namespace: str,
        name: str,
        identity: str,
        clock: Clock,
        settings: LeaderSettings | None = None,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._clock = clock
        self._settings = settings or LeaderSettings()
        self._random = random.Random()
        self._observation = Observation()
        self._may_take_s = -math.inf
        """When the lease of another ends, as far as is known."""
        self._record: LeaseRecord | None = None
        """As the server has it after our last write; None: not known."""
        self._own_writes: deque[str] = deque(maxlen=_REMEMBERED_WRITES)
        """Renew times that we sent. A record of ours may also come from another process with our name."""
        self._renewed_s = -math.inf
        """When the last renewal that succeeded was sent."""
        self._working = False

    @property
    def is_leader(self) -> bool:
        return self._clock.monotonic() < self.leader_until_s()

    def leader_until_s(self) -> float:
        """The monotonic time up to which nobody else can hold the lease; in the past while not leading."""
        if not self._working:
            return -math.inf
        return self._renewed_s + self._settings.lease_duration_s - self._settings.margin_s

    async def run(self, work: Callable[[], Awaitable[None]]) -> None:
        """Wait for the lease, run the work once, release the lease.

        Ends with the work: returns when it returns, raises what it raises. LeadershipLostError if the lease
        could not be kept; the work has then been cancelled and has stopped.
        """
        lost = False
        try:
            await self._acquire()
            await self._lead(work)
        except LeadershipLostError:
            # Whoever runs out of time because the API is silent would only wait longer to release there.
            lost = True
            raise
        finally:
            self._working = False
            if not lost:
                await self._release()
            self._record = None

    async def _acquire(self) -> None:
        while not await self._try_to_take():
            await self._clock.sleep(self._standing_delay_s())
        fields = {"lease": f"{self._namespace}/{self._name}", "identity": self._identity}
        _log.info("became leader", extra=fields)

    async def _lead(self, work: Callable[[], Awaitable[None]]) -> None:
        self._working = True
        cancellations = _cancellations()
        try:
            async with asyncio.TaskGroup() as group:
                renewal = group.create_task(self._keep_renewing())
                # Renewal goes on while a cancelled work drains, and its own failure cancels the work.
                await work()
                renewal.cancel()
        except BaseExceptionGroup as failures:
            error = failures.exceptions[0] if len(failures.exceptions) == 1 else failures
            # A group with an error forgets that its caller was cancelled too; a loss must not hide that.
            if isinstance(error, LeadershipLostError) and _cancellations() > cancellations:
                raise asyncio.CancelledError from error
            raise error from None
        finally:
            if self._clock.monotonic() >= self._renewed_s + self._settings.lease_duration_s:
                _log.error("work outlived its lease", extra={"identity": self._identity})

    async def _keep_renewing(self) -> None:
        while True:
            await self._clock.sleep(min(self._retry_delay_s(), self._remaining_s()))
            # Checked before asking: after a pause even a success would come too late.
            self._check_deadline()
            await self._renew(min(self._settings.request_timeout_s, self._remaining_s()))
            self._check_deadline()

    def _check_deadline(self) -> None:
        if self._remaining_s() <= 0:
            deadline_s = self._settings.renew_deadline_s
            raise LeadershipLostError(f"lease {self._name} was not renewed within {deadline_s:g} s")

    def _remaining_s(self) -> float:
        return self._renewed_s + self._settings.renew_deadline_s - self._clock.monotonic()

    def _retry_delay_s(self) -> float:
        return self._settings.retry_period_s * self._random.uniform(1.0, 1.2)

    def _standing_delay_s(self) -> float:
        """Until the next look at another's lease: no later than when it ends, if it is not renewed."""
        left_s = self._may_take_s - self._clock.monotonic()
        return min(self._retry_delay_s(), max(left_s, _LEAST_DELAY_S) if left_s > 0 else math.inf)

    async def _renew(self, timeout_s: float) -> None:
        try:
            if self._record is None:
                self._record = await self._read(timeout_s)
            if self._record is None or not self._is_ours(self._record):
                raise LeadershipLostError(f"lease {self._name} was taken by another")
            # What was left may have been spent on reading.
            timeout_s = min(timeout_s, self._remaining_s())
            if timeout_s > 0:
                await self._write_taken(self._record, timeout_s)
        except LeadershipLostError:
            raise
        except GpuloomError as error:
            self._record = None
            _log.warning("lease not renewed", extra={"lease": self._name, "error": str(error)})

    async def _try_to_take(self) -> bool:
        """False: held by another, or the API did not let us; ask again later."""
        timeout_s = self._settings.request_timeout_s
        try:
            record = await self._read(timeout_s)
            if not self._may_take(record):
                return False
            await self._write_taken(record, timeout_s)
        except ConflictError:
            return False
        except GpuloomError as error:
            _log.warning("lease not acquired", extra={"lease": self._name, "error": str(error)})
            return False
        # An answer that took too long, as after a pause, is no basis to start work on.
        return self._remaining_s() > 0

    def _may_take(self, record: LeaseRecord | None) -> bool:
        now_s = self._clock.monotonic()
        self._observation.note(record, now_s)
        if record is not None and (not record.holder or self._is_ours(record)):
            return True
        self._may_take_s = self._observation.expires_s(record, self._settings.lease_duration_s)
        return now_s >= self._may_take_s

    def _is_ours(self, record: LeaseRecord) -> bool:
        return record.holder == self._identity and record.renew_time in self._own_writes

    async def _read(self, timeout_s: float) -> LeaseRecord | None:
        try:
            return record_from(
                await self._client.get(LEASES, self._name, self._namespace, timeout_s=timeout_s)
            )
        except NotFoundError:
            return None

    async def _write_taken(self, previous: LeaseRecord | None, timeout_s: float) -> None:
        record = taken(previous, self._identity, self._settings.lease_duration_s, self._clock.now())
        obj = lease_object(record, self._namespace, self._name)
        self._own_writes.append(record.renew_time)
        self._record = None
        sent_s = self._clock.monotonic()
        write = self._client.create if previous is None else self._client.replace
        self._record = record_from(await write(LEASES, obj, timeout_s=timeout_s))
        self._renewed_s = sent_s

    async def _release(self) -> None:
        if not self._own_writes:
            return
        # In a task of its own, because the caller's may be cancelled already; bounded by its requests.
        releasing = asyncio.create_task(self._try_to_release())
        try:
            await asyncio.wait({releasing})
        finally:
            releasing.cancel()

    async def _try_to_release(self) -> None:
        timeout_s = self._settings.request_timeout_s
        for _ in range(2):
            try:
                record = self._record or await self._read(timeout_s)
                if record is not None and self._is_ours(record):
                    obj = lease_object(released(record), self._namespace, self._name)
                    await self._client.replace(LEASES, obj, timeout_s=timeout_s)
                break
            except ConflictError:
                # A renewal that was cut off arrived after all: look again.
                self._record = None
            except GpuloomError as error:
                _log.warning("lease not released", extra={"lease": self._name, "error": str(error)})
                break


def _cancellations() -> int:
    task = asyncio.current_task()
    return task.cancelling() if task is not None else 0
