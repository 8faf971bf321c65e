"""Binds through the real client while the API server is late, refuses, or cuts the line."""

import asyncio
import random

import pytest

from gpuloom.model.ledger import EntryState, Verdict
from gpuloom.sim.kubeapi.faults import When
from gpuloom.sim.kubeapi.objects.patches import MERGE, Patch
from gpuloom.sim.kubeapi.verbs.deletion import DeleteOptions
from tests.mesh.scheduler_extender.desk import Desk, a_desk
from tests.mesh.scheduler_extender.kubernetes import (
    BINDING,
    JsonObject,
    add_pod,
    allocation_of,
    devices_of,
    node_of,
    owners,
)
from tests.mesh.waiting import PATIENCE_S, until

SHORT_S = 0.3
"""Of a bind that is to run out of time."""
UNKNOWN = "the outcome of the bind is not known yet: "
IN_FLIGHT, OBSERVED = EntryState.IN_FLIGHT, EntryState.OBSERVED


async def test_a_bind_that_is_answered_in_time_gives_the_pod_its_devices() -> None:
    async with a_desk() as desk:
        await desk.add_node("n1", gpus=2)
        pod = await desk.add_pod("p")

        answer = await desk.bind(pod, "n1")
        at_once = desk.held_devices("n1")
        await until(lambda: desk.owners("n1") == [("p", OBSERVED)])

        assert answer == ""
        assert at_once == desk.held_devices("n1") == devices_of(desk.api, "p")
        assert allocation_of(desk.api, "p").pod_uid == pod["metadata"]["uid"]


async def test_a_pod_that_no_informer_has_shown_yet_is_read_and_bound() -> None:
    async with a_desk() as desk:
        await desk.add_node("n1")
        await desk.pause()
        pod = add_pod(desk.api, "p")

        answer = await desk.bind(pod, "n1")

        assert answer == ""
        assert node_of(desk.api, "p") == "n1"


async def test_a_binding_that_is_applied_but_answered_late_has_an_unknown_outcome() -> None:
    async with a_desk(SHORT_S) as desk:
        pod = await one_pod_on_two_nodes(desk)
        await desk.pause()
        desk.api.faults.delay_next("POST", BINDING, when="after")

        answer = await desk.bind(pod, "n1")

        assert answer.startswith(UNKNOWN)
        assert node_of(desk.api, "p") == "n1"
        assert desk.owners("n1") == [("p", IN_FLIGHT)]
        assert desk.held_devices("n1") == devices_of(desk.api, "p")


@pytest.mark.parametrize("observed", [True, False])
async def test_asking_again_for_the_same_node_finds_the_same_devices(observed: bool) -> None:
    async with a_desk() as desk:
        pod = await one_pod_on_two_nodes(desk)
        await desk.pause()
        desk.api.faults.drop_next("POST", BINDING, when="after")
        first = await desk.bind(pod, "n1")
        given = devices_of(desk.api, "p")
        if observed:
            await desk.follow()
            await until(lambda: desk.owners("n1") == [("p", OBSERVED)])

        again = await desk.bind(pod, "n1")

        assert first.startswith(UNKNOWN)
        assert again == ""
        assert devices_of(desk.api, "p") == desk.held_devices("n1") == given


@pytest.mark.parametrize("observed", [True, False])
async def test_asking_again_for_another_node_never_makes_a_second_owner(observed: bool) -> None:
    async with a_desk() as desk:
        pod = await one_pod_on_two_nodes(desk)
        await desk.pause()
        desk.api.faults.drop_next("POST", BINDING, when="after")
        await desk.bind(pod, "n1")
        if observed:
            await desk.follow()
            await until(lambda: desk.owners("n1") == [("p", OBSERVED)])

        answer = await desk.bind(pod, "n2")
        await desk.pause()
        await desk.follow()
        await until(lambda: desk.owners("n1") == [("p", OBSERVED)])

        assert answer == "the pod is already bound to n1"
        assert node_of(desk.api, "p") == "n1"
        assert desk.owners("n2") == []


async def test_a_binding_that_never_arrived_is_sent_again_with_the_same_devices() -> None:
    async with a_desk() as desk:
        pod = await one_pod_on_two_nodes(desk)
        desk.api.faults.drop_next("POST", BINDING)
        first = await desk.bind(pod, "n1")
        held = desk.held_devices("n1")

        again = await desk.bind(pod, "n1")

        assert first.startswith(UNKNOWN)
        assert again == ""
        assert devices_of(desk.api, "p") == held


