"""The node agents, found through discovery; one channel per agent, kept while it is there."""

from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from gpuloom.clients.agent_directory import AgentDirectory
from gpuloom.clients.layouts import change_layout
from gpuloom.errors import NotFoundError
from gpuloom.model.layout import LayoutChange, LayoutRequest
from gpuloom.rpc.channel import RpcChannel
from gpuloom.rpc.environment import RpcEnvironment

_TIMEOUT_S = 15.0


class GrpcAgents:
    """A context: it closes its channels at the end."""

    def __init__(self, directory: AgentDirectory, environment: RpcEnvironment) -> None:
        self._directory = directory
        self._environment = environment
        self._channels: dict[str, tuple[str, AsyncExitStack, RpcChannel]] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for _, stack, _ in self._channels.values():
            await stack.aclose()
        self._channels.clear()

    async def change(self, node_uid: str, request: LayoutRequest) -> LayoutChange:
        return await change_layout(await self._channel(node_uid), request, _TIMEOUT_S)

    async def _channel(self, node_uid: str) -> RpcChannel:
        place = self._directory.places.get(node_uid)
        if place is None:
            raise NotFoundError("discovery knows no agent of that node")
        target = str(place.address)
        known = self._channels.get(node_uid)
        if known is not None and known[0] == target:
            return known[2]
        if known is not None:
            del self._channels[node_uid]
            await known[1].aclose()
        stack = AsyncExitStack()
        channel = await stack.enter_async_context(RpcChannel(self._environment, target, "node_agent"))
        self._channels[node_uid] = target, stack, channel
        return channel
