"""Small numbers for things that many nodes have in common, so that arrays can hold them.

A number is given back when the last user releases it, and is then used again: the arrays that are indexed by
such numbers stay as small as the cluster is diverse.
"""

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class Interner(Generic[T]):
    def __init__(self) -> None:
        self._numbers: dict[T, int] = {}
        self._things: dict[int, T] = {}
        self._users: list[int] = []
        self._spare: list[int] = []
        self.reuses = 0
        """How often a number that had meant one thing was given to another."""

    def __len__(self) -> int:
        """How many things have a number now."""
        return len(self._numbers)

    @property
    def capacity(self) -> int:
        """All numbers are below this."""
        return len(self._users)

    def items(self) -> Iterator[tuple[int, T]]:
        return iter(self._things.items())

    def users(self, number: int) -> int:
        return self._users[number]

    def thing(self, number: int) -> T:
        return self._things[number]

    def acquire(self, thing: T) -> int:
        number = self._numbers.get(thing)
        if number is None:
            number = self._new_number()
            self._numbers[thing], self._things[number] = number, thing
        self._users[number] += 1
        return number

    def release(self, number: int) -> None:
        self._users[number] -= 1
        if not self._users[number]:
            del self._numbers[self._things.pop(number)]
            self._spare.append(number)

    def _new_number(self) -> int:
        if self._spare:
            self.reuses += 1
            return self._spare.pop()
        self._users.append(0)
        return len(self._users) - 1
