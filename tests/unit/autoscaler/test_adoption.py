"""No node's machine is ended undrained, whatever became of its claim while its cloud did not tell of it."""

from dataclasses import replace
from datetime import timedelta

import pytest

from gpuloom.model.claims import ClaimState, GpuNodeClaim
from gpuloom.model.objects import ConditionStatus
from services.autoscaler.core.lifecycle import claims as life
from tests.unit.autoscaler.claim_world import TIMEOUTS, World, ready_world


def listed(claim: GpuNodeClaim) -> ConditionStatus | None:
    told = life.condition_of(claim, life.CONDITION_LISTED)
    return None if told is None else told.status


@pytest.mark.parametrize("state", [None, ClaimState.LAUNCHED, ClaimState.DRAINING])
def test_a_machine_whose_group_is_configured_no_more_is_unknown_as_long_as_its_node_is_there(
    state: ClaimState | None,
) -> None:
    world = ready_world(grouped=True)
    (name, claim) = next(iter(world.claims.items()))
    if state is ClaimState.LAUNCHED:
        early = replace(claim.status, state=state, node_name=None, registered=None, gpu_ready=None)
        world.claims[name] = replace(claim, status=early)
    elif state is ClaimState.DRAINING:
        world.drain(name)
    world.mapped = False

    for _ in range(3):
        world.sweep()
        world.wait(86_400)
    unknown = world.claims[name]
    world.nodes.clear()
    for _ in range(2):
        world.sweep()
        world.wait(TIMEOUTS.missing_s)
    world.sweep()

    assert (unknown.status.state, listed(unknown)) == (
        state or ClaimState.GPU_READY,
        ConditionStatus.UNKNOWN,
    )
    assert name not in world.claims or world.claims[name].status.state is ClaimState.GONE


def test_a_machine_that_has_no_node_yet_may_still_get_one_while_its_group_is_not_configured() -> None:
    world = World(grouped=True)
    world.create_claim()
    for _ in range(3):
        world.sweep()
        world.settle_cloud()
    world.mapped = False

    world.sweep()
    world.wait(TIMEOUTS.register_s - 1)
    world.sweep()
    (claim,) = world.live_claims()
    world.wait(1 + TIMEOUTS.missing_s)
    for _ in range(2):
        world.sweep()
        world.wait(TIMEOUTS.missing_s)

    assert (claim.status.state, listed(claim)) == (ClaimState.LAUNCHED, ConditionStatus.UNKNOWN)
    assert not world.live_claims()


def test_a_list_without_the_machine_ends_nothing_at_once_when_its_group_is_configured_again() -> None:
    world = ready_world(grouped=True)
    world.mapped = False
    world.sweep()
    world.wait(86_400)
    world.mapped = True

    world.hide(0)
    world.sweep()
    world.quiesce()

    (claim,) = world.live_claims()
    assert listed(claim) is ConditionStatus.TRUE
    assert len(world.machines) == world.bought == 1


@pytest.mark.parametrize("grouped", [True, False])
@pytest.mark.parametrize("was_drained", [True, False])
def test_a_node_whose_claim_is_over_is_adopted_again_unless_it_was_drained(
    grouped: bool, was_drained: bool
) -> None:
    """Its cloud did not list it for a while, or the settings named another cloud."""
    world = ready_world(grouped)
    (name,) = world.claims
    if was_drained:
        world.drain(name)
    machines, world.machines = world.machines, {}
    for _ in range(2):
        world.sweep()
        world.wait(TIMEOUTS.missing_s)
    over = world.claims[name].status.state
    world.machines = machines

    world.quiesce()

    assert over is ClaimState.GONE
    assert not world.ended_undrained
    assert [one.status.state for one in world.live_claims()] == (
        [] if was_drained else [ClaimState.GPU_READY]
    )
    assert bool(world.machines) is not was_drained


def test_a_node_that_joined_after_it_was_given_up_is_drained_before_its_machine_ends() -> None:
    world = World(grouped=False)
    world.create_claim()
    for _ in range(3):
        world.sweep()
    world.wait(TIMEOUTS.register_s)
    world.sweep()
    (claim,) = world.claims.values()
    world.register_all()

    world.sweep()
    named = world.claims[claim.meta.name].status.node_name
    world.quiesce()

    assert (claim.status.state, claim.status.node_name) == (ClaimState.DRAINING, None)
    assert named == "i-0"
    assert not world.ended_undrained
    assert not world.machines


def test_a_machine_gets_the_claim_that_was_made_for_it_though_an_older_one_comes_to_light() -> None:
    """Else the claim's name is taken, and the machine is nobody's for good."""
    world = World(grouped=True, desired=1)
    world.settle_cloud()
    world.sweep()
    older = world.now - timedelta(hours=1)
    first = world.machines["i-0"]
    world.machines["i-1"] = replace(
        first, instance_id="i-1", provider_id="aws:///us-west-2a/i-1", launched_at=older
    )
    world.desired = 2

    world.quiesce()

    owned = {one.spec.token: one.status.instance_id for one in world.live_claims()}
    assert owned == {"i-0": "i-0", "i-1": "i-1"}


def test_a_node_that_joined_after_its_claim_was_over_was_never_drained() -> None:
    world = World(grouped=False)
    world.create_claim()
    for _ in range(3):
        world.sweep()
    world.wait(TIMEOUTS.register_s)
    world.sweep()
    world.hide(0)
    world.sweep()
    (claim,) = world.claims.values()
    world.register_all()

    world.quiesce()

    assert claim.status.state is ClaimState.GONE
    assert not world.ended_undrained
    assert len(world.live_claims()) == len(world.machines) == 1
