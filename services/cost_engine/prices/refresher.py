"""Keeps the price book: the shipped list and the operator's file at once, clouds every now and then.

A source that does not answer leaves what it told before; its age and its failures are metrics.
"""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

from gpuloom.errors import GpuloomError, InvalidRequestError
from gpuloom.runtime.clock import Clock
from services.cost_engine.api.rules import read_text
from services.cost_engine.core.intervals import NANOSECONDS_PER_SECOND
from services.cost_engine.core.prices import Price, PriceBook, Source
from services.cost_engine.ingest.consumer import now_ns
from services.cost_engine.metrics import CostMetrics
from services.cost_engine.ports import PriceSource
from services.cost_engine.prices.catalogue import catalogue_prices, custom_prices
from services.cost_engine.store.store import CostStore

_log = logging.getLogger(__name__)

FILE_CHECK_S = 10.0
FETCH_TIMEOUT_S = 300.0


class Prices:
    """`book` is the newest; it is made anew when something changed."""

    def __init__(
        self,
        store: CostStore,
        sources: Sequence[PriceSource],
        file: Path | None,
        clock: Clock,
        metrics: CostMetrics,
    ) -> None:
        self.book = PriceBook(())
        self._store = store
        self._sources = sources
        self._file = file
        self._clock = clock
        self._metrics = metrics
        self._text: str | None = None
        self.changing = asyncio.Lock()
        """Held from when prices are written to when the book has them: costs that are computed between
        would be of the book before, and nothing asks for them again."""
        self._is_stale = True

    def check_file(self) -> None:
        """Raise InvalidRequestError if the operator's file makes no prices."""
        if self._file is not None:
            self._custom(read_text(self._file))

    async def start(self) -> None:
        async with self.changing:
            self._is_stale = True
            await self._store.replace_prices(Source.CATALOGUE, catalogue_prices(), now_ns(self._clock))
        await self._read_file()
        await self.up_to_date()

    async def up_to_date(self) -> PriceBook:
        """The book with all that is written; what is asked of the store with it goes under `changing`."""
        if self._is_stale:
            self.book = await self._store.book()
            self._is_stale = False
        return self.book

    async def watch_file(self) -> None:
        while True:
            await self._clock.sleep(FILE_CHECK_S)
            try:
                await self._read_file()
            except GpuloomError as error:
                _log.warning("prices not read, the last ones hold", extra={"reason": str(error)})

    async def refresh(self, interval_s: float) -> None:
        while True:
            for source in self._sources:
                await self._fetch(source)
            await self._clock.sleep(interval_s)

    async def _fetch(self, source: PriceSource) -> None:
        try:
            async with asyncio.timeout(FETCH_TIMEOUT_S):
                told = await source.fetch(now_ns(self._clock))
            async with self.changing:
                self._is_stale = True
                changed = await self._store.save_prices(told, now_ns(self._clock))
                await self.up_to_date()
        except (GpuloomError, TimeoutError) as error:
            self._metrics.price_failures.labels(source.name).inc()
            _log.warning("prices not fetched", extra={"source": source.name, "reason": str(error)})
            return
        self._metrics.price_age.labels(source.name).set(now_ns(self._clock) / NANOSECONDS_PER_SECOND)
        _log.info("prices fetched", extra={"source": source.name, "told": len(told), "changed": changed})

    async def _read_file(self) -> None:
        text = "" if self._file is None else await asyncio.to_thread(read_text, self._file)
        if text == self._text:
            return
        listed = self._custom(text)
        async with self.changing:
            self._is_stale = True
            await self._store.replace_prices(Source.CUSTOM, listed, now_ns(self._clock))
            await self.up_to_date()
        self._text = text

    def _custom(self, text: str) -> list[Price]:
        try:
            return custom_prices(text)
        except ValueError as error:
            raise InvalidRequestError(f"{self._file}: {error}") from None
