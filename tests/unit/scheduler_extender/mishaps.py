"""Moves of the game that seldom happen to a cluster: to be imported by whoever plays it."""

from tests.unit.scheduler_extender.game import Draw, Game, move


@move("failovers", weight=1, when=lambda game: bool(game.unbound()))
def a_pod_is_guarded_or_no_longer(game: Game, draw: Draw) -> None:
    """By a webhook of somebody else, which refuses to have it written."""
    names = game.unbound()
    game.world.api.guarded ^= {names[draw(len(names))]}


MISHAPS = (a_pod_is_guarded_or_no_longer,)
