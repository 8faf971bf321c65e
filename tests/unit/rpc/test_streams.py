import asyncio
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.model.version import StreamVersion
from gpuloom.rpc.streams import (
    ReaderTooSlowError,
    StreamCursor,
    StreamGapError,
    Subscription,
    Update,
    VersionedFeed,
)
from gpuloom.runtime.clock import FakeClock, settle


class Sender:
    """A map that is published change by change."""

    def __init__(self, clock: FakeClock, epoch: str, capacity: int) -> None:
        self.state: dict[int, int] = {}
        self.feed = VersionedFeed[tuple[int, int]](clock, epoch, capacity)

    def put(self, key: int, value: int) -> None:
        self.state[key] = value
        self.feed.publish((key, value))


class Reader:
    """Follows a sender by the rules of the stream, and starts over whenever they say so."""

    def __init__(self, sender: Sender) -> None:
        self.state: dict[int, int] = {}
        self.open(sender)

    def open(self, sender: Sender) -> None:
        self._updates: Subscription[tuple[int, int]] = sender.feed.subscribe(heartbeat_s=1.0)
        self.cursor = StreamCursor()
        self.cursor.accept(self._updates.epoch, self._updates.number, 0, is_full=True)
        self.state = dict(sender.state)

    async def read(self, sender: Sender, count: int) -> None:
        for _ in range(count):
            try:
                update = await anext(self._updates)
            except ReaderTooSlowError:
                self._updates.close()
                self.open(sender)
                continue
            self._apply(update)

    def _apply(self, update: Update[tuple[int, int]] | None) -> None:
        if update is None:
            number = self._updates.number
            self.cursor.accept(self._updates.epoch, number, number, is_full=False)
            return
        self.cursor.accept(self._updates.epoch, update.number, update.after, is_full=False)
        key, value = update.delta
        self.state[key] = value


Puts = st.lists(st.tuples(st.integers(0, 3), st.integers()), max_size=8)


@given(rounds=st.lists(st.tuples(Puts, st.integers(0, 6)), max_size=12), capacity=st.integers(1, 5))
def test_a_reader_of_any_speed_ends_with_the_senders_state(
    rounds: list[tuple[list[tuple[int, int]], int]], capacity: int
) -> None:
    async def play() -> tuple[Sender, Reader]:
        clock = FakeClock()
        sender = Sender(clock, "one", capacity)
        reader = Reader(sender)
        for puts, reads in rounds:
            for key, value in puts:
                sender.put(key, value)
            await _read(clock, reader, sender, reads)
        await _read(clock, reader, sender, capacity + 2)
        return sender, reader

    sender, reader = asyncio.run(play())

    assert reader.state == sender.state
    assert reader.cursor.version == StreamVersion("one", sender.feed.number)


async def _read(clock: FakeClock, reader: Reader, sender: Sender, count: int) -> None:
    reading = asyncio.create_task(reader.read(sender, count))
    await clock.advance(count + 1.0)
    await reading


async def test_a_reader_gets_what_came_after_its_full_state() -> None:
    feed = VersionedFeed[str](FakeClock())
    feed.publish("before")

    with feed.subscribe() as updates:
        feed.publish("a")
        feed.publish("b")
        received = [await anext(updates), await anext(updates)]

    assert received == [Update(2, 1, "a"), Update(3, 2, "b")]


async def test_a_reader_that_falls_too_far_behind_is_told_to_start_over() -> None:
    feed = VersionedFeed[int](FakeClock(), capacity=2)
    slow, quick = feed.subscribe(), feed.subscribe()

    for number in range(3):
        feed.publish(number)
        await anext(quick)

    with pytest.raises(ReaderTooSlowError, match="more than 2 changes behind"):
        await anext(slow)


async def test_silence_is_a_heartbeat_that_repeats_the_readers_own_version() -> None:
    clock = FakeClock()
    feed = VersionedFeed[str](clock)
    with feed.subscribe(heartbeat_s=5.0) as updates:
        waiting = asyncio.create_task(anext(updates))

        await clock.advance(4.9)
        early = waiting.done()
        await clock.advance(0.2)

        assert not early
        assert await waiting is None
        assert updates.number == feed.number == 0


async def test_a_publish_wakes_a_waiting_reader_at_once() -> None:
    feed = VersionedFeed[str](FakeClock())
    with feed.subscribe(heartbeat_s=5.0) as updates:
        waiting = asyncio.create_task(anext(updates))
        await settle()

        feed.publish("news")

        assert await waiting == Update(1, 0, "news")


async def test_a_closed_subscription_ends_and_is_forgotten() -> None:
    feed = VersionedFeed[str](FakeClock())
    updates = feed.subscribe()

    updates.close()
    feed.publish("unheard")

    assert [update async for update in updates] == []
    assert feed._readers == set()


async def test_every_run_has_its_own_epoch() -> None:
    clock = FakeClock()

    assert VersionedFeed[str](clock).epoch != VersionedFeed[str](clock).epoch


Message = tuple[str, int, int, bool]


def follow(messages: Iterable[Message]) -> StreamVersion | None:
    cursor = StreamCursor()
    for message in messages:
        cursor.accept(*message)
    return cursor.version


FULL: Message = ("e", 4, 0, True)


def test_deltas_may_be_folded_and_heartbeats_repeat() -> None:
    version = follow([FULL, ("e", 5, 4, False), ("e", 9, 5, False), ("e", 9, 9, False)])

    assert version == StreamVersion("e", 9)


def test_a_full_state_may_come_in_parts_of_one_version() -> None:
    assert follow([FULL, FULL, ("e", 5, 4, False)]) == StreamVersion("e", 5)


@pytest.mark.parametrize(
    ("messages", "complaint"),
    [
        ([("e", 1, 0, False)], "did not begin with the full state"),
        ([FULL, ("e", 6, 5, False)], "at version 4, but the message leads from 5 to 6"),
        ([FULL, ("e", 4, 3, False)], "leads from 3 to 4"),
        ([FULL, ("e", 3, 4, False)], "leads from 4 to 3"),
        ([FULL, ("other", 5, 4, False)], "started anew"),
        ([FULL, ("e", 5, 0, True)], "a second full state"),
        ([FULL, ("e", 4, 4, False), FULL], "a second full state"),
        ([("e", 4, 3, True)], "builds on nothing"),
    ],
)
def test_whatever_does_not_continue_the_stream_is_a_gap(messages: list[Message], complaint: str) -> None:
    with pytest.raises(StreamGapError, match=complaint):
        follow(messages)


@given(steps=st.lists(st.integers(1, 3), min_size=1, max_size=20), data=st.data())
def test_any_lost_delta_is_noticed(steps: list[int], data: st.DataObject) -> None:
    deltas: list[Message] = []
    number = 4
    for step in steps:
        deltas.append(("e", number + step, number, False))
        number += step
    lost = data.draw(st.integers(0, len(deltas) - 1))
    rest = deltas[:lost] + deltas[lost + 1 :]
    heartbeat: Message = ("e", number, number, False)

    with pytest.raises(StreamGapError):
        follow([FULL, *rest, heartbeat])
