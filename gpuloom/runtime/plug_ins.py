"""Functions that other packages bring, by the entry points of Python packaging."""

from importlib.metadata import entry_points
from typing import Any

from gpuloom.errors import InvalidRequestError


def plug_ins(group: str) -> dict[str, Any]:
    """By name. One that can't be loaded ends the start with the reason: it would be missed."""
    found: dict[str, Any] = {}
    for point in entry_points(group=group):
        try:
            found[point.name] = point.load()
        except Exception as error:
            raise InvalidRequestError(f"plug-in {point.name} of {group} ({point.value}): {error}") from error
    return found
