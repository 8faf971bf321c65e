import asyncio

import aiohttp
import pytest

from gpuloom.runtime.clock import FakeClock

from .builders import PODS, Client, Reply, a_binding, a_pod, a_server


def bind_later(client: Client, query: str = "") -> "asyncio.Task[Reply]":
    return asyncio.create_task(client.post(f"{PODS}/p/binding{query}", a_binding("n1")))


async def test_the_next_requests_fail_and_then_no_more() -> None:
    async with a_server() as (api, client):
        api.store.create("pods", a_pod("p"))
        api.faults.fail_next("POST", "/binding$", status=503, times=2)

        codes = [(await client.post(f"{PODS}/p/binding", a_binding("n1"))).code for _ in range(3)]
        other = await client.get(PODS)

    assert codes == [503, 503, 201]
    assert other.code == 200


async def test_a_request_may_fail_although_it_was_applied() -> None:
    async with a_server() as (api, client):
        api.store.create("pods", a_pod("p"))
        api.faults.fail_next("POST", "binding", status=500, when="after")

        reply = await client.post(f"{PODS}/p/binding", a_binding("n1"))

        assert (reply.code, reply.body["kind"]) == (500, "Status")
        assert api.store.get("pods", "p")["spec"]["nodeName"] == "n1"


async def test_a_request_is_held_until_it_is_released() -> None:
    async with a_server() as (api, client):
        api.store.create("pods", a_pod("p"))
        hold = api.faults.delay_next("POST", "binding")
        bound = bind_later(client)
        await hold.reached()
        while_held = "nodeName" in api.store.get("pods", "p")["spec"]

        hold.release()

        assert not while_held
        assert (await bound).code == 201


async def test_a_request_is_held_for_a_time() -> None:
    clock = FakeClock()
    async with a_server(clock=clock) as (api, client):
        api.store.create("pods", a_pod("p"))
        hold = api.faults.delay_next("POST", "binding", 5.0, when="after")
        bound = bind_later(client)
        await hold.reached()
        applied = api.store.get("pods", "p")["spec"].get("nodeName")
        await clock.advance(5)

        assert applied == "n1"
        assert (await bound).code == 201


async def test_a_request_whose_time_is_over_is_not_applied() -> None:
    clock = FakeClock()
    async with a_server(clock=clock) as (api, client):
        pod = api.store.create("pods", a_pod("p"))
        hold = api.faults.delay_next("POST", "binding")
        bound = bind_later(client, "?timeout=2s")
        await hold.reached()
        await clock.advance(2)
        reply = await bound
        hold.release()

        assert (reply.code, reply.body["reason"]) == (504, "Timeout")
        assert api.store.get("pods", "p") == pod


async def test_a_request_may_time_out_after_it_was_applied() -> None:
    clock = FakeClock()
    async with a_server(clock=clock) as (api, client):
        api.store.create("pods", a_pod("p"))
        hold = api.faults.delay_next("POST", "binding", when="after")
        bound = bind_later(client, "?timeout=1500ms")
        await hold.reached()
        await clock.advance(1.5)

        assert (await bound).code == 504
        assert api.store.get("pods", "p")["spec"]["nodeName"] == "n1"


async def test_a_connection_is_dropped_after_the_request_was_applied() -> None:
    async with a_server() as (api, client):
        api.store.create("pods", a_pod("p"))
        api.faults.drop_next("POST", "binding", when="after")

        with pytest.raises(aiohttp.ClientConnectionError):
            await client.post(f"{PODS}/p/binding", a_binding("n1"))

        assert api.store.get("pods", "p")["spec"]["nodeName"] == "n1"


async def test_cleared_faults_strike_no_more() -> None:
    async with a_server() as (api, client):
        api.faults.fail_next("*", ".", times=5)
        first = await client.get(PODS)
        api.faults.clear()

        assert (first.code, (await client.get(PODS)).code) == (500, 200)
