"""`python -m tests.scenarios.cost_engine.ingester URL`: reads spools of the history, from where it was.

Stands for an engine that is killed at any moment. It says "batch" for each that was kept, "done" when every
window is kept and computed.
"""

import asyncio
import random
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from gpuloom.errors import GpuloomError
from gpuloom.model.usage import UsageBatch, UsageCursor
from gpuloom.runtime.clock import SystemClock
from gpuloom.store.database import Database
from gpuloom.store.settings import StoreConfig, database_url
from services.cost_engine.core.prices import Source
from services.cost_engine.store.store import CostStore
from tests.scenarios.cost_engine.history import NODES, NOW_NS, PRICE, WINDOWS, facts, window

Result = TypeVar("Result")

AGAIN_S = 0.2


async def main(url: str) -> None:
    config = StoreConfig(url=database_url(url), threads=4, timeout_s=20.0)
    async with Database(config, SystemClock()) as database:
        store = CostStore(database)
        cursors = await insisting(lambda: prepare(store))
        await asyncio.gather(
            *(read_spool(store, number, cursors.get(f"s{number}", 0)) for number in range(NODES))
        )
        await insisting(lambda: compute(store))
    sys.stdout.write("done\n")


async def insisting(work: Callable[[], Awaitable[Result]]) -> Result:
    """Again and again while the database is away. Any error but one of ours ends the process."""
    while True:
        try:
            return await work()
        except GpuloomError:
            await asyncio.sleep(AGAIN_S)


async def prepare(store: CostStore) -> dict[str, int]:
    """How far each spool is read."""
    await store.open()
    await store.replace_prices(Source.CUSTOM, [PRICE], NOW_NS)
    await store.save_facts(facts(), NOW_NS)
    return {cursor.spool_id: cursor.sequence for cursor in await store.cursors()}


async def compute(store: CostStore) -> None:
    await store.compute(await store.book(), NOW_NS, grow=False)


async def read_spool(store: CostStore, number: int, sequence: int) -> None:
    chance = random.Random()
    while sequence < WINDOWS:
        # Some windows come again, as after an answer that was lost.
        first = max(1, sequence + 1 - chance.randrange(3))
        last = min(WINDOWS, sequence + chance.randrange(1, 6))
        batch = UsageBatch(
            UsageCursor(f"n{number}", f"s{number}", last),
            f"node-{number}",
            tuple(window(number, each) for each in range(first, last + 1)),
        )
        await insisting(partial(store.ingest, [batch], NOW_NS))
        sequence = last
        sys.stdout.write("batch\n")
        sys.stdout.flush()
        if chance.random() < 0.1:
            await insisting(lambda: compute(store))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
