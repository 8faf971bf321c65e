"""Moves of the game about holds: to be imported by whoever plays it."""

from gpuloom.model.node import NodeMode
from tests.unit.scheduler_extender.model.arenas import EVERYTHING
from tests.unit.scheduler_extender.model.calls import Task
from tests.unit.scheduler_extender.model.game import Game
from tests.unit.scheduler_extender.model.holds import NAMES, a_wanted_hold
from tests.unit.scheduler_extender.model.moves import Draw, move, pick


def _begin(game: Game, task: Task, draw: Draw) -> None:
    """Half of them stop where the API is called, for other moves to come between."""
    if task.waits_for is not None:
        game.world.tasks.append(task)
    if draw(2):
        game._finish(task)


@move("holds", weight=5, when=lambda game: game.world.serves)
def a_hold_is_taken(game: Game, draw: Draw) -> None:
    """For a service, or for a pod that may come or be bound already."""
    ours = [machine for machine in game.machines() if machine.mode is NodeMode.GPULOOM]
    if not ours:
        return
    machine, pods = pick(ours, draw), game.world.known[-3:]
    owner = pick(pods, draw) if pods and draw(3) == 0 else None
    wanted = a_wanted_hold(pick(NAMES, draw), machine, draw(8), owner)
    _begin(game, game.world.promises.take(game.world.replica.holding, wanted), draw)


@move("holds", when=lambda game: game.world.serves)
def a_hold_is_renewed(game: Game, draw: Draw) -> None:
    _begin(game, game.world.promises.renew(game.world.replica.holding, pick(NAMES, draw)), draw)


@move("holds", when=lambda game: game.world.serves)
def a_hold_is_released(game: Game, draw: Draw) -> None:
    _begin(game, game.world.promises.release(game.world.replica.holding, pick(NAMES, draw)), draw)


@move("holds", "gangs", when=lambda game: game.world.serves)
def holds_are_tidied(game: Game, draw: Draw) -> None:
    """What has expired or was used is ended."""
    game.world.pass_time(draw(3) * 15)
    _begin(game, Task(game.world.replica.holding.tidy()), draw)


@move("holds", "gangs")
def holds_are_heard(game: Game, draw: Draw) -> None:
    for replica in game.world.replicas:
        if draw(2):
            replica.hear_holds(EVERYTHING if draw(2) else 1)


@move("holds", "gangs", weight=1, when=lambda game: bool(game.world.api.holds.objects))
def somebody_deletes_a_hold(game: Game, draw: Draw) -> None:
    game.world.api.holds.delete_by_hand(pick(sorted(game.world.api.holds.objects), draw))


HOLD_MOVES = (
    a_hold_is_taken,
    a_hold_is_renewed,
    a_hold_is_released,
    holds_are_tidied,
    holds_are_heard,
    somebody_deletes_a_hold,
)
