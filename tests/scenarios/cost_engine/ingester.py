"""`python -m tests.scenarios.cost_engine.ingester URL`: reads spools of the history, from where it was.

Stands for an engine that is killed at any moment. It says "batch" for each that was kept, "done" when every
window is kept and computed.
"""

import asyncio
import random
import sys

from gpuloom.errors import GpuloomError
from gpuloom.model.usage import UsageBatch, UsageCursor
from gpuloom.runtime.clock import SystemClock
from gpuloom.store.database import Database
from gpuloom.store.settings import StoreConfig, database_url
from services.cost_engine.core.prices import Source
from services.cost_engine.store.store import CostStore
from tests.scenarios.cost_engine.history import NODES, NOW_NS, PRICE, WINDOWS, facts, window


async def main(url: str) -> None:
    config = StoreConfig(url=database_url(url), threads=4, timeout_s=20.0)
    async with Database(config, SystemClock()) as database:
        store = CostStore(database)
        await store.open()
        await store.replace_prices(Source.CUSTOM, [PRICE], NOW_NS)
        await store.save_facts(facts(), NOW_NS)
        await asyncio.gather(*(read_spool(store, number) for number in range(NODES)))
        await store.compute(await store.book(), NOW_NS, grow=False)
    sys.stdout.write("done\n")


async def read_spool(store: CostStore, number: int) -> None:
    chance = random.Random()
    cursors = {cursor.spool_id: cursor.sequence for cursor in await store.cursors()}
    sequence = cursors.get(f"s{number}", 0)
    while sequence < WINDOWS:
        # Some windows come again, as after an answer that was lost.
        first = max(1, sequence + 1 - chance.randrange(3))
        last = min(WINDOWS, sequence + chance.randrange(1, 6))
        batch = UsageBatch(
            UsageCursor(f"n{number}", f"s{number}", last),
            f"node-{number}",
            tuple(window(number, each) for each in range(first, last + 1)),
        )
        try:
            await store.ingest([batch], NOW_NS)
        except GpuloomError:
            await asyncio.sleep(0.2)
            continue
        sequence = last
        sys.stdout.write("batch\n")
        sys.stdout.flush()
        if chance.random() < 0.1:
            await store.compute(await store.book(), NOW_NS, grow=False)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
