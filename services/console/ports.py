"""What the console needs of a source. A new section of the page is one module that makes one of these."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from services.console.core.sight import Rule
from services.console.core.state import Items


@dataclass(frozen=True, slots=True)
class Source:
    """Something that is asked every `interval_s`.

    `rules` names its sections, and says of each who sees what. `read` gives all items of each, and raises a
    GpuloomError or TimeoutError if they are not known now: the page then keeps what it has, and says so.
    `follow` runs beside it for as long as the process lives.
    """

    name: str
    rules: Mapping[str, Rule]
    interval_s: float
    read: Callable[[], Awaitable[Mapping[str, Items]]]
    follow: Callable[[], Awaitable[None]] | None = None
