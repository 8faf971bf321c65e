"""HTTP/2 as any bytes in any pieces, and as another implementation of it speaks it."""

import asyncio
from collections.abc import Callable, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from services.scheduler_extender import http2_frames
from services.scheduler_extender.connection import LINGER_S
from services.scheduler_extender.http2_frames import CONTINUATION, END_HEADERS, HEADERS, frame, reset
from tests.effort import examples
from tests.unit.scheduler_extender.http2_client import Http2Client
from tests.unit.scheduler_extender.http2_lines import (
    ACK,
    NO_TABLE,
    START,
    Answer,
    Http2Line,
    a_block,
    a_call,
    a_head,
    a_part,
    a_ping,
)
from tests.unit.scheduler_extender.lines import cut

bodies = st.binary(max_size=300)
paths = st.sampled_from(("/now", "/later"))


def a_long_call(stream: int, path: str, parts: list[bytes]) -> bytes:
    """With a head in two pieces, a ping and padding on the way."""
    block = a_block(path)
    head = frame(HEADERS, 0, stream, block[:5]) + frame(CONTINUATION, END_HEADERS, stream, block[5:])
    padded = (a_part(stream, part, padding=len(part) % 7) for part in parts)
    return b"".join((head, a_ping(), *padded, a_part(stream, b"", ends=True)))


LAST: dict[str, Callable[[int], bytes]] = {
    "nothing": lambda stream: b"",
    "refused": lambda stream: a_call(stream, "/no", b"body"),
    "given up": lambda stream: a_head(stream, "/now") + reset(stream, 8),
    "no HTTP/2": lambda stream: b"\xff" * 20,
    "another length": lambda stream: (
        a_head(stream, "/now", ("content-length", "3")) + a_part(stream, b"four")
    ),
    "a promise": lambda stream: frame(http2_frames.PUSH_PROMISE, 0, stream, b"\0\0\0\x02"),
}


@st.composite
def conversations(draw: st.DrawFn) -> bytes:
    parts, stream = [START], 1
    for _ in range(draw(st.integers(0, 5))):
        long = draw(st.booleans())
        parts.append(
            a_long_call(stream, draw(paths), draw(st.lists(bodies, max_size=4)))
            if long
            else a_call(stream, draw(paths), draw(bodies))
        )
        stream += 2
    return b"".join((*parts, LAST[draw(st.sampled_from(sorted(LAST)))](stream)))


async def _played(
    parts: Sequence[bytes], prompt: bool
) -> tuple[dict[int, Answer], list[tuple[int, int]], bool]:
    """What is answered, which farewells are said, and whether that was the end."""
    line = Http2Line(started=False)
    for part in parts:
        line.send(part)
        if prompt:
            await line.finish()
    await line.finish()
    return line.answers, line.farewells, line.wire.closing


@settings(max_examples=examples(200))
@given(conversations(), st.lists(st.integers(0, 100_000), max_size=12))
def test_any_split_of_the_stream_gives_the_same_answers(stream: bytes, places: list[int]) -> None:
    whole = asyncio.run(_played([stream], prompt=False))
    split = asyncio.run(_played(cut(stream, places), prompt=False))

    assert split == whole


def test_a_stream_that_comes_byte_by_byte_gives_the_same_answers() -> None:
    stream = (
        START + a_call(1, "/later", b"one") + a_long_call(3, "/now", [b"two", b"three"]) + a_call(5, "/no")
    )

    whole = asyncio.run(_played([stream], prompt=False))
    split = asyncio.run(_played([bytes([byte]) for byte in stream], prompt=True))

    assert split == whole
    assert [answer.status for answer in whole[0].values()] == [200, 200, 403]


@settings(max_examples=examples(400))
@given(conversations(), st.data())
def test_whatever_is_changed_on_the_way_ends_in_an_answer_or_a_farewell(
    stream: bytes, data: st.DataObject
) -> None:
    changed = bytearray(stream)
    for _ in range(data.draw(st.integers(1, 6))):
        place = data.draw(st.integers(0, len(changed) - 1))
        match data.draw(st.sampled_from(("change", "cut", "insert"))):
            case "change":
                changed[place] = data.draw(st.integers(0, 255))
            case "cut":
                del changed[place : place + data.draw(st.integers(1, 30))]
            case _:
                changed[place:place] = data.draw(st.binary(max_size=12))
        if not changed:
            break

    async def play() -> Http2Line:
        line = Http2Line(started=False)
        line.send(bytes(changed))
        await line.finish()
        await line.after(40.0)
        await line.after(130.0)
        await line.after(LINGER_S)
        return line

    line = asyncio.run(play())

    assert line.farewells
    assert line.wire.closing
    assert set(line.statuses.values()) <= {200, 403, 405, 408, 431, 413}


def test_another_implementation_understands_and_is_understood() -> None:
    async def play() -> Http2Client:
        line, client, heard = Http2Line(started=False), Http2Client(), 0
        for path, size in (("/now", 0), ("/later", 10), ("/now", 200_000), ("/now", 13_000), ("/no", 5)):
            stream = client.ask(path, b"x" * size)
            while not client.answers[stream].is_whole:
                line.send(client.say())
                await line.finish()
                client.hear(bytes(line.wire.sent[heard:]))
                heard = len(line.wire.sent)
        return client

    client = asyncio.run(play())

    assert [answer.status for answer in client.answers.values()] == [200, 200, 200, 200, 403]
    assert [len(answer.body) for answer in client.answers.values()] == [2, 12, 200_002, 13_002, 3]
    assert client.streams_allowed == 1
    assert client.left


def test_a_client_that_heeds_our_settings_is_understood_from_memory() -> None:
    blocks = [NO_TABLE + a_block("/now"), a_block("/now"), a_block("/now", ("x-long", "y" * 2000))]
    calls = [
        frame(HEADERS, END_HEADERS | http2_frames.END_STREAM, 2 * number + 1, block)
        for number, block in enumerate(blocks)
    ]

    answers, farewells, _ = asyncio.run(_played([START + ACK, *calls], prompt=True))

    assert [answer.status for answer in answers.values()] == [200, 200, 200]
    assert not farewells