async def test_a_binding_that_ran_out_of_time_before_it_was_applied_keeps_its_hold() -> None:
    async with a_desk(SHORT_S) as desk:
        pod, rival = await one_pod_on_two_nodes(desk), await desk.add_pod("rival")
        desk.api.faults.delay_next("POST", BINDING)

        answer = await desk.bind(pod, "n1")
        of_rival = await desk.bind(rival, "n1")

        assert answer.startswith(UNKNOWN)
        assert node_of(desk.api, "p") == ""
        assert desk.owners("n1") == [("p", IN_FLIGHT)]
        assert "free" in of_rival


async def test_a_bind_that_was_lost_and_asked_on_another_node_gives_the_first_hold_back_once_seen() -> None:
    async with a_desk() as desk:
        pod = await one_pod_on_two_nodes(desk)
        desk.api.faults.drop_next("POST", BINDING)
        await desk.bind(pod, "n1")
        await desk.pause()

        answer = await desk.bind(pod, "n2")
        unseen = desk.owners("n1"), desk.owners("n2")
        await desk.follow()
        await until(lambda: desk.owners("n2") == [("p", OBSERVED)])

        assert answer == ""
        assert unseen == ([("p", IN_FLIGHT)], [("p", IN_FLIGHT)])
        assert desk.owners("n1") == []
        assert node_of(desk.api, "p") == "n2"


@pytest.mark.parametrize(("winner", "loser"), [("n1", "n2"), ("n2", "n1")])
async def test_of_two_binds_in_flight_one_wins_and_the_other_hold_goes(winner: str, loser: str) -> None:
    async with a_desk() as desk:
        pod, rival = await one_pod_on_two_nodes(desk), await desk.add_pod("rival")
        holds, binds = {}, {}
        for name in ("n1", "n2"):
            holds[name] = desk.api.faults.delay_next("POST", r"/pods/p/binding$")
            binds[name] = asyncio.create_task(desk.bind(pod, name))
            await holds[name].reached()
        both = desk.owners("n1"), desk.owners("n2")
        of_rival = [await desk.bind(rival, name) for name in ("n1", "n2")]

        holds[winner].release()
        won = await binds[winner]
        holds[loser].release()
        lost = await binds[loser]
        await until(lambda: desk.owners(winner) == [("p", OBSERVED)])

        assert both == ([("p", IN_FLIGHT)], [("p", IN_FLIGHT)])
        assert all(of_rival)
        assert (won, lost) == ("", f"the pod is already bound to {winner}")
        assert node_of(desk.api, "p") == winner
        assert desk.owners(loser) == []
        assert await desk.bind(rival, loser) == ""


@pytest.mark.parametrize("code", [409, 403, 422])
async def test_a_binding_that_is_refused_gives_the_devices_back(code: int) -> None:
    async with a_desk() as desk:
        pod, rival = await one_pod_on_two_nodes(desk), await desk.add_pod("rival")
        desk.api.faults.fail_next("POST", BINDING, code)

        answer = await desk.bind(pod, "n1")
        left = desk.owners("n1")
        of_rival = await desk.bind(rival, "n1")

        assert answer.startswith("the API server refused the bind: ")
        assert left == []
        assert of_rival == ""


@pytest.mark.parametrize("code", [429, 500, 503, 504])
async def test_an_answer_that_may_hide_an_applied_binding_keeps_the_hold(code: int) -> None:
    async with a_desk() as desk:
        pod = await one_pod_on_two_nodes(desk)
        await desk.pause()
        desk.api.faults.fail_next("POST", BINDING, code, when="after")

        answer = await desk.bind(pod, "n1")

        assert answer.startswith(UNKNOWN)
        assert desk.owners("n1") == [("p", IN_FLIGHT)]


async def test_a_pod_that_changed_since_it_was_observed_is_bound_as_it_is() -> None:
    async with a_desk() as desk:
        pod = await one_pod_on_two_nodes(desk)
        await desk.pause()
        change(desk, "p")

        answer = await desk.bind(pod, "n1")
        held = desk.owners("n1")
        await desk.follow()
        await until(lambda: has_changed(desk, pod))

        assert answer == ""
        assert len(held) == 1
        assert desk.owners("n1") != []


async def test_a_refused_binding_gives_nothing_back_while_an_earlier_one_may_still_come() -> None:
    async with a_desk() as desk:
        pod = await one_pod_on_two_nodes(desk)
        hold = desk.api.faults.delay_next("POST", BINDING)
        first = asyncio.create_task(desk.bind(pod, "n1"))
        await hold.reached()
        desk.api.faults.fail_next("POST", BINDING, 409)

        second = await desk.bind(pod, "n1")
        meanwhile = desk.owners("n1")
        hold.release()

        assert await first == ""
        assert second.startswith("the outcome of another bind is not known yet: ")
        assert meanwhile == [("p", IN_FLIGHT)]
        assert devices_of(desk.api, "p") == desk.held_devices("n1")


