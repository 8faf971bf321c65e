"""What a list or a watch asks for, and what it gives."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from gpuloom.kube.objects import JsonObject


class EventType(StrEnum):
    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


@dataclass(frozen=True, slots=True)
class WatchEvent:
    type: EventType
    object: JsonObject
    """Of a bookmark only metadata.resourceVersion means something."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which objects of a resource, and what of each; the default is all of them in all namespaces, whole."""

    namespace: str | None = None
    label_selector: str = ""
    field_selector: str = ""
    keep: Callable[[JsonObject], JsonObject] | None = field(default=None, compare=False)
    """What to keep of each object of a list. Asked page by page: a long list never lies in memory whole."""

    def query(self) -> dict[str, str]:
        wanted = {"labelSelector": self.label_selector, "fieldSelector": self.field_selector}
        return {name: value for name, value in wanted.items() if value}


EVERYTHING = Selection()


@dataclass(frozen=True, slots=True)
class Listing:
    items: tuple[JsonObject, ...]
    resource_version: str
    """Of the whole list: where a watch goes on."""
