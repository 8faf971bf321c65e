"""Holds on the ledger: when they begin and end, what may be taken, and what can't be read."""

from dataclasses import replace

import pytest

from gpuloom.kube.cache import Change
from gpuloom.model.allocation import AllocatedDevice
from gpuloom.model.claims import HoldOwner
from gpuloom.model.gpu import DeviceRef
from gpuloom.model.ledger import Claim, EntryState, Hold
from gpuloom.model.mig import MigPlacement
from gpuloom.model.node import NodeMode
from gpuloom.placement.occupancy.nominations import Asker
from services.scheduler_extender.core.ledger.holds import Holds, take_refusal
from services.scheduler_extender.core.ledger.ledger import Ledger
from services.scheduler_extender.state.cluster import ClusterState
from tests.unit.scheduler_extender.builders import (
    HandClock,
    JsonObject,
    a_gpu,
    a_node,
    a_ref,
    given,
    some_facts,
)

CUT = (("3g.20gb", 0), ("3g.20gb", 4))
FACTS = some_facts("node", a_gpu("GPU-a", 0), a_gpu("GPU-b", 1, slices=CUT))
SERVICE = HoldOwner("Service", "mig_controller")


def a_hold(device: AllocatedDevice | None = None, name: str = "h", owner: HoldOwner = SERVICE) -> Hold:
    return Hold(name, "node", owner, "x", device=device)


def a_place(start: int, profile: str = "3g.20gb") -> AllocatedDevice:
    return AllocatedDevice(DeviceRef("GPU-b", MigPlacement(start, profile)), 1000, 0)


def has(*devices: AllocatedDevice) -> Claim:
    return Claim(a_ref("pod"), EntryState.OBSERVED, devices, mode=NodeMode.GPULOOM)


@pytest.mark.parametrize(
    ("wanted", "claims", "holds", "reason"),
    [
        (None, [], [], ""),
        (None, [has(given("GPU-a", 100))], [], "in use by default/pod"),
        (None, [], [a_hold(given("GPU-a"), "other")], "held already: other"),
        (given("GPU-a"), [has(given("GPU-a", 100))], [], "in use"),
        (given("GPU-a"), [has(a_place(0))], [], ""),
        (given("GPU-a", 500, 100), [has(given("GPU-a", 500, 100))], [], ""),
        (given("GPU-a", 501, 100), [has(given("GPU-a", 500, 100))], [], "not that much left"),
        (given("GPU-a", 500, 100), [], [a_hold(given("GPU-a", 501, 100), "other")], "not that much left"),
        (given("GPU-a", 500, 100), [], [a_hold(given("GPU-a"), "other")], "held already"),
        (a_place(4), [has(a_place(0))], [], ""),
        (a_place(4), [has(a_place(4))], [], "in use"),
        (a_place(6, "1g.5gb"), [has(a_place(4))], [], "in use"),
        (a_place(4), [], [a_hold(a_place(0), "other")], ""),
        (a_place(6, "1g.5gb"), [], [a_hold(a_place(4), "other")], "held already"),
        (given("GPU-gone"), [], [], "no such GPU"),
        (given("GPU-a"), [Claim(a_ref("dark"), EntryState.OBSERVED, None)], [], "not known which devices"),
    ],
)
def test_only_what_is_free_is_taken(
    wanted: AllocatedDevice | None, claims: list[Claim], holds: list[Hold], reason: str
) -> None:
    said = take_refusal(a_hold(wanted), claims, holds, FACTS, allow_used=False)

    assert (reason in said) if reason else said == ""


def test_used_devices_are_taken_on_request_but_never_from_another_hold() -> None:
    used = [has(given("GPU-a"))]

    assert take_refusal(a_hold(given("GPU-a")), used, [], FACTS, allow_used=True) == ""
    assert "held already" in take_refusal(a_hold(), used, [a_hold(name="other")], FACTS, allow_used=True)


def test_devices_that_are_not_known_are_not_taken() -> None:
    said = take_refusal(a_hold(given("GPU-a")), [], [], None, allow_used=True)

    assert said == "the devices of the node are not known now"


def test_a_hold_counts_from_its_begin_to_its_end_whatever_is_heard_between() -> None:
    holds, hold = Holds(), a_hold(given("GPU-a"))

    holds.begin(hold)
    begun = holds.on("node"), holds.begun(), holds.take_touched()
    holds.observe(hold)
    seen = holds.on("node"), holds.begun()
    holds.gone("h", "")

    assert begun == ((hold,), (hold,), {"node"})
    assert seen == ((hold,), ())
    assert (holds.on("node"), len(holds), holds.take_reopened()) == ((), 0, {"node"})


def test_what_a_watch_shows_late_does_not_undo_what_an_answer_has_shown() -> None:
    """A hold was deleted and taken again under its name, and the watch is still at its first life."""
    holds = Holds()
    first = replace(a_hold(given("GPU-a")), uid="u1", version="5")
    second = replace(a_hold(given("GPU-b")), uid="u2", version="9")

    holds.observe(second)
    holds.observe(first)
    holds.gone("h", "u1")
    kept = holds.get("h")
    holds.rewind()
    holds.observe(first)

    assert kept == second
    assert holds.get("h") == first


def test_a_hold_is_found_by_whom_it_lets_through() -> None:
    holds = Holds()
    holds.observe(a_hold(name="pod", owner=HoldOwner("Pod", "p", "default", "uid-p")))
    holds.observe(a_hold(name="gang", owner=HoldOwner("Gang", "g", "default")))
    holds.observe(a_hold(name="service"))
    askers = [Asker("uid-p"), Asker("uid-x", gang="default/g"), Asker("uid-x", name="default/p"), Asker("")]

    left = [[hold.name for hold in holds.on("node", asker)] for asker in askers]

    assert left == [
        ["gang", "service"],
        ["pod", "service"],
        ["gang", "pod", "service"],
        ["gang", "pod", "service"],
    ]
    assert [holds.nodes_open_to(asker) for asker in askers] == [["node"], ["node"], [], []]


TARGETS: list[tuple[JsonObject, list[str]]] = [
    ({"target": {"nodeName": "node", "gpuUUID": "GPU-a", "milli": "much"}}, ["GPU-a"]),
    ({"target": {"nodeName": "node", "gpuUUID": 7}}, ["GPU-a", "GPU-b"]),
    ({"target": "node"}, ["GPU-a", "GPU-b"]),
    ({}, ["GPU-a", "GPU-b"]),
]


@pytest.mark.parametrize(("spec", "closed"), TARGETS)
def test_a_hold_that_can_t_be_read_closes_what_it_may_be_about_until_it_is_gone(
    spec: JsonObject, closed: list[str]
) -> None:
    state = ClusterState(Ledger(30.0), lambda: False, HandClock())
    state.observe_node(Change(None, a_node()))
    state.observe_facts("uid-node", FACTS)
    assert not unusable(state)
    broken = {"metadata": {"name": "broken", "uid": "u"}, "spec": spec}

    state.observe_hold(Change(None, broken))
    during = unusable(state)
    state.observe_hold(Change(broken, None))

    assert during == closed
    assert not unusable(state)
    assert "node" in state.take_reopened()


def unusable(state: ClusterState) -> list[str]:
    view = state.views.view("node")
    assert view is not None
    if view.closed_reason:
        assert view.closed_reason.startswith("a hold can't be read: ")
        return ["GPU-a", "GPU-b"]
    return [gpu.gpu.uuid for gpu in view.gpus if gpu.unusable_reason]