async def test_a_refused_binding_whose_pod_cant_be_read_keeps_the_hold() -> None:
    async with a_desk() as desk:
        pod = await one_pod_on_two_nodes(desk)
        desk.api.faults.fail_next("POST", BINDING, 409)
        desk.api.faults.fail_next("GET", r"/pods/p$", 403, times=10)

        answer = await desk.bind(pod, "n1")

        assert answer.startswith(UNKNOWN)
        assert desk.owners("n1") == [("p", IN_FLIGHT)]


async def test_a_pod_that_goes_before_its_binding_arrives_frees_its_devices_once_its_node_shows_it() -> None:
    async with a_desk() as desk:
        pod = await one_pod_on_two_nodes(desk)
        hold = desk.api.faults.delay_next("POST", BINDING)
        bind = asyncio.create_task(desk.bind(pod, "n1"))
        await hold.reached()
        desk.api.store.delete("pods", "p", namespace="default", options=DeleteOptions(grace_s=0))
        await until(lambda: desk.state.ledger.pod(pod["metadata"]["uid"]) is None)
        meanwhile = desk.owners("n1")
        hold.release()

        assert await bind == "the pod is gone"
        assert meanwhile == [("p", EntryState.RELEASING)]
        await until(lambda: desk.owners_by_now("n1") == [])


async def test_every_bind_is_a_decision_to_look_at() -> None:
    async with a_desk() as desk:
        pod, rival = await one_pod_on_two_nodes(desk), await desk.add_pod("rival")
        desk.api.faults.fail_next("POST", BINDING, 409)

        await desk.bind(pod, "n1")
        await desk.bind(pod, "n1")
        await desk.bind(rival, "n1")

        told = [(item.pod.name, item.verdict, bool(item.reason)) for item in desk.context.decisions.newest()]
        assert told == [
            ("p", Verdict.BIND_FAILED, True),
            ("p", Verdict.BOUND, False),
            ("rival", Verdict.BIND_FAILED, True),
        ]


@pytest.mark.parametrize("seed", range(4))
async def test_no_device_gets_two_owners_whatever_happens_to_the_binds(seed: int) -> None:
    async with a_desk(SHORT_S) as desk:
        chance = random.Random(seed)
        nodes = ["n1", "n2", "n3"]
        for name in nodes:
            await desk.add_node(name, gpus=2)
        pods = [await desk.add_pod(f"p{number}") for number in range(9)]
        for _ in range(6):
            add_faults(desk, chance)
            asked = [desk.bind(pod, name) for pod in pods for name in chance.sample(nodes, 2)]
            await asyncio.gather(*asked)
        desk.api.faults.clear()
        async with asyncio.timeout(PATIENCE_S):
            while len(owners(desk.api)) < 6:
                await asyncio.gather(*(desk.bind(pod, name) for pod in pods for name in nodes))
        await until(lambda: not any(state is IN_FLIGHT for name in nodes for _, state in desk.owners(name)))

        given = owners(desk.api)
        assert all(len(names) == 1 for names in given.values())
        assert {name for names in given.values() for name in names} == {
            name for node in nodes for name, _ in desk.owners(node)
        }


def add_faults(desk: Desk, chance: random.Random) -> None:
    faults = desk.api.faults
    for _ in range(4):
        when: When = chance.choice(("before", "after"))
        match chance.randrange(3):
            case 0:
                faults.drop_next("POST", BINDING, when=when)
            case 1:
                faults.fail_next("POST", BINDING, chance.choice((429, 500)), when=when)
            case _:
                faults.delay_next("POST", BINDING, chance.uniform(0.0, 0.05), when=when)


async def one_pod_on_two_nodes(desk: Desk) -> JsonObject:
    """Each of the nodes has one GPU, and the pod asks for one."""
    await desk.add_node("n1")
    await desk.add_node("n2")
    return await desk.add_pod("p")


def change(desk: Desk, name: str) -> None:
    """Somebody labels the pod, which gives it another version."""
    patch = Patch({"metadata": {"labels": {"changed": "yes"}}}, MERGE)
    desk.api.store.patch("pods", name, patch, namespace="default")


def has_changed(desk: Desk, pod: JsonObject) -> bool:
    seen = desk.observed(pod)
    return seen is not None and seen["metadata"].get("labels") == {"changed": "yes"}
