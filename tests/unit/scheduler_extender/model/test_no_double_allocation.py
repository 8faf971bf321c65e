"""No device is ever given to two owners: the real ledger and bindings against a hostile, truthful model.

After every move three things must hold on every node: it owes no device beyond what it has, it would not if
everything on its way arrived and the extender gave away all that it believes to be free, and what extenders
keep of it is what they would make anew of all that they know.
"""

from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from gpuloom.codec.pod import is_terminal
from tests.effort import examples
from tests.unit.scheduler_extender.model.arenas import EVERYTHING
from tests.unit.scheduler_extender.model.calls import Task
from tests.unit.scheduler_extender.model.game import Game
from tests.unit.scheduler_extender.model.hold_moves import HOLD_MOVES
from tests.unit.scheduler_extender.model.mishaps import MISHAPS
from tests.unit.scheduler_extender.model.moves import MOVES
from tests.unit.scheduler_extender.model.planning import GANG, TIMEOUT_S
from tests.unit.scheduler_extender.model.planning_moves import PLANNING_MOVES, a_turn

WALKS_A_CASE = examples(200)
PLANNED_WALKS = examples(80)
assert all(play.__name__ in MOVES for play in (*MISHAPS, *HOLD_MOVES, *PLANNING_MOVES))


class Cluster(RuleBasedStateMachine):
    """Finds less in the same time than the walks below, but what it finds it makes short."""

    game: Game

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        self.game = Game(lambda below: data.draw(st.integers(0, below - 1)))

    @rule(data=st.data())
    def play(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.game.choices()))
        self.game.play(name, lambda below: data.draw(st.integers(0, below - 1)))

    @invariant()
    def no_device_has_two_owners(self) -> None:
        assert not self.game.world.overbooked()

    @invariant()
    def whatever_is_kept_is_as_if_made_anew(self) -> None:
        assert not self.game.world.out_of_step()


TestCluster = Cluster.TestCase
TestCluster.settings = settings(
    max_examples=examples(60), stateful_step_count=40, suppress_health_check=list(HealthCheck)
)


@pytest.mark.parametrize("case", range(4))
def test_no_walk_through_the_cluster_gives_a_device_to_two_owners(case: int) -> None:
    for seed in range(case * WALKS_A_CASE, (case + 1) * WALKS_A_CASE):
        walk(seed)


@pytest.mark.parametrize("case", range(4))
def test_no_failover_gives_a_device_to_two_owners(case: int) -> None:
    for seed in range(case * WALKS_A_CASE, (case + 1) * WALKS_A_CASE):
        walk(seed, "failovers")


@pytest.mark.parametrize("case", range(2))
def test_no_change_of_mode_and_no_resource_claim_gives_a_device_to_two_owners(case: int) -> None:
    for seed in range(case * WALKS_A_CASE, (case + 1) * WALKS_A_CASE):
        walk(seed, "modes")


@pytest.mark.parametrize("case", range(2))
def test_nothing_that_is_held_is_given_to_anybody_else(case: int) -> None:
    for seed in range(case * WALKS_A_CASE, (case + 1) * WALKS_A_CASE):
        walk(seed, "holds")


@pytest.mark.parametrize("case", range(2))
def test_no_gang_preemption_or_reservation_gives_a_device_to_two_owners_or_tears_a_gang(case: int) -> None:
    for seed in range(case * PLANNED_WALKS, (case + 1) * PLANNED_WALKS):
        game = walk(seed, "gangs")
        planned = game.world.replica.planning
        assert not planned.violations, f"seed {seed}: {planned.violations}"
        torn = settled(game)
        assert not torn, f"seed {seed}: {torn}"


def settled(game: Game) -> str:
    """Pods of the gang that are bound beside others that are not, when everybody has had all the time."""
    world = game.world
    for task in list(world.tasks):
        game._finish(task)
    game._complete_takeover()
    for _ in range(4):
        world.replica.hear_pods(EVERYTHING)
        world.replica.hear_holds(EVERYTHING)
        game._finish(Task(world.replica.bindings.settle()))
        game._finish(a_turn(world.replica))
        world.pass_time(TIMEOUT_S + 1)
    members = [pod for name, pod in world.api.pods.items() if name in GANG]
    alive = [pod for pod in members if "deletionTimestamp" not in pod["metadata"] and not is_terminal(pod)]
    bound = [pod["metadata"]["name"] for pod in alive if pod["spec"].get("nodeName")]
    return f"{bound} of {len(alive)} are bound" if 0 < len(bound) < len(alive) else ""


def walk(seed: int, theme: str = "") -> Game:
    chance = Random(seed)
    game, played = Game(chance.randrange, theme), list[str]()
    for _ in range(game.length):
        played.append(chance.choice(game.choices()))
        game.play(played[-1], chance.randrange)

        problem = game.world.overbooked() or game.world.out_of_step()
        assert not problem, f"seed {seed}, theme {game.theme}: {problem} after {played}"
    return game
