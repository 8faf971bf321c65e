"""Asks every source for its sections, keeps the one state of the page, and wakes those who watch it.

A source that fails keeps its last items, and the section `sources` says since when and why. It never waits
for a reader, and holds nothing for one.
"""

import asyncio
import logging
import math
import secrets
from collections.abc import Sequence
from datetime import datetime

from gpuloom.errors import GpuloomError
from gpuloom.runtime.clock import Clock
from services.console.core.sight import Sight, for_everybody, namespaces_of
from services.console.core.state import Json, Mask, State
from services.console.metrics import ConsoleMetrics
from services.console.ports import Source

_log = logging.getLogger(__name__)

SOURCES = "sources"
NAMESPACES_S = 10.0


class Aggregator:
    def __init__(self, sources: Sequence[Source], clock: Clock, metrics: ConsoleMetrics) -> None:
        self.sources = tuple(sources)
        self.epoch = secrets.token_hex(4)
        """Versions of another run of the console, or of another replica, mean nothing here."""
        self.state = State()
        self._clock = clock
        self._metrics = metrics
        self._rules = {section: rule for source in sources for section, rule in source.rules.items()}
        self._rules[SOURCES] = for_everybody
        self._standing: dict[str, Json] = {
            source.name: {"ok": False, "reason": "not asked yet", "since": _text(clock.now())}
            for source in sources
        }
        self._namespaces = -math.inf, frozenset[str]()
        self._changed = asyncio.Event()
        self.state.replace({SOURCES: dict(self._standing)})

    async def run(self, source: Source) -> None:
        """Until cancelled."""
        while True:
            await self.ask(source)
            await self._clock.sleep(source.interval_s)

    async def ask(self, source: Source) -> None:
        """Once."""
        began_s = self._clock.monotonic()
        try:
            sections = await source.read()
        except (GpuloomError, TimeoutError) as error:
            self._metrics.reads.labels(source.name, "failed").inc()
            self._stand(source.name, str(error) or "no answer in time")
            return
        unknown = sections.keys() - source.rules.keys()
        if unknown:
            raise ValueError(f"source {source.name} has no rule for {', '.join(sorted(unknown))}")
        self._metrics.reads.labels(source.name, "ok").inc()
        self._metrics.read_duration.labels(source.name).observe(self._clock.monotonic() - began_s)
        self._publish(self.state.replace(sections))
        self._stand(source.name, "")

    async def wait_changed(self) -> None:
        await self._changed.wait()

    def namespaces(self) -> frozenset[str]:
        """All that occur in what is shown; found anew every few seconds."""
        now_s = self._clock.monotonic()
        if now_s - self._namespaces[0] > NAMESPACES_S:
            self._namespaces = now_s, namespaces_of(self.state.values())
        return self._namespaces[1]

    def mask(self, sight: Sight) -> Mask | None:
        """None: everything is shown."""
        if sight.whole:
            return None
        return lambda section, _key, value: self._rules[section](value, sight)

    def _stand(self, name: str, reason: str) -> None:
        before = self._standing[name]
        if before["reason"] == reason and before["ok"] == (not reason):
            return
        if reason:
            _log.warning("source not read", extra={"source": name, "reason": reason})
        self._standing[name] = {"ok": not reason, "reason": reason, "since": _text(self._clock.now())}
        self._publish(self.state.replace({SOURCES: dict(self._standing)}))

    def _publish(self, changed: bool) -> None:
        if changed:
            self._metrics.version.set(self.state.version)
            self._changed.set()
            self._changed = asyncio.Event()


def _text(time: datetime) -> str:
    return time.isoformat(timespec="seconds").replace("+00:00", "Z")
