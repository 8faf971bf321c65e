"""Crash anywhere, at any time: no machine is bought twice, and none is left that nobody knows."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuloom.model.claims import ClaimState, GpuNodeClaim
from services.autoscaler.core.lifecycle import claims as life
from services.autoscaler.core.lifecycle.claims import NodeFact
from services.autoscaler.core.lifecycle.machines import FailureKind, LaunchFailure
from services.autoscaler.core.lifecycle.sweep import Record, Seen, sweep
from tests.effort import examples
from tests.unit.autoscaler.claim_world import GROUP, POOL, TIMEOUTS, World, ready_world

ACTIONS = st.one_of(
    st.tuples(st.just("want"), st.integers(1, 3)),
    st.tuples(st.just("sweep"), st.none() | st.integers(0, 12)),
    st.tuples(st.just("settle"), st.none()),
    st.tuples(st.just("register"), st.none()),
    st.tuples(st.just("capacity"), st.booleans()),
    st.tuples(st.just("mapped"), st.booleans()),
    st.tuples(st.just("wait"), st.integers(1, 90)),
    st.tuples(st.just("drain"), st.integers(0, 5)),
    st.tuples(st.just("hide"), st.integers(0, 5)),
    st.tuples(st.just("reclaim"), st.integers(0, 5)),
)


def play(world: World, actions: list[tuple[str, int | bool | None]]) -> None:
    for kind, amount in actions:
        match kind:
            case "want":
                for _ in range(amount or 0):
                    world.create_claim()
            case "sweep":
                world.crash_in = amount
                world.sweep()
            case "settle":
                world.settle_cloud()
            case "register":
                world.register_all()
            case "capacity" | "mapped":
                setattr(world, kind, bool(amount))
            case "wait":
                world.wait(amount or 0)
            case "hide" | "reclaim":
                (world.hide if kind == "hide" else world.reclaim)(amount or 0)
            case "drain":
                names = sorted(world.claims)
                if names:
                    world.drain(names[(amount or 0) % len(names)])


@settings(max_examples=examples(500))
@given(grouped=st.booleans(), actions=st.lists(ACTIONS, max_size=40))
def test_f9_no_crash_buys_twice_or_leaves_a_machine_behind(
    grouped: bool, actions: list[tuple[str, int | bool | None]]
) -> None:
    world = World(grouped)

    play(world, actions)

    # A group gets another for what its cloud took back.
    assert world.bought <= world.created + world.reclaimed
    world.quiesce()
    assert world.bought <= world.created + world.reclaimed
    assert not world.chosen_by_cloud
    assert not world.ended_undrained
    owners = [one.status.instance_id for one in world.live_claims()]
    assert sorted(filter(None, owners)) == sorted(world.machines)
    assert all(one.status.state is ClaimState.GPU_READY for one in world.live_claims())
    assert world.desired == (len(world.machines) if grouped else world.desired)


@settings(max_examples=examples(300))
@given(grouped=st.booleans(), crashes=st.lists(st.integers(0, 6), max_size=12), wanted=st.integers(1, 4))
def test_every_claim_gets_its_machine_whatever_crashes(
    grouped: bool, crashes: list[int], wanted: int
) -> None:
    world = World(grouped)
    for _ in range(wanted):
        world.create_claim()

    for crash in crashes:
        world.crash_in = crash
        world.sweep()
        world.settle_cloud()
    world.quiesce()

    assert world.bought == wanted
    assert len(world.live_claims()) == wanted


@pytest.mark.parametrize("grouped", [True, False])
def test_a_machine_that_the_cloud_took_back_ends_its_claim(grouped: bool) -> None:
    world = ready_world(grouped)
    world.machines.clear()
    world.desired = 0

    world.sweep()
    world.wait(TIMEOUTS.missing_s - 1)
    world.sweep()
    early = len(world.live_claims())
    world.wait(1)
    world.sweep()

    assert early == 1
    assert not world.live_claims()


@pytest.mark.parametrize("grouped", [True, False])
def test_one_list_that_leaves_a_machine_out_ends_nothing_however_old_its_claim(grouped: bool) -> None:
    world = ready_world(grouped)
    world.wait(86_400)

    for _ in range(2):
        world.hide(0)
        world.sweep()
        world.wait(TIMEOUTS.missing_s - 1)
        world.sweep()

    assert len(world.live_claims()) == len(world.machines) == world.bought == 1


def test_a_machine_that_is_ended_while_another_is_asked_for_counts_no_more() -> None:
    """Else the group would be set to a size that has a place for it, and get another one there."""
    world = ready_world(grouped=True)
    world.drain(f"{POOL}-0")
    world.create_claim()
    requested = life.requested(world.now)
    world.claims[f"{POOL}-1"] = replace(world.claims[f"{POOL}-1"], status=requested)

    world.sweep()
    world.quiesce()

    assert world.bought == world.created == 2
    assert len(world.machines) == 1


def test_a_machine_that_a_list_leaves_out_once_makes_its_group_no_smaller() -> None:
    """The cloud would choose which machine ends, and nobody drained it."""
    world = World(grouped=True)
    for _ in range(2):
        world.create_claim()
    world.quiesce()

    world.hide(0)
    world.sweep()
    world.settle_cloud()
    world.quiesce()

    assert not world.chosen_by_cloud
    assert len(world.live_claims()) == world.bought == 2


def test_a_machine_that_nobody_asked_for_is_adopted_once() -> None:
    world = World(grouped=True, desired=1)
    world.settle_cloud()

    world.quiesce()

    (claim,) = world.live_claims()
    assert claim.status.state is ClaimState.GPU_READY
    assert world.desired == 1


@pytest.mark.parametrize("told", [True, False])
def test_an_adopted_machine_is_not_ended_where_no_node_tells_its_provider_id(told: bool) -> None:
    """It may be any of the nodes; where others tell theirs, it never joined."""
    world = World(grouped=True, desired=1)
    world.settle_cloud()
    if told:
        world.nodes = {"aws:///us-west-2a/i-cpu": NodeFact("cpu", "aws:///us-west-2a/i-cpu", True, 0)}
    for _ in range(3):
        world.sweep()
    world.wait(TIMEOUTS.register_s)

    for _ in range(3):
        world.sweep()
        world.settle_cloud()

    assert len(world.machines) == (0 if told else 1)


def test_a_machine_that_comes_after_its_claim_was_given_up_is_ended() -> None:
    world = World(grouped=False)
    world.create_claim()
    world.sweep()
    (claim,) = world.claims.values()
    status = life.failed(claim.status, life.CONDITION_LAUNCHED, "NoCapacity", "none", world.now)
    world.claims[claim.meta.name] = replace(claim, status=status)
    world._buy(claim.spec.token)

    world.quiesce()

    assert not world.machines


def test_f1_a_node_without_gpus_is_upcoming_and_never_a_reason_to_buy_again() -> None:
    world = World(grouped=False)
    world.create_claim()
    for _ in range(3):
        world.sweep()
    world.nodes = {
        one.provider_id: NodeFact("node", one.provider_id, True, 0) for one in world.machines.values()
    }
    world.sweep()
    world.wait(TIMEOUTS.gpu_s - 1)
    world.sweep()

    (claim,) = world.live_claims()
    assert claim.status.state is ClaimState.REGISTERED
    assert claim.status.state in life.UPCOMING
    assert claim.spec.gpu_count == 1


def test_f2_a_node_that_never_shows_its_gpus_is_drained_and_says_why() -> None:
    world = World(grouped=False)
    world.create_claim()
    for _ in range(3):
        world.sweep()
    world.nodes = {
        one.provider_id: NodeFact("node", one.provider_id, True, 0) for one in world.machines.values()
    }
    world.sweep()
    world.wait(TIMEOUTS.gpu_s)
    for _ in range(3):
        world.sweep()
        world.settle_cloud()

    (claim,) = world.claims.values()
    told = life.condition_of(claim, life.CONDITION_GPU_READY)
    assert claim.status.state is ClaimState.GONE
    assert told is not None
    assert told.reason == life.REASON_NO_GPUS
    assert not world.machines


def test_f5_a_group_that_gets_no_machine_stops_wanting_it() -> None:
    world = World(grouped=True, capacity=False)
    world.create_claim()
    world.sweep()
    world.sweep()
    assert world.desired == 1

    world.wait(TIMEOUTS.launch_s)
    world.sweep()
    world.sweep()

    (claim,) = world.claims.values()
    assert claim.status.state is ClaimState.GONE
    assert world.desired == 0


def test_f5_a_failure_that_the_cloud_tells_of_is_believed_at_once() -> None:
    world = World(grouped=True, capacity=False)
    world.create_claim()
    world.sweep()
    world.sweep()
    old = LaunchFailure(GROUP, FailureKind.CAPACITY, "before", world.now - timedelta(hours=1))
    new = LaunchFailure(GROUP, FailureKind.CAPACITY, "no p3.2xlarge", world.now + timedelta(seconds=1))

    def steps(failure: LaunchFailure) -> list[object]:
        view = replace(world.view(), failures=(failure,))
        return list(sweep(Seen(view, list(world.claims.values()), {}, world.now, timeouts=TIMEOUTS)))

    assert not steps(old)
    (step, *_) = steps(new)
    assert isinstance(step, Record)
    assert step.status.state is ClaimState.GONE
    assert step.claim.spec.pool_name == POOL


def test_a_machine_that_became_a_node_is_not_given_up_for_what_its_cloud_says_of_launches() -> None:
    """Azure says "Failed" of a machine that runs, too, where it could not update an extension."""
    world = World(grouped=True, desired=1)
    world.settle_cloud()
    world.quiesce()
    (claim,) = world.live_claims()
    failure = LaunchFailure(GROUP, FailureKind.CAPACITY, "failed", instance_id=claim.status.instance_id or "")

    def state_after(claim: GpuNodeClaim) -> ClaimState | None:
        view = replace(world.view(), failures=(failure,))
        steps = sweep(Seen(view, [claim], world.nodes, world.now, timeouts=TIMEOUTS))
        return next((one.status.state for one in steps if isinstance(one, Record)), None)

    launched = replace(claim, status=replace(claim.status, state=ClaimState.LAUNCHED, gpu_ready=None))
    assert state_after(launched) is ClaimState.REGISTERED, "as one that was there and is adopted"
    assert state_after(claim) is None
    world.nodes.clear()
    assert state_after(claim) is None
    assert state_after(replace(launched, spec=replace(claim.spec, token="asked-for"))) is ClaimState.DRAINING


@pytest.mark.parametrize("state", [one for one in ClaimState if one is not ClaimState.REQUESTED])
def test_machines_of_a_group_that_can_not_be_read_are_unknown_and_never_gone(state: ClaimState) -> None:
    world = ready_world(grouped=True)
    (claim,) = world.claims.values()
    claim = replace(claim, status=replace(claim.status, state=state, gone=world.now))
    view = replace(world.view(), instances=(), groups=(), unread={POOL: "there is no such group"})
    late, drained = world.now + timedelta(days=2), frozenset({claim.meta.name})

    assert sweep(Seen(view, [claim], {}, late, drained, timeouts=TIMEOUTS)) == []


def test_a_claim_that_waits_for_a_machine_of_a_group_that_can_not_be_read_gives_way() -> None:
    """Else its GPUs count as upcoming for ever; a machine that comes all the same is adopted."""
    world = World(grouped=True)
    world.create_claim()
    world.sweep()
    view = replace(world.view(), groups=(), unread={POOL: "there is no such group"})
    late = world.now + timedelta(seconds=TIMEOUTS.launch_s)

    (step,) = sweep(Seen(view, list(world.claims.values()), {}, late, timeouts=TIMEOUTS))

    assert isinstance(step, Record)
    assert step.status.state is ClaimState.GONE
