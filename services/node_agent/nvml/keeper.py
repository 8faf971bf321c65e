"""Keeps the record in a file, off the event loop, and never lets a broken disk stop the agent."""

import logging
import os
from functools import partial
from pathlib import Path

from gpuloom.runtime.clock import Clock
from services.node_agent.nvml.lane import Lane, LaneLimits, Outcome, wait_for
from services.node_agent.nvml.record import Record, RecordError, decode, encode

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

_log = logging.getLogger(__name__)

_FILE = "nvml.json"
_MAX_BYTES = 4 * 1024 * 1024
_RETRY_S = 60.0
_PATIENCE_S = 2.0


class Keeper:
    """Writes when something changed, one write at a time; a failed one is tried again after a minute."""

    def __init__(self, directory: Path, boot_id: Path, clock: Clock, limits: LaneLimits) -> None:
        self._path = directory / _FILE
        self._boot_id = boot_id
        self._clock = clock
        self._reads: Lane[Record | None] = Lane("record-read", clock, limits)
        self._writes: Lane[None] = Lane("record-write", clock, limits)
        self._kept: Record | None = None
        self._retry_at_s = 0.0
        self._warned = False

    async def load(self) -> Record:
        """What was kept in this boot; an empty record if nothing was, or it can't be used."""
        await wait_for(self._clock, _PATIENCE_S, self._reads.start(self._read))
        outcome = self._reads.take()
        if outcome is None:
            _log.warning("the record of the GPUs can't be read in time", extra={"file": str(self._path)})
            return Record()
        if outcome.error is not None:
            raise outcome.error
        self._kept = outcome.value
        return outcome.value or Record()

    def keep(self, record: Record) -> None:
        self._take()
        if record == self._kept or self._clock.monotonic() < self._retry_at_s or self._writes.busy:
            return
        if self._writes.start(partial(self._write, record)) is not None:
            self._kept = record

    async def close(self, record: Record) -> None:
        """Keep this last one, if the disk answers soon."""
        for _ in range(2):
            self.keep(record)
            await wait_for(self._clock, _PATIENCE_S, self._writes.pending)
        self._take()

    def _take(self) -> None:
        outcome = self._writes.take()
        if outcome is not None and outcome.error is not None:
            self._failed(outcome)

    def _failed(self, outcome: Outcome[None]) -> None:
        if not isinstance(outcome.error, OSError):
            raise outcome.error or RuntimeError("a write failed without an error")
        self._kept = None
        self._retry_at_s = self._clock.monotonic() + _RETRY_S
        if not self._warned:
            fields = {"file": str(self._path), "reason": str(outcome.error)}
            _log.warning("the record of the GPUs can't be kept: a restart forgets faults", extra=fields)
        self._warned = True

    def _read(self) -> Record | None:
        try:
            with self._path.open("rb") as file:
                content = file.read(_MAX_BYTES + 1)
            if len(content) > _MAX_BYTES:
                raise RecordError("it is too large")
            return decode(content.decode(errors="replace"), self._boot_id.read_text().strip())
        except FileNotFoundError:
            return None
        except (OSError, RecordError) as error:
            fields = {"file": str(self._path), "reason": str(error)}
            _log.warning("the record of the GPUs is not used", extra=fields)
            return None

    def _write(self, record: Record) -> None:
        """Whole or not at all, whenever the machine stops."""
        text = encode(record, self._boot_id.read_text().strip())
        self._path.parent.mkdir(parents=True, exist_ok=True)
        replacement = self._path.with_suffix(".new")
        with replacement.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        replacement.replace(self._path)
        directory = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
