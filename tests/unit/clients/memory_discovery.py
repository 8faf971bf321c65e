"""Discovery without a network: a mirror reads the real server's messages as fast as the test lets it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, cast

from gpuloom.errors import UnavailableError
from gpuloom.rpc.channel import RpcChannel
from gpuloom.v1.discovery_pb2 import WatchClusterRequest, WatchClusterResponse
from services.discovery.server import DiscoveryServer


class MemoryDiscovery:
    """In place of a channel. Calls go to `server`; each message takes one permit."""

    def __init__(self, server: DiscoveryServer) -> None:
        self.server = server
        self._permits = asyncio.Semaphore(0)
        self._calls: list[MemoryCall] = []

    def channel(self) -> RpcChannel:
        return cast(RpcChannel, self)

    def stub(self, _make: object) -> Any:
        return self

    def WatchCluster(self, request: WatchClusterRequest) -> "MemoryCall":
        call = MemoryCall(self.server, request, self._permits)
        self._calls.append(call)
        return call

    def permit(self, messages: int) -> None:
        for _ in range(messages):
            self._permits.release()

    def cut(self) -> None:
        """Every open stream breaks."""
        for call in self._calls:
            call.broken.set()
        self._calls.clear()


class MemoryCall:
    def __init__(
        self, server: DiscoveryServer, request: WatchClusterRequest, permits: asyncio.Semaphore
    ) -> None:
        self.broken = asyncio.Event()
        self._server = server
        self._request = request
        self._permits = permits

    async def __aiter__(self) -> AsyncIterator[WatchClusterResponse]:
        async with aclosing(cast(Any, self._server.WatchCluster(self._request, None))) as messages:
            while True:
                await self._unless_broken(self._permits.acquire())
                message = await self._unless_broken(anext(messages))
                yield WatchClusterResponse.FromString(message)

    def cancel(self) -> None:
        self.broken.set()

    async def _unless_broken(self, work: Any) -> Any:
        task, broken = asyncio.ensure_future(work), asyncio.ensure_future(self.broken.wait())
        try:
            await asyncio.wait({task, broken}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise UnavailableError("the connection broke")
            return task.result()
        finally:
            task.cancel()
            broken.cancel()
            await asyncio.gather(task, broken, return_exceptions=True)
