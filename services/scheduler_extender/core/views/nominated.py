"""What nodes have left beside nominated pods, kept for each class of pods that ask. Pure.

Pods that no node is promised to see the same: room is kept from them by nominated pods of at least their
priority, and which those are changes only at a priority that some nominated pod has. So whoever asks pays for
the nodes that changed since somebody of its class asked, not for every node that a pod is nominated to.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from gpuloom.placement.devices import NodeView

MAX_CLASSES = 8

Look = Callable[[str, int], NodeView | None]
"""A node as pods of this priority see it, by name; None where nobody comes before them."""


@dataclass(slots=True)
class _Class:
    outdated: set[str]
    by_node: dict[str, NodeView] = field(default_factory=dict)
    views: tuple[NodeView, ...] = ()


class PromisedViews:
    def __init__(self, look: Look) -> None:
        self._look = look
        self._classes: OrderedDict[int, _Class] = OrderedDict()

    def outdate(self, node_names: Iterable[str]) -> None:
        """These nodes changed, or who is promised something there."""
        for kept in self._classes.values():
            kept.outdated.update(node_names)

    def clear(self) -> None:
        self._classes.clear()

    def at(self, priority: int, node_names: Iterable[str]) -> tuple[NodeView, ...]:
        """Of these nodes, which are all that pods are nominated to; the same tuple until one changes."""
        kept = self._classes.get(priority)
        if kept is None:
            kept = self._classes[priority] = _Class(set(node_names))
            if len(self._classes) > MAX_CLASSES:
                self._classes.popitem(last=False)
        self._classes.move_to_end(priority)
        if kept.outdated:
            self._renew(kept, priority)
        return kept.views

    def _renew(self, kept: _Class, priority: int) -> None:
        for name in kept.outdated:
            view = self._look(name, priority)
            if view is None:
                kept.by_node.pop(name, None)
            else:
                kept.by_node[name] = view
        kept.outdated.clear()
        kept.views = tuple(kept.by_node.values())
