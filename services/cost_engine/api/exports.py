"""Costs as files, step by step, so that no file is held as a whole."""

from collections.abc import AsyncIterator

from gpuloom.model.cost import CostQuestion
from services.cost_engine.api.queries import Queries
from services.cost_engine.core.exports import (
    COLUMNS,
    FOCUS_COLUMNS,
    ExportContext,
    csv_text,
    focus_row,
    json_line,
    plain_row,
)
from services.cost_engine.core.intervals import DAY_NS, HOUR_NS
from services.cost_engine.store.costs import Window


class Exports:
    def __init__(self, queries: Queries, account: str) -> None:
        self._queries = queries
        self._account = account

    async def pieces(self, question: CostQuestion, form: str) -> AsyncIterator[str]:
        """`form`: csv, json or focus."""
        window = self._queries.window(question, default_days=30)
        step_ns = window.step_ns or DAY_NS
        columns = FOCUS_COLUMNS if form == "focus" else COLUMNS
        row_of = focus_row if form == "focus" else plain_row
        if form != "json":
            yield csv_text(columns, (), header=True)
        start_ns = window.start_ns
        while start_ns < window.end_ns:
            end_ns = min(start_ns - start_ns % step_ns + step_ns, window.end_ns)
            # A part of a day is known by the hour only.
            whole = start_ns % DAY_NS == 0 and end_ns % DAY_NS == 0
            part = Window(start_ns, end_ns, step_ns if whole else min(step_ns, HOUR_NS))
            context = ExportContext(part.step_ns, window.end_ns, self._account, self._account)
            facts = await self._queries.facts(part)
            facts.sort(key=lambda fact: (fact.bucket_ns, fact.node, fact.owner, fact.quality))
            if form == "json":
                yield "".join(json_line(fact, context) for fact in facts)
            else:
                yield csv_text(columns, (row_of(fact, context) for fact in facts), header=False)
            start_ns = end_ns
