"""What a move of the game is, and all there are."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

Item = TypeVar("Item")
Draw = Callable[[int], int]
"""A number from 0 to below its argument: chance, or what hypothesis wants."""

Play = Callable[[Any, Draw], None]


@dataclass(frozen=True)
class Move:
    play: Play
    themes: tuple[str, ...]
    weight: int
    possible: Callable[[Any], bool]


MOVES: dict[str, Move] = {}


def move(
    *themes: str, weight: int = 2, when: Callable[[Any], bool] = lambda _: True
) -> Callable[[Play], Play]:
    def register(play: Play) -> Play:
        MOVES[play.__name__] = Move(play, (*themes, "all"), weight, when)
        return play

    return register


def pick(items: Sequence[Item], draw: Draw) -> Item:
    return items[draw(len(items))]
