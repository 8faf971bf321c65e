"""The text that a scrape gets, kept until the next sample of a node.

It is written when somebody first asks for it after a sample, and never more than once a sample: scrapes are
rarer than looks. A scrape reads what was seen last; it asks no driver and waits for nothing.
"""

import gzip
from collections.abc import Callable
from typing import Protocol

from gpuloom.model.node import NodeState
from gpuloom.runtime.clock import Clock
from services.node_agent.core.picture import Picture
from services.node_agent.exporter.core.exposition import NodePage, PageFormat, device_block, exposition
from services.node_agent.exporter.metrics import ExporterMetrics

# The text repeats itself so much that more effort hardly makes it smaller.
_GZIP_LEVEL = 1

Note = Callable[[], str]
"""Why a node shows no devices now; empty if it does."""


class Shown(Protocol):
    """What is needed of a node."""

    @property
    def state(self) -> NodeState:
        """Names the node."""

    @property
    def picture(self) -> Picture | None:
        """The last sample; None before the first."""

    def stale_reason(self) -> str | None:
        """Why the last sample is too old to be shown; None if it is not."""


class Exporter:
    def __init__(self, form: PageFormat, clock: Clock, metrics: ExporterMetrics) -> None:
        self._form = form
        self._clock = clock
        self._metrics = metrics
        self._nodes: list[_ShownNode] = []
        self._pages: list[NodePage] = []
        self._text = b""
        self._compressed: bytes | None = None

    def add(self, node: Shown, note: Note = lambda: "") -> None:
        """Show this node from now on."""
        self._nodes.append(_ShownNode(node, note, self._form))

    def text(self) -> bytes:
        started_s = self._clock.monotonic()
        pages = [shown.page() for shown in self._nodes]
        if not self._text or not _same(pages, self._pages):
            self._pages = pages
            self._text, self._compressed = exposition(pages, self._form), None
            self._metrics.exposition_duration.observe(self._clock.monotonic() - started_s)
            self._metrics.exposition_bytes.set(len(self._text))
        return self._text

    def compressed_text(self) -> bytes:
        """The same, by gzip."""
        text = self.text()
        if self._compressed is None:
            self._compressed = gzip.compress(text, _GZIP_LEVEL, mtime=0)
        return self._compressed

    def stale_reason(self) -> str | None:
        """The first node that is not looked at any more, and since when."""
        for shown in self._nodes:
            reason = shown.node.stale_reason()
            if reason is not None:
                return f"{shown.node.state.node_name}: {reason}"
        return None


class _ShownNode:
    """One node with its page, which stays the same object until something of it changes."""

    def __init__(self, node: Shown, note: Note, form: PageFormat) -> None:
        self.node = node
        self._note = note
        self._form = form
        self._drawn: Picture | None = None
        self._page: NodePage | None = None

    def page(self) -> NodePage:
        picture, note = self.node.picture, self._note()
        if picture is None or picture.reading is None or self.node.stale_reason() is not None:
            return self._keep(None, False, note)
        return self._keep(picture, True, note)

    def _keep(self, picture: Picture | None, up: bool, note: str) -> NodePage:
        drawn = None if note else picture
        before = self._page
        if before is not None and self._drawn is drawn and (before.up, before.note) == (up, note):
            return before
        block = {} if drawn is None else device_block(drawn, self._form)
        self._drawn, self._page = drawn, NodePage(self.node.state.node_name, up, block, note)
        return self._page


def _same(pages: list[NodePage], before: list[NodePage]) -> bool:
    return len(pages) == len(before) and all(a is b for a, b in zip(pages, before, strict=True))
