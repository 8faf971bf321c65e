"""Holds as services take them: on the ledger first, then durably as a GPUHold, then they are promised.

The order is what makes a promise of it:
  1. check that nobody else can be the leader before the write is over,
  2. check that what is wanted is free, and begin the hold on the ledger, in one step without an await,
  3. create the GPUHold,
  4. check that we still lead, and answer.
A new leader lists GPUHolds after it has the lease, and so knows every hold that was answered before. A write
whose outcome is not known leaves the hold begun until its object is seen, or is seen not to be there.
A hold ends with its object, never by time alone: what has expired is deleted at the version that was seen, so
that either the renewal or the deletion wins.
"""

import logging
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

from gpuloom.errors import (
    ConflictError,
    GpuloomError,
    InvalidRequestError,
    NotAllowedError,
    NotFoundError,
    NotReadyError,
    UnavailableError,
)
from gpuloom.kube.errors import AlreadyExistsError
from gpuloom.model.allocation import AllocatedDevice
from gpuloom.model.gpu import MILLI_PER_GPU
from gpuloom.model.ledger import EntryState, Hold
from gpuloom.runtime.clock import Clock
from services.scheduler_extender.core.ledger.holds import take_refusal
from services.scheduler_extender.core.ledger.ledger import Ledger
from services.scheduler_extender.ports import HoldStore, Mandate

WRITE_TIMEOUT_S = 3.0
LEAST_TTL_S = 5
MOST_TTL_S = 86_400
GRACE_S = 5.0
"""An expired hold is ended so much later: clocks of leaders differ, and renewals may be under way."""
SUPERUSERS = frozenset({"cli"})
"""Who may release what others took: people."""

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_REFUSED = (InvalidRequestError, NotAllowedError, NotFoundError)

_log = logging.getLogger(__name__)


