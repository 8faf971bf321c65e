"""What the cost engine needs from outside."""

from collections.abc import Sequence
from typing import Protocol

from services.cost_engine.core.budgets import Crossing
from services.cost_engine.core.prices import Price

MALFORMED = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError)
"""What reading a reply raises that is not of the shape that it should be."""


class PriceSource(Protocol):
    """A cloud's price list."""

    @property
    def name(self) -> str: ...

    async def fetch(self, now_ns: int) -> Sequence[Price]:
        """Prices that hold now or held before. Raise a GpuloomError, with the reason, if it does not tell."""


class AlertChannel(Protocol):
    """Somebody who is told of a crossing."""

    @property
    def name(self) -> str:
        """The same for the same receiver: one that was told is not told again."""

    async def send(self, crossing: Crossing) -> None:
        """Raise a GpuloomError if it is not certain that it arrived."""
