"""A watch that lets events gather: what comes soon after another is read later, together, and never lost."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field

import pytest

from gpuloom.errors import UnavailableError
from gpuloom.kube.access import KubeAccess
from gpuloom.kube.client import KubeClient
from gpuloom.kube.resources import PODS
from gpuloom.runtime.clock import FakeClock, settle
from tests.unit.kube.raw_server import a_server

GATHER_S = 0.05
HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


@dataclass
class Watched:
    """A watch from both ends: what its server says, and what its client has seen."""

    clock: FakeClock = field(default_factory=FakeClock)
    seen: list[str] = field(default_factory=list)
    server: asyncio.Future[asyncio.StreamWriter] = field(default_factory=asyncio.Future)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        self.server.set_result(writer)
        await asyncio.Event().wait()

    async def follow(self, client: KubeClient) -> None:
        async with aclosing(client.watch(PODS, "1", gather_s=GATHER_S)) as events:
            async for event in events:
                self.seen.append(event.object["metadata"]["name"])

    async def say(self, *pieces: bytes) -> None:
        """Each by itself, with time for all that happens by it."""
        for piece in pieces:
            (await self.server).write(piece)
            await turns()

    async def pass_time(self) -> None:
        await self.clock.advance(GATHER_S)
        await turns()


def pod(name: str) -> bytes:
    line = b'{"type": "ADDED", "object": {"metadata": {"name": "%b"}}}\n' % name.encode()
    return b"%x\r\n%b\r\n" % (len(line), line)


async def turns() -> None:
    """Let real sockets do their part."""
    for _ in range(50):
        await settle()


@asynccontextmanager
async def a_watch() -> AsyncIterator[tuple[Watched, asyncio.Task[None]]]:
    watched = Watched()
    async with a_server(watched.serve) as port:
        access = KubeAccess.with_token(f"http://127.0.0.1:{port}", "secret")
        async with KubeClient(access, watched.clock) as client:
            following = asyncio.create_task(watched.follow(client))
            await watched.say(HEAD)
            yield watched, following
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)


async def test_the_first_event_after_a_silence_is_read_at_once() -> None:
    async with a_watch() as (watched, _):
        await watched.say(pod("a"))
        first = list(watched.seen)
        await watched.pass_time()
        await watched.say(pod("b"))

    assert (first, watched.seen) == (["a"], ["a", "b"])


async def test_what_follows_is_read_together_when_the_time_is_over() -> None:
    async with a_watch() as (watched, _):
        await watched.say(pod("a"), pod("b"), pod("c"))
        before = list(watched.seen)
        await watched.pass_time()

    assert (before, watched.seen) == (["a"], ["a", "b", "c"])


async def test_an_event_that_came_half_is_read_to_its_end() -> None:
    text = pod("a")
    async with a_watch() as (watched, _):
        await watched.say(text[:20], text[20:])
        await watched.pass_time()

    assert watched.seen == ["a"]


async def test_a_watch_that_ends_meanwhile_ends_after_its_last_event() -> None:
    async with a_watch() as (watched, following):
        await watched.say(pod("a"), pod("b"), END)
        await watched.pass_time()
        await watched.pass_time()

        assert watched.seen == ["a", "b"]
        assert following.done()
        assert following.exception() is None


async def test_a_connection_that_breaks_meanwhile_is_known_to_be_broken() -> None:
    async with a_watch() as (watched, following):
        await watched.say(pod("a"), pod("b"))
        (await watched.server).transport.abort()
        await watched.pass_time()
        await watched.pass_time()

        assert following.done()
        with pytest.raises(UnavailableError):
            following.result()


async def test_a_watch_that_is_given_up_meanwhile_leaves_nothing_behind() -> None:
    async with a_watch() as (watched, following):
        await watched.say(pod("a"))
        following.cancel()
        # What is said to a connection that is gone closes the other end, too.
        await watched.say(pod("b"), pod("c"))

        assert following.cancelled()
        assert (await watched.server).transport.is_closing()
