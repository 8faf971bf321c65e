"""Connections that are opened ahead of a burst."""

import asyncio

from aiohttp import web
from aiohttp.test_utils import TestServer

from gpuloom.kube.access import KubeAccess
from gpuloom.kube.client import KubeClient
from gpuloom.kube.resources import PODS
from gpuloom.runtime.clock import SystemClock


async def test_a_burst_finds_the_connections_that_were_opened_for_it() -> None:
    peers: list[object] = []
    gathered = asyncio.Barrier(3)

    async def answer(request: web.Request) -> web.Response:
        peers.append(request.get_extra_info("peername"))
        # Answered together, so that none of the three can share a connection.
        await gathered.wait()
        return web.json_response({"metadata": {"name": "pod"}})

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(application) as server:
        access = KubeAccess.with_token(f"http://{server.host}:{server.port}", "secret")
        async with KubeClient(access, SystemClock()) as client:
            await client.warm(3)
            warmed = set(peers)
            await asyncio.gather(*(client.get(PODS, "pod", "ns") for _ in range(3)))

    assert len(warmed) == 3
    assert set(peers) == warmed


async def test_a_server_that_cannot_be_reached_is_no_error_yet() -> None:
    async with KubeClient(KubeAccess("http://127.0.0.1:1"), SystemClock()) as client:
        await client.warm(2)
