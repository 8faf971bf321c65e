"""Spools on a disk that stops at any byte, is full, or comes back."""

import asyncio
import errno
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.codec.usage import MAX_SPOOLS, window_from_proto
from gpuloom.model.usage import UsageWindow
from gpuloom.runtime.clock import FakeClock
from gpuloom.v1.usage_pb2 import UsageWindow as WindowMessage
from services.node_agent.usage import disk_spool
from services.node_agent.usage.core.records import header, read_segment, record
from services.node_agent.usage.spools import RETRY_S, SpoolBounds, Spools
from tests.unit.node_agent.usage.builders import S, a_window

BOUNDS = SpoolBounds(covered_ns=24 * 3600 * S, disk_bytes=64 * 1024 * 1024, memory_bytes=64 * 1024)


async def opened(
    folder: Path | None, bounds: SpoolBounds = BOUNDS, clock: FakeClock | None = None, boot: str = "boot-1"
) -> Spools:
    spools = Spools(folder, bounds, clock or FakeClock(), boot)
    await spools.open()
    return spools


async def all_of(spools: Spools, spool_id: str, sequence: int = 1) -> list[UsageWindow]:
    found: list[UsageWindow] = []
    while (chunk := await spools.read(spool_id, sequence, 300)) is not None and chunk.windows:
        windows = [window_from_proto(WindowMessage.FromString(data)) for data in chunk.windows]
        assert [window.sequence for window in windows] == list(range(chunk.first, chunk.first + len(windows)))
        found += windows
        sequence = chunk.first + len(windows)
    return found


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=6), st.data())
def test_a_segment_that_was_cut_or_spoiled_gives_a_prefix(windows: list[bytes], data: st.DataObject) -> None:
    whole = header("0" * 32, 7) + b"".join(record(window) for window in windows)
    cut = data.draw(st.integers(0, len(whole)))
    torn = whole[:cut] + data.draw(st.sampled_from([b"", b"\0" * 9, b"\xff" * 9]))

    segment = read_segment(torn)

    found = list(segment.windows) if segment is not None else []
    assert found == windows[: len(found)]
    if cut == len(whole):
        assert found == windows


def test_after_a_crash_at_any_byte_all_windows_that_were_kept_are_there(tmp_path: Path) -> None:
    async def check() -> None:
        before = await opened(tmp_path / "before")
        await before.append([a_window(1), a_window(2)])
        await before.append([a_window(3)])
        (segment,) = (tmp_path / "before").glob("*/*.usage")
        kept = segment.stat().st_size
        await before.append([a_window(4)])
        written, spool_id = segment.read_bytes(), before.live_id
        for size in range(kept, len(written) + 1):
            folder = tmp_path / str(size)
            shutil.copytree(tmp_path / "before", folder)
            next(folder.glob("*/*.usage")).write_bytes(written[:size])

            after = await opened(folder)
            await after.append([a_window(5)])

            old, new = await all_of(after, spool_id), await all_of(after, after.live_id)
            survived = 4 if size == len(written) else 3
            expected = [a_window(number).start for number in range(1, survived + 1)]
            assert [window.start for window in old[:survived]] == expected
            # No number was ever given to two windows: only a number that nobody has seen is given again.
            assert new[-1].start == a_window(5).start
            assert new[-1].sequence == (survived + 1 if after.live_id == spool_id else 1)
            shutil.rmtree(folder)

    asyncio.run(check())


async def test_a_disk_that_is_an_older_copy_of_itself_gives_no_number_twice(tmp_path: Path) -> None:
    before = await opened(tmp_path / "disk")
    await before.append([a_window(1), a_window(2)])
    shutil.copytree(tmp_path / "disk", tmp_path / "copy")
    await before.append([a_window(3)])

    restored = await opened(tmp_path / "copy", boot="boot-2")
    await restored.append([a_window(9)])
    restarted = await opened(tmp_path / "copy", boot="boot-2")
    await restarted.append([a_window(10)])

    assert [window.start for window in await all_of(restarted, before.live_id)] == [
        a_window(number).start for number in (1, 2)
    ]
    assert [position.last for position in restarted.positions()] == [2, 2]
    assert restarted.live_id == restored.live_id != before.live_id


async def test_a_node_that_boots_again_and_again_leaves_no_more_spools_than_readers_take(
    tmp_path: Path,
) -> None:
    for number in range(MAX_SPOOLS + 3):
        spools = await opened(tmp_path, boot=f"boot-{number}")
        await spools.append([a_window(number)])

    assert len(spools.positions()) == MAX_SPOOLS
    assert spools.positions()[-1].spool_id == spools.live_id


async def test_windows_leave_by_age_and_by_size_and_the_gap_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_spool, "SEGMENT_NS", 10 * 60 * S)
    for bounds in (SpoolBounds(30 * 60 * S, 2**30, 2**20), SpoolBounds(2**62, 5_000, 2**20)):
        spools = await opened(tmp_path / str(bounds.disk_bytes), bounds)
        for number in range(100):
            await spools.append([a_window(number)])

        (position,) = spools.positions()
        chunk = await spools.read(spools.live_id, 1, 10)
        assert chunk is not None
        assert 1 < position.first == chunk.first
        assert position.last == 100
        assert len(await all_of(spools, spools.live_id)) == 100 - position.first + 1
        assert spools.kept_bytes <= 2 * 5_000


async def test_a_full_disk_raises_the_alarm_and_loses_nothing_that_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    spools = await opened(tmp_path, clock=clock)
    await spools.append([a_window(1)])
    first_id, full = spools.live_id, True
    append = disk_spool._append

    def refuse(path: Path, size: int, data: bytes) -> None:
        if full:
            raise OSError(errno.ENOSPC, "No space left on device")
        append(path, size, data)

    monkeypatch.setattr(disk_spool, "_append", refuse)
    for number in (2, 3):
        await spools.append([a_window(number)])
    alarmed, memory_id = spools.problem, spools.live_id
    full = False
    await clock.advance(RETRY_S)
    await spools.append([a_window(4)])
    again = await opened(tmp_path)

    assert "No space left" in alarmed
    assert spools.problem == ""
    # Windows in memory have numbers of another spool, and keep them on the disk.
    assert (spools.live_id, again.live_id) == (memory_id, memory_id)
    assert memory_id != first_id
    for each in (spools, again):
        assert [window.start for window in await all_of(each, first_id)] == [a_window(1).start]
        assert [window.start for window in await all_of(each, memory_id)] == [
            a_window(number).start for number in (2, 3, 4)
        ]


async def test_without_a_disk_the_oldest_go_first() -> None:
    spools = await opened(None)

    for number in range(2000):
        await spools.append([a_window(number)])

    (position,) = spools.positions()
    assert position.last == 2000
    assert position.first > 1
    assert spools.dropped == position.first - 1
    assert "GPULOOM_AGENT_USAGE_DIR" in spools.problem


async def test_a_segment_spoiled_in_the_middle_costs_what_is_behind_it_and_no_number(tmp_path: Path) -> None:
    spools = await opened(tmp_path)
    for number in range(10):
        await spools.append([a_window(number)])
    spoil_the_middle(tmp_path)

    again = await opened(tmp_path)
    await again.append([a_window(10)])

    assert again.live_id != spools.live_id
    assert 0 < len(await all_of(again, spools.live_id)) < 10
    assert len(await all_of(again, again.live_id)) == 1


def spoil_the_middle(folder: Path) -> None:
    (segment,) = folder.glob("*/*.usage")
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 0xFF
    segment.write_bytes(data)
