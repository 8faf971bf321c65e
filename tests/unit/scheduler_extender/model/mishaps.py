"""Moves of the game that seldom happen to a cluster: to be imported by whoever plays it."""

from tests.unit.scheduler_extender.model.game import Game
from tests.unit.scheduler_extender.model.moves import Draw, move


@move("failovers", weight=1, when=lambda game: bool(game.unbound()))
def a_pod_is_guarded(game: Game, draw: Draw) -> None:
    """By a webhook of somebody else, which refuses to have it written."""
    names = game.unbound()
    game.world.api.guarded.add(names[draw(len(names))])


@move("failovers", "takeovers", "ends", weight=1)
def a_backup_is_made(game: Game, draw: Draw) -> None:
    game.world.api.back_up()


@move("failovers", "takeovers", "ends", weight=1, when=lambda game: game.world.may_restore())
def the_backup_is_restored(game: Game, draw: Draw) -> None:
    game.world.restore(survives=bool(draw(2)))


MISHAPS = (a_pod_is_guarded, a_backup_is_made, the_backup_is_restored)