class Holding:
    def __init__(
        self,
        ledger: Ledger,
        store: HoldStore,
        mandate: Mandate,
        unready_reason: Callable[[], str],
        clock: Clock,
    ) -> None:
        self._ledger = ledger
        self._holds = ledger.holds
        self._store = store
        self._mandate = mandate
        self._unready_reason = unready_reason
        self._clock = clock
        self._begun_s: dict[str, float] = {}

    async def take(
        self,
        wanted: Hold,
        ttl_s: int,
        *,
        allow_used: bool = False,
        beside: frozenset[str] = frozenset(),
    ) -> Hold:
        """The hold, in force. ConflictError if what is wanted is in use, held, or the name is taken.

        `beside` are names of holds that it may overlap, because they let the same pod through.
        """
        self._refuse_unready()
        _check(wanted.name, ttl_s)
        wanted = replace(wanted, device=_plain(wanted.device))
        known = self._holds.get(wanted.name)
        if known is not None and not _is_same(known, wanted):
            raise ConflictError(f"there is another hold of the name {wanted.name}")
        timeout_s = self._time_to_write_s()
        hold = replace(known or wanted, expires=self._after(ttl_s))
        reason = self._refusal(hold, allow_used, beside)
        if reason:
            raise ConflictError(reason)
        if known is None:
            self._holds.begin(hold)
            self._begun_s[hold.name] = self._clock.monotonic()
        taken = await self._make_durable(hold, timeout_s)
        if not self._still_begun(hold):
            await self._take_back(taken)
            raise ConflictError(f"the hold {hold.name} was released or ended meanwhile")
        # Whoever leads by now, if it is not us, may have listed before the object was there.
        if self._mandate.until_s() <= self._clock.monotonic():
            raise NotReadyError("no longer the leader; ask again for the outcome")
        self._holds.observe(taken)
        self._log("hold taken", taken)
        return taken

    async def renew(self, name: str, ttl_s: int, caller: str) -> Hold:
        """NotFoundError if it is over: what it held may be given out by now."""
        self._refuse_unready()
        _check(name, ttl_s)
        known = self._known(name)
        if known.taken_by != caller:
            raise NotAllowedError(f"the hold {name} was taken by {known.taken_by or 'somebody else'}")
        try:
            renewed = await self._store.renew(known, self._after(ttl_s), timeout_s=WRITE_TIMEOUT_S)
        except NotFoundError:
            self._drop(known)
            raise NotFoundError(f"the hold {name} is over") from None
        self._holds.observe(renewed)
        return renewed

    async def release(self, name: str, caller: str) -> None:
        """One that is over already is no error."""
        self._refuse_unready()
        known = self._holds.get(name)
        if known is None:
            return
        if caller not in SUPERUSERS | {known.taken_by}:
            raise NotAllowedError(f"the hold {name} was taken by {known.taken_by or 'somebody else'}")
        try:
            await self._store.delete(known, timeout_s=WRITE_TIMEOUT_S)
        except NotFoundError:
            pass
        self._end(known, "hold released")

    def list(self) -> list[Hold]:
        self._refuse_unready()
        return self._holds.all()

    async def run(self, interval_s: float) -> None:
        """Ends what has expired or was used, while we lead."""
        while True:
            await self._clock.sleep(interval_s)
            if not self._unready_reason():
                await self.tidy()

    async def tidy(self) -> None:
        for hold in self._holds.begun():
            await self._look_for(hold)
        now = self._clock.now()
        for hold in self._holds.all():
            if _has_expired(hold, now):
                await self._expire(hold, "hold expired")
            elif self._is_used(hold):
                await self._expire(hold, "hold used by its pod")

    async def _make_durable(self, hold: Hold, timeout_s: float) -> Hold:
        try:
            return await self._store.create(hold, timeout_s=timeout_s)
        except AlreadyExistsError:
            return await self._already_there(hold)
        except _REFUSED:
            self._abandon(hold)
            raise
        except GpuloomError as error:
            raise UnavailableError(f"whether the hold was taken is not known yet: {error}") from error

    def _still_begun(self, hold: Hold) -> bool:
        """Whether it has counted all the time: once it was given up, others may have what it held."""
        known = self._holds.get(hold.name)
        return known is not None and _is_same(known, hold)

    async def _take_back(self, hold: Hold) -> None:
        try:
            await self._store.delete(hold, timeout_s=WRITE_TIMEOUT_S)
        except GpuloomError as error:
            _log.info("hold left to its expiry", extra={"hold": hold.name, "reason": str(error)})

    async def _already_there(self, hold: Hold) -> Hold:
        """An earlier try of the same, or a namesake that somebody wrote a moment ago."""
        try:
            found = await self._store.read(hold.name)
        except NotFoundError:
            raise UnavailableError("whether the hold was taken is not known yet; ask again") from None
        if not _is_same(found, hold):
            self._abandon(hold)
            self._holds.observe(found)
            raise ConflictError(f"there is another hold of the name {hold.name}")
        return await self._store.renew(found, hold.expires, timeout_s=WRITE_TIMEOUT_S)

    async def _look_for(self, hold: Hold) -> None:
        """Kubernetes may have it though no answer came, or may not, and nobody else will tell."""
        if self._clock.monotonic() - self._begun_s.get(hold.name, 0.0) < 2 * WRITE_TIMEOUT_S:
            return
        try:
            self._holds.observe(await self._store.read(hold.name))
        except NotFoundError:
            self._abandon(hold)
        except GpuloomError as error:
            _log.info("hold not read", extra={"hold": hold.name, "reason": str(error)})

    async def _expire(self, hold: Hold, message: str) -> None:
        try:
            await self._store.delete(hold, timeout_s=WRITE_TIMEOUT_S, at_version=True)
        except NotFoundError:
            pass
        except GpuloomError as error:
            # Renewed a moment ago, or the API is not there: it is looked at again.
            _log.info("hold not ended", extra={"hold": hold.name, "reason": str(error)})
            return
        self._end(hold, message)

    def _refusal(self, hold: Hold, allow_used: bool, beside: frozenset[str]) -> str:
        ledger = self._ledger
        uid = ledger.node_uid(hold.node_name)
        if uid is None:
            return f"node {hold.node_name} does not exist"
        if hold.node_uid not in ("", uid):
            return f"node {hold.node_name} is another one by now"
        holds = [
            each
            for each in self._holds.on(hold.node_name)
            if each.is_about(hold.node_name, uid) and each.name not in beside
        ]
        claims = ledger.claims(hold.node_name)
        return take_refusal(hold, claims, holds, ledger.facts(hold.node_name), allow_used)

    def _is_used(self, hold: Hold) -> bool:
        """Its pod is on the node: what was held for it is its own by now, or not needed."""
        claims = self._ledger.claims(hold.node_name) if hold.lets_pods_through else ()
        return any(
            claim.state is EntryState.OBSERVED and hold.is_for_pod(claim.pod.uid, str(claim.pod))
            for claim in claims
        )

    def _known(self, name: str) -> Hold:
        known = self._holds.get(name)
        if known is None:
            raise NotFoundError(f"there is no hold {name}")
        return known

    def _end(self, hold: Hold, message: str) -> None:
        self._drop(hold)
        self._log(message, hold)

    def _drop(self, hold: Hold) -> None:
        """This very one: a namesake may have been taken since."""
        if hold.uid:
            self._holds.gone(hold.name, hold.uid)
        else:
            self._abandon(hold)

    def _abandon(self, hold: Hold) -> None:
        self._begun_s.pop(hold.name, None)
        self._holds.abandon(hold.name)

    def _after(self, ttl_s: int) -> datetime:
        # Kubernetes keeps whole seconds; the rest must not be lost to the holder.
        return (self._clock.now() + timedelta(seconds=ttl_s + 1)).replace(microsecond=0)

    def _time_to_write_s(self) -> float:
        left_s = self._mandate.until_s() - self._clock.monotonic()
        if left_s <= 1.0:
            raise NotReadyError("this extender can't be sure to be the leader for long enough")
        return min(WRITE_TIMEOUT_S, left_s)

    def _refuse_unready(self) -> None:
        reason = self._unready_reason()
        if reason:
            raise NotReadyError(f"GPULoom is not ready: {reason}")

    def _log(self, message: str, hold: Hold) -> None:
        device = hold.device.device.gpu_uuid if hold.device is not None else ""
        fields = {"hold": hold.name, "node": hold.node_name, "gpu": device, "taken_by": hold.taken_by}
        _log.info(message, extra={**fields, "reason": hold.reason})


def _check(name: str, ttl_s: int) -> None:
    if _NAME.fullmatch(name) is None:
        raise InvalidRequestError("a hold's name has lower-case letters, digits, - and ., at most 253")
    if not LEAST_TTL_S <= ttl_s <= MOST_TTL_S:
        raise InvalidRequestError(f"a hold lasts {LEAST_TTL_S} to {MOST_TTL_S} seconds, not {ttl_s}")


def _plain(device: AllocatedDevice | None) -> AllocatedDevice | None:
    """As a GPUHold has it: of a whole GPU and of a place no amounts are kept."""
    if device is None or (device.device.mig is None and device.milli < MILLI_PER_GPU):
        return device
    return AllocatedDevice(device.device, MILLI_PER_GPU, 0)


def _is_same(known: Hold, wanted: Hold) -> bool:
    return (known.node_name, known.device, known.owner, known.taken_by) == (
        wanted.node_name,
        wanted.device,
        wanted.owner,
        wanted.taken_by,
    ) and wanted.node_uid in ("", known.node_uid)


def _has_expired(hold: Hold, now: datetime) -> bool:
    # Not by adding: people write the year 9999 for "never", and there is no time after it.
    return hold.expires is not None and now - hold.expires > timedelta(seconds=GRACE_S)
