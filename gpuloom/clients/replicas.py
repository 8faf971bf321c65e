"""The replicas of one service, tried one after the other.

Decides which replica is asked next: each process goes through them in an order of its own, so that readers
spread, and never asks the one it just lost while there is another. It does not decide when to try again.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from random import Random

from gpuloom.rpc.channel import RpcChannel
from gpuloom.rpc.environment import RpcEnvironment
from gpuloom.rpc.interceptors import UnreachableError
from gpuloom.runtime.clock import deadline
from gpuloom.runtime.parsers import Address

RESOLVE_TIMEOUT_S = 5.0

Resolve = Callable[[Address], Awaitable[Sequence[Address]]]


async def resolve(address: Address) -> list[Address]:
    """All addresses behind a name; a headless Service has one per replica. Raise OSError if there is none."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    return [Address(str(place[0]), address.port) for *_, place in found]


class Replicas:
    """Where the replicas of `service` may be: addresses, or names with several addresses behind them."""

    def __init__(
        self,
        environment: RpcEnvironment,
        places: Sequence[Address],
        service: str,
        resolve: Resolve = resolve,
    ) -> None:
        self._environment = environment
        self._places = tuple(places)
        self._service = service
        self._resolve = resolve
        self._order_seed = environment.chance.getrandbits(32)
        self._last_rank = -1.0

    @asynccontextmanager
    async def connect_next(self) -> AsyncIterator[RpcChannel]:
        """A connection of its own to the next replica, closed with the block.

        Names are looked up each time: replicas come and go. Raise UnreachableError if none is found.
        """
        ranked = sorted((self._rank(address), str(address)) for address in await self._addresses())
        rank, target = next((place for place in ranked if place[0] > self._last_rank), ranked[0])
        self._last_rank = rank
        async with RpcChannel(self._environment, target, self._service) as channel:
            yield channel

    async def _addresses(self) -> set[Address]:
        found = set[Address]()
        reasons = []
        for place in self._places:
            try:
                async with deadline(self._environment.clock, RESOLVE_TIMEOUT_S):
                    found.update(await self._resolve(place))
            except OSError as error:  # TimeoutError is one
                reasons.append(f"{place}: {error}")
        if not found:
            raise UnreachableError(self._service, "; ".join(reasons) or "no address is known")
        return found

    def _rank(self, address: Address) -> float:
        """The same address always has the same place, whatever else comes and goes."""
        return Random(f"{self._order_seed} {address}").random()
