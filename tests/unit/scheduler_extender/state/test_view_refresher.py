"""Views are made again between calls, a few at a time."""

import asyncio
from itertools import pairwise

from gpuloom.kube.cache import Change
from gpuloom.placement.fleet.fleet import Fleet
from gpuloom.runtime.clock import settle
from services.scheduler_extender.core.ledger.ledger import Ledger
from services.scheduler_extender.state.cluster import ClusterState
from services.scheduler_extender.state.view_refresher import NODES_A_TURN, ViewRefresher
from tests.unit.scheduler_extender.builders import HandClock, a_gpu, a_node, some_facts


async def test_changed_nodes_are_made_again_without_being_asked_for() -> None:
    state = ClusterState(Ledger(30.0), lambda: False, HandClock())
    refresher = ViewRefresher(state.views)
    for number in range(4 * NODES_A_TURN):
        state.observe_node(Change(None, a_node(f"n{number}")))
    left, reason = [state.views.outdated], refresher.unready_reason()

    task = asyncio.create_task(refresher.run())
    while left[-1]:
        await asyncio.sleep(0)
        left.append(state.views.outdated)
    task.cancel()
    await settle()

    assert reason == "views of nodes are being made"
    assert refresher.unready_reason() == ""
    assert all(before - after <= NODES_A_TURN for before, after in pairwise(left))


async def test_what_changes_on_the_ledger_alone_is_made_again_too() -> None:
    state = ClusterState(Ledger(30.0), lambda: False, HandClock())
    fleet = Fleet()
    state.views.keep(fleet)
    task = asyncio.create_task(ViewRefresher(state.views).run())
    state.observe_node(Change(None, a_node("n1")))
    await settle()
    before = fleet.view("n1")

    state.observe_facts("uid-n1", some_facts("n1", a_gpu("GPU-0", 0)))
    await settle()
    after = fleet.view("n1")
    task.cancel()
    await settle()

    assert before is not None
    assert before.closed_reason
    assert after is not None
    assert not after.closed_reason


async def test_once_ready_a_burst_of_changes_is_no_reason_not_to_be() -> None:
    state = ClusterState(Ledger(30.0), lambda: False, HandClock())
    refresher = ViewRefresher(state.views)

    before = refresher.unready_reason()
    state.observe_node(Change(None, a_node("n1")))

    assert before == refresher.unready_reason() == ""
