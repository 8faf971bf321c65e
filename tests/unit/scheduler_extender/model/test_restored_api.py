"""Kubernetes is set back to an earlier state; nodes are not. What they may still run stays taken."""

from typing import Any

import pytest

from gpuloom.errors import DeadlineError
from gpuloom.kube.cache import Change
from gpuloom.kube.objects import JsonObject
from gpuloom.kube.resources import LEASES
from gpuloom.model.gpu import Gpu
from gpuloom.model.node import Holder, HolderSource
from services.scheduler_extender.adapters.lease import NotedLease
from tests.unit.scheduler_extender.bind_setup import POD, Desk
from tests.unit.scheduler_extender.builders import (
    a_gpu,
    a_holder,
    a_pod,
    a_ref,
    an_allocation,
    given,
    some_facts,
)

CARDS: tuple[Gpu, ...] = (a_gpu("GPU-n1-0", 0), a_gpu("GPU-n1-1", 1))
SETTLE_S = 30.0
GIVEN = an_allocation(POD, given("GPU-n1-0"), node_uid="uid-n1")
UNBOUND = a_pod(POD, version=1)
BOUND = a_pod(POD, node="n1", phase="Running", version=2, allocation=GIVEN)


def restore(desk: Desk, before: JsonObject | None, after: JsonObject | None) -> None:
    """As the informer tells it."""
    desk.state.rewind()
    desk.api.shown.clear()
    if after is not None:
        desk.api.show(after)
    desk.state.observe_pod(Change(before, after))


def report(desk: Desk, at_s: float, *holders: Holder) -> None:
    desk.clock.elapsed_s = at_s
    desk.state.observe_facts("uid-n1", some_facts("n1", *CARDS, holders=holders))
    desk.state.take_reopened()


@pytest.mark.parametrize("after", [UNBOUND, None])
def test_devices_of_a_pod_that_is_no_longer_bound_are_kept_until_its_node_shows_them_free(
    after: JsonObject | None,
) -> None:
    desk = Desk(BOUND)

    restore(desk, BOUND, after)
    at_once = desk.held_cards()
    report(desk, 5.0, a_holder(POD, "GPU-n1-0"))
    while_it_runs = desk.held_cards()
    report(desk, 100.0)
    report(desk, 100.0 + SETTLE_S)

    assert (at_once, while_it_runs, desk.held_cards()) == (1, 1, 0)


async def test_devices_of_a_bind_under_way_are_kept_until_its_node_shows_them_free() -> None:
    desk = Desk(UNBOUND, outcomes=[DeadlineError("the server ended")])
    await desk.bind()

    restore(desk, UNBOUND, UNBOUND)
    at_once = desk.held_cards()
    report(desk, 1.0)
    report(desk, 1.0 + SETTLE_S)

    assert (at_once, desk.held_cards()) == (1, 0)


async def test_a_pod_is_not_given_other_devices_where_it_may_still_run() -> None:
    desk = Desk(BOUND)
    restore(desk, BOUND, UNBOUND)

    refused, elsewhere = await desk.bind("n1"), await desk.bind("n2")

    assert refused == "the pod ran there before Kubernetes was set back; it may still do so"
    assert elsewhere == ""
    assert (desk.held_cards("n1"), desk.held_cards("n2")) == (1, 1)


def test_a_pod_that_had_ended_and_runs_again_has_its_devices_again() -> None:
    ended = a_pod(POD, node="n1", phase="Succeeded", version=3, allocation=GIVEN)
    desk = Desk(BOUND)
    desk.observe(ended)
    report(desk, 1.0)
    before = desk.held_cards()

    restore(desk, ended, BOUND)

    assert (before, desk.held_cards()) == (0, 1)


def test_what_a_node_shows_as_held_by_an_unbound_pod_is_taken_also_for_who_never_saw_it_bound() -> None:
    desk = Desk(UNBOUND)

    report(desk, 1.0, a_holder(POD, "GPU-n1-0", source=HolderSource.RUNTIME))

    assert desk.held_cards() == 1


class Leases:
    """Answers with these versions of the lease, one after the other."""

    def __init__(self, *versions: str) -> None:
        self._versions = list(versions)

    async def get(self, *_: object, **__: object) -> JsonObject:
        spec = {"holderIdentity": a_ref("leader").name}
        return {"metadata": {"resourceVersion": self._versions.pop(0)}, "spec": spec}


@pytest.mark.parametrize(
    ("versions", "rewinds"), [(("5", "5", "9"), 0), (("9", "5", "5"), 1), (("9", "5", "9", "4"), 2)]
)
async def test_a_lease_that_goes_back_tells_that_the_api_was_set_back(
    versions: tuple[str, ...], rewinds: int
) -> None:
    told: list[bool] = []
    client: Any = Leases(*versions)
    lease = NotedLease(client, lambda: told.append(True))

    for _ in versions:
        await lease.get(LEASES, "lease", "ns", timeout_s=1.0)

    assert len(told) == rewinds
