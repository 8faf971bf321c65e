"""Moves of the game about gangs, preemptions and reservations: to be imported by whoever plays it."""

from gpuloom.errors import GpuloomError
from tests.unit.scheduler_extender.model.arenas import EVERYTHING
from tests.unit.scheduler_extender.model.calls import Task
from tests.unit.scheduler_extender.model.game import Game
from tests.unit.scheduler_extender.model.moves import Draw, move, pick
from tests.unit.scheduler_extender.model.planning import GANG, TIMEOUT_S
from tests.unit.scheduler_extender.model.replica import Replica


def a_turn(replica: Replica) -> Task:
    async def turning() -> str:
        try:
            await replica.planning.turn()
        except GpuloomError as error:
            return str(error)
        return "planned"

    return Task(turning())


@move("gangs", weight=6, when=lambda game: game.world.serves and not game.world.is_planning())
def the_leader_plans(game: Game, draw: Draw) -> None:
    """Half of the turns stop where the API is called, for other moves to come between."""
    task = a_turn(game.world.replica)
    if task.waits_for is not None:
        game.world.planning_task = task
        game.world.tasks.append(task)
    if draw(2):
        game._finish(task)


@move("gangs", when=lambda game: any(name not in game.world.api.pods for name in GANG))
def the_gang_is_made(game: Game, draw: Draw) -> None:
    for name in GANG:
        if name not in game.world.api.pods:
            game._make(name, draw)
    game.world.replica.hear_pods(EVERYTHING)


@move("gangs", weight=4, when=lambda game: game.world.serves and bool(game.unbound()))
def a_pod_is_bound_where_its_place_is(game: Game, draw: Draw) -> None:
    """As filter would have it; a pod without a place may go anywhere."""
    name = pick(game.unbound(), draw)
    ref = next(ref for ref in reversed(game.world.known) if ref.name == name)
    held = game.world.replica.state.ledger.holds.of_pod(ref.uid)
    node = held[0].node_name if held else pick(game.machines(), draw).name
    task = game.world.ask(ref, node)
    if draw(3):
        game._finish(task)
        game.world.replica.hear_pods(EVERYTHING)


@move("gangs", when=lambda game: bool(game.unbound()))
def kube_scheduler_finds_no_node_for_a_pod(game: Game, draw: Draw) -> None:
    game.world.api.refuse(pick(game.unbound(), draw))
    game.world.replica.hear_pods(EVERYTHING)


@move("gangs", weight=1)
def something_is_reserved_or_no_longer(game: Game, draw: Draw) -> None:
    game.world.reserved = not game.world.reserved
    for replica in game.world.replicas:
        replica.planning.reserve(game.world.reserved)


@move("gangs", weight=1)
def a_deadline_passes(game: Game, draw: Draw) -> None:
    game.world.pass_time(TIMEOUT_S + 1)


PLANNING_MOVES = (
    the_leader_plans,
    the_gang_is_made,
    a_pod_is_bound_where_its_place_is,
    kube_scheduler_finds_no_node_for_a_pod,
    something_is_reserved_or_no_longer,
    a_deadline_passes,
)
