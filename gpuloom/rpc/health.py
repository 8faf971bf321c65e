"""The standard grpc.health.v1 service. Says what it is told; decides nothing."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]

from gpuloom.errors import NotFoundError

_Context = aio.ServicerContext[Any, Any]

SERVICE = health_pb2.DESCRIPTOR.services_by_name["Health"]
add_to_server = health_pb2_grpc.add_HealthServicer_to_server


class HealthServicer(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """One status for the whole server, by the empty name and by the name of each service it has."""

    def __init__(self, services: frozenset[str]) -> None:
        self._services = services | {""}
        self._serving = True
        self._closed = False
        self._changed = asyncio.Condition()

    async def set_serving(self, serving: bool) -> None:
        await self._change(serving, closed=False)

    async def close(self) -> None:
        """NOT_SERVING for good; those who watch are told, and their streams end."""
        await self._change(serving=False, closed=True)

    async def Check(
        self, request: health_pb2.HealthCheckRequest, _context: _Context
    ) -> health_pb2.HealthCheckResponse:
        if request.service not in self._services:
            raise NotFoundError(f"no service {request.service!r} here")
        return self._answer(request.service)

    async def Watch(
        self, request: health_pb2.HealthCheckRequest, _context: _Context
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        told = None
        while True:
            async with self._changed:
                while not self._closed and self._answer(request.service) == told:
                    await self._changed.wait()
            # A close may come while the answer before it is still being sent: tell before the stream ends.
            if (answer := self._answer(request.service)) == told:
                return
            told = answer
            yield told

    def _answer(self, service: str) -> health_pb2.HealthCheckResponse:
        response = health_pb2.HealthCheckResponse
        if service not in self._services:
            return response(status=response.SERVICE_UNKNOWN)
        return response(status=response.SERVING if self._serving else response.NOT_SERVING)

    async def _change(self, serving: bool, closed: bool) -> None:
        async with self._changed:
            self._closed = self._closed or closed
            self._serving = serving and not self._closed
            self._changed.notify_all()
