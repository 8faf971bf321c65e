"""All runs and outcomes in memory, kept in step with the database; the consumer of usage windows.

A batch changes memory only when the database has it, together with its cursor. A run ends when Kubernetes
says that its pod ended or is gone, and no window of it came for a while.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta

from gpuloom.errors import GpuloomError
from gpuloom.model.usage import DeviceUsage, UsageBatch, UsageCursor, UsageWindow
from gpuloom.runtime.clock import Clock
from services.optimizer.core.classify import LABELS
from services.optimizer.core.features import features_of
from services.optimizer.core.predict import History, Outcome, outcome_of
from services.optimizer.core.run import Run, add_window, begin_run
from services.optimizer.core.workload import Signature, Workload
from services.optimizer.metrics import OptimizerMetrics
from services.optimizer.ports import KeptRun, LabelledRun, ProfileStore

MAX_RUNNING = 50_000
LAST_WINDOWS_S = 180.0
END_INTERVAL_S = 15.0
_MAX_ENDS_A_WRITE = 200

_log = logging.getLogger(__name__)

FindWorkload = Callable[[str], Workload | None]
"""By pod UID: as Kubernetes shows it now, None if it does not."""


class Profiles:
    def __init__(
        self, store: ProfileStore, find: FindWorkload, clock: Clock, metrics: OptimizerMetrics
    ) -> None:
        self.running: dict[str, KeptRun] = {}
        """By pod UID."""
        self._uids: dict[str, set[str]] = {}
        """Of those, by signature."""
        self._owned: dict[str, set[str]] = {}
        """Signatures of those, by owner."""
        self.history = History()
        self.signatures: dict[str, Signature] = {}
        """Of all that is known, by key."""
        self._store = store
        self._find = find
        self._clock = clock
        self._metrics = metrics
        self._cursors: tuple[UsageCursor, ...] = ()

    async def load(self) -> bytes | None:
        """Read what was kept; the model, if there is one."""
        everything = await self._store.load()
        self._put(everything.running)
        for workload, outcome in everything.ended:
            self._remember(workload, outcome)
        self._cursors = everything.cursors
        return everything.model

    async def cursors(self) -> Iterable[UsageCursor]:
        return self._cursors

    async def take(self, batch: UsageBatch) -> None:
        changed: dict[str, KeptRun] = {}
        for window in batch.windows:
            for uid, usages in _by_pod(window).items():
                kept = changed.get(uid) or self.running.get(uid) or self._begin(uid, window)
                if kept is not None:
                    changed[uid] = KeptRun(add_window(kept.run, window, usages), kept.workload)
        await self._store.keep_windows(list(changed.values()), batch.cursor)
        self._put(changed.values())
        self._metrics.windows.inc(len(batch.windows))
        self._metrics.missed.inc(batch.missed)

    def of_signature(self, key: str) -> Mapping[str, Run]:
        return {uid: self.running[uid].run for uid in self._uids.get(key, ())}

    def of_owner(self, owner_key: str) -> list[Run]:
        """Whatever its pods ask for."""
        return [
            run for key in sorted(self._owned.get(owner_key, ())) for run in self.of_signature(key).values()
        ]

    async def run(self) -> None:
        """End runs whose pods have ended."""
        while True:
            await self._clock.sleep(END_INTERVAL_S)
            try:
                await self.end_runs()
            except GpuloomError as error:
                _log.warning("ended runs not kept, trying again", extra={"reason": str(error)})

    async def end_runs(self) -> None:
        now = self._clock.now()
        over = [kept for uid, kept in self.running.items() if self._is_over(uid, kept.run, now)]
        for start in range(0, len(over), _MAX_ENDS_A_WRITE):
            ending = [_ending(kept) for kept in over[start : start + _MAX_ENDS_A_WRITE]]
            await self._store.end_runs(ending)
            for kept, outcome, _ in ending:
                self._drop(kept.run.pod_uid)
                self._remember(kept.workload, outcome)
        if over:
            _log.info("runs ended", extra={"runs": len(over)})

    async def forget(self, retention: timedelta) -> None:
        before = self._clock.now() - retention
        await self._store.forget(before)
        self.history.forget(before)
        for uid in [uid for uid, kept in self.running.items() if kept.run.seen_until < before]:
            self._drop(uid)

    def _put(self, runs: Iterable[KeptRun]) -> None:
        for kept in runs:
            key = kept.workload.signature.key
            self.running[kept.run.pod_uid] = kept
            self.signatures[key] = kept.workload.signature
            self._uids.setdefault(key, set()).add(kept.run.pod_uid)
            self._owned.setdefault(kept.workload.signature.owner_key, set()).add(key)

    def _drop(self, uid: str) -> None:
        kept = self.running.pop(uid, None)
        if kept is not None:
            signature = kept.workload.signature
            self._uids[signature.key].discard(uid)
            if not self._uids[signature.key]:
                del self._uids[signature.key]
                self._owned[signature.owner_key].discard(signature.key)

    def _is_over(self, uid: str, run: Run, now: datetime) -> bool:
        workload = self._find(uid)
        silent_s = (now - run.seen_until).total_seconds()
        # A clock that was set may make the last window one of the future.
        return (workload is None or workload.ended) and abs(silent_s) > LAST_WINDOWS_S

    def _begin(self, uid: str, window: UsageWindow) -> KeptRun | None:
        """None of a pod that Kubernetes does not show: without its names it is like no other."""
        workload = self._find(uid)
        if workload is None or len(self.running) >= MAX_RUNNING:
            self._metrics.unknown_pods.inc()
            return None
        return KeptRun(begin_run(uid, workload.signature.key, window.start), workload)

    def _remember(self, workload: Workload, outcome: Outcome) -> None:
        self.history.add(workload.signature, outcome)
        self.signatures[workload.signature.key] = workload.signature


def _ending(kept: KeptRun) -> tuple[KeptRun, Outcome, LabelledRun | None]:
    label = LABELS.get(kept.workload.type_label.strip().lower())
    row = None if label is None else features_of(kept.run, kept.workload)
    labelled = None if row is None or label is None else LabelledRun(tuple(row.tolist()), label)
    return kept, outcome_of(kept.run, ended=True), labelled


def _by_pod(window: UsageWindow) -> dict[str, list[DeviceUsage]]:
    found: dict[str, list[DeviceUsage]] = {}
    for usage in window.devices:
        if usage.pod is not None and usage.pod.uid:
            found.setdefault(usage.pod.uid, []).append(usage)
    return found
