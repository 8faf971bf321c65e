import random
from collections.abc import Sequence

import pytest
from prometheus_client import CollectorRegistry

from gpuloom.clients.replicas import Replicas, resolve
from gpuloom.rpc.environment import RpcEnvironment
from gpuloom.rpc.interceptors import UnreachableError
from gpuloom.runtime.clock import SystemClock
from gpuloom.runtime.parsers import Address

NAME = Address("discovery", 50053)


class Names:
    """A name service that the test can change."""

    def __init__(self, *hosts: str) -> None:
        self.hosts = hosts

    async def look_up(self, address: Address) -> Sequence[Address]:
        if not self.hosts:
            raise OSError("no such name")
        return [Address(host, address.port) for host in self.hosts]


def replicas_of(names: Names, *places: Address, seed: int = 1) -> Replicas:
    environment = RpcEnvironment(None, CollectorRegistry(), SystemClock(), random.Random(seed))
    return Replicas(environment, places or (NAME,), "discovery", names.look_up)


async def asked(replicas: Replicas, times: int) -> list[str]:
    targets = []
    for _ in range(times):
        async with replicas.connect_next() as channel:
            targets.append(channel.target)
    return targets


async def test_every_replica_behind_a_name_gets_its_turn() -> None:
    replicas = replicas_of(Names("10.0.0.1", "10.0.0.2", "10.0.0.3"))

    targets = await asked(replicas, 6)

    assert len(set(targets[:3])) == 3
    assert targets[3:] == targets[:3]


async def test_readers_begin_at_different_replicas() -> None:
    names = Names("10.0.0.1", "10.0.0.2", "10.0.0.3")

    first = {(await asked(replicas_of(names, seed=seed), 1))[0] for seed in range(20)}

    assert len(first) == 3


async def test_a_replica_that_was_replaced_is_left_out() -> None:
    names = Names("10.0.0.1", "10.0.0.2")
    replicas = replicas_of(names)
    await asked(replicas, 2)

    names.hosts = ("10.0.0.2", "10.0.0.3")
    targets = await asked(replicas, 4)

    assert set(targets) == {"10.0.0.2:50053", "10.0.0.3:50053"}


async def test_several_addresses_are_replicas_too() -> None:
    replicas = replicas_of(Names("10.0.0.1"), Address("a", 1), Address("b", 2))

    assert set(await asked(replicas, 2)) == {"10.0.0.1:1", "10.0.0.1:2"}


async def test_no_address_is_an_error_with_the_reason() -> None:
    replicas = replicas_of(Names())

    with pytest.raises(UnreachableError, match="discovery:50053: no such name"):
        await asked(replicas, 1)


async def test_an_address_needs_no_name_service() -> None:
    assert await resolve(Address("127.0.0.1", 7)) == [Address("127.0.0.1", 7)]
