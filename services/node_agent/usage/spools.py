"""All spools of a node, of which the last one is written. Decides when another is begun, and what is dropped.

While the disk takes windows there is one, through every restart of the agent until the node boots: its disk
may then be an older copy of itself, and numbers that were read already would be given again. When the disk
refuses, windows go to a spool in memory with an id of its own: their numbers would otherwise be given again
after a crash. Once the disk takes them again, that spool moves to the disk and is continued there.
"""

import asyncio
import logging
import re
import secrets
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpuloom.codec.usage import MAX_SPOOLS, window_to_proto
from gpuloom.model.usage import UsagePosition, UsageWindow
from gpuloom.runtime.clock import Clock
from gpuloom.v1.usage_pb2 import UsageWindow as WindowMessage
from services.node_agent.usage.disk_spool import DiskSpool, Written
from services.node_agent.usage.memory_spool import MemorySpool

RETRY_S = 60.0
NO_FOLDER = "no folder is set for usage windows (GPULOOM_AGENT_USAGE_DIR): a restart of the agent loses them"

_log = logging.getLogger(__name__)

_PLACE = re.compile(r"([0-9]{8})-[0-9a-f]{32}")
"""A folder of a spool: a number that grows, and the spool's id. Whatever else is there is left alone."""


@dataclass(frozen=True, slots=True)
class SpoolBounds:
    """`covered_ns`: so much time is kept, by the windows' own lengths: a clock that is set drops nothing."""

    covered_ns: int
    disk_bytes: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """Windows from `first` on; none if there is nothing more. `ended`: nothing more will ever come."""

    first: int
    windows: list[bytes]
    ended: bool


class Spools:
    """`append` is called by one task; `read` by any number."""

    def __init__(self, folder: Path | None, bounds: SpoolBounds, clock: Clock, boot_id: str = "") -> None:
        self._folder = folder
        self._boot_id = boot_id
        self._bounds = bounds
        self._clock = clock
        self._ended: list[DiskSpool] = []
        self._live: DiskSpool | MemorySpool = MemorySpool(_new_id(), bounds.memory_bytes)
        self._problem = "" if folder is not None else NO_FOLDER
        self._retry_at_s = 0.0
        self._news = asyncio.Event()
        self.dropped = 0
        """Windows that left a spool before their time, because of its size."""

    @property
    def problem(self) -> str:
        """Why windows are not on the disk now; empty if they are."""
        return self._problem

    @property
    def live_id(self) -> str:
        return self._live.spool_id

    @property
    def kept_bytes(self) -> int:
        live = self._live.size if isinstance(self._live, DiskSpool) else 0
        return live + sum(spool.size for spool in self._ended)

    def positions(self) -> tuple[UsagePosition, ...]:
        return tuple(
            UsagePosition(spool.spool_id, spool.first, spool.last) for spool in (*self._ended, self._live)
        )

    async def open(self) -> None:
        """Read what an agent before this one left."""
        if self._folder is None:
            return
        try:
            self._ended = await asyncio.to_thread(_load, self._folder, self._boot_id)
        except OSError as error:
            self._fail(error)
            return
        if self._ended and self._ended[-1].writable:
            self._live = self._ended.pop()
        elif isinstance(self._live, MemorySpool):
            await self._try_disk(self._folder, self._live)

    async def append(self, windows: Sequence[UsageWindow]) -> None:
        """Number these windows and keep them. Readers see them when they are kept."""
        if not windows:
            return
        live = self._live
        if isinstance(live, MemorySpool):
            self._append_to_memory(live, windows)
            if self._folder is not None and self._clock.monotonic() >= self._retry_at_s:
                await self._try_disk(self._folder, live)
        else:
            await self._append_to_disk(live, windows)
        await asyncio.to_thread(self._trim)
        self._news.set()
        self._news = asyncio.Event()

    async def read(self, spool_id: str, sequence: int, max_bytes: int) -> Chunk | None:
        """None if there is no such spool. Raise OSError if the disk does not answer."""
        live = self._live
        if spool_id == live.spool_id:
            if isinstance(live, MemorySpool):
                return Chunk(*live.read(sequence, max_bytes), ended=False)
            return Chunk(*await asyncio.to_thread(live.read, sequence, max_bytes), ended=False)
        for spool in tuple(self._ended):
            if spool.spool_id == spool_id:
                return Chunk(*await asyncio.to_thread(spool.read, sequence, max_bytes), ended=True)
        return None

    def news(self) -> asyncio.Event:
        """Set when anything was appended after this call; take it before reading."""
        return self._news

    async def _append_to_disk(self, live: DiskSpool, windows: Sequence[UsageWindow]) -> None:
        try:
            await asyncio.to_thread(live.append, _written(windows, live.last + 1))
        except OSError as error:
            self._fail(error)
            memory = MemorySpool(_new_id(), self._bounds.memory_bytes)
            # In this order: a reader always finds the old spool, as live or as ended.
            self._ended.append(live)
            self._live = memory
            self._append_to_memory(memory, windows)

    def _append_to_memory(self, live: MemorySpool, windows: Sequence[UsageWindow]) -> None:
        self.dropped += live.append(_written(windows, live.last + 1))

    async def _try_disk(self, folder: Path, memory: MemorySpool) -> None:
        """Move the spool that is in memory to the disk."""
        try:
            self._live = await asyncio.to_thread(_to_disk, folder, memory, self._boot_id)
        except OSError as error:
            self._fail(error)
            return
        if self._problem:
            _log.info("usage windows are kept on the disk again", extra={"folder": str(folder)})
        self._problem = ""

    def _fail(self, error: OSError) -> None:
        reason = error.strerror or str(error)
        if not self._problem:
            fields = {"folder": str(self._folder), "reason": reason}
            _log.warning("usage windows can't be kept on the disk; they stay in memory", extra=fields)
        self._problem = f"usage windows can't be kept in {self._folder}: {reason}"
        self._retry_at_s = self._clock.monotonic() + RETRY_S

    def _trim(self) -> None:
        """Drop the oldest windows beyond the bounds."""
        try:
            self._trim_time()
            self._trim_bytes()
            for spool in [spool for spool in self._ended if spool.first > spool.last]:
                self._ended.remove(spool)
                spool.remove()
        except OSError as error:
            _log.warning("old usage windows can't be dropped", extra={"reason": str(error)})

    def _trim_time(self) -> None:
        spools = self._on_disk()
        covered_ns = sum(spool.covered_ns for spool in spools)
        for spool in spools:
            while (oldest_ns := spool.oldest_covered_ns()) and (
                covered_ns - oldest_ns >= self._bounds.covered_ns
            ):
                if not spool.drop_oldest():
                    return
                covered_ns -= oldest_ns

    def _trim_bytes(self) -> None:
        for spool in self._on_disk():
            while self.kept_bytes > self._bounds.disk_bytes:
                dropped = spool.drop_oldest()
                if not dropped:
                    break
                self.dropped += dropped

    def _on_disk(self) -> list[DiskSpool]:
        return [*self._ended, *([self._live] if isinstance(self._live, DiskSpool) else [])]


def _written(windows: Sequence[UsageWindow], first: int) -> list[Written]:
    return [
        Written(
            window_to_proto(replace(window, sequence=number)).SerializeToString(deterministic=True),
            window.duration_ns,
        )
        for number, window in enumerate(windows, first)
    ]


def _load(folder: Path, boot_id: str) -> list[DiskSpool]:
    """Those with any window, in the order in which they were begun; no more than readers take."""
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for place in _places(folder):
        spool = DiskSpool.load(place, _duration_ns)
        if spool is not None:
            found.append(spool)
        else:
            shutil.rmtree(place, ignore_errors=True)
    for spool in found[: 1 - MAX_SPOOLS]:
        spool.remove()
    found = found[1 - MAX_SPOOLS :]
    # Only the newest one may be continued.
    for spool in found:
        spool.writable &= spool is found[-1] and spool.boot_id == boot_id
    return found


def _to_disk(folder: Path, memory: MemorySpool, boot_id: str) -> DiskSpool:
    folder.mkdir(parents=True, exist_ok=True)
    last = max((int(place.name.partition("-")[0]) for place in _places(folder)), default=0)
    place = folder / f"{last + 1:08d}-{memory.spool_id}"
    spool = DiskSpool.create(place, memory.spool_id, memory.first, boot_id)
    try:
        if memory.windows:
            spool.append(memory.windows)
    except OSError:
        spool.remove()
        raise
    return spool


def _places(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if _PLACE.fullmatch(path.name) and path.is_dir())


def _duration_ns(data: bytes) -> int:
    message = WindowMessage()
    message.ParseFromString(data)
    return message.duration_ns


def _new_id() -> str:
    return secrets.token_hex(16)
