"""An engine, or its database, is killed again and again while it reads spools: nothing is lost or doubled."""

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuloom.runtime.clock import SystemClock
from gpuloom.store.database import Database
from gpuloom.store.settings import StoreConfig, database_url
from services.cost_engine.core.grouping import grouped
from services.cost_engine.core.intervals import HOUR_NS
from services.cost_engine.store.costs import Window
from services.cost_engine.store.store import CostStore
from tests.contract.store.postgres import local_server, require_server
from tests.effort import examples
from tests.scenarios.cost_engine.history import HOURS, START_NS, account

KILLS = examples(10)
MOST_BATCHES = 8
"""An engine keeps at most so many before it is killed, however fast it is."""


def kill_often(url: str, kills: int, kill_database: Callable[[], None] | None) -> int:
    """Start engines until one is done; kill the first ones. How many kills there were before it was.

    Of the engines whose database is killed about half live on, and must come back to it by themselves.
    """
    chance, killed = random.Random(7), 0
    while True:
        command = [sys.executable, "-m", "tests.scenarios.cost_engine.ingester", url]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as engine:  # noqa: S603
            while (said := read_until(engine, _some(chance) if killed < kills else None)) == "batch":
                killed += 1
                if kill_database is not None and chance.random() < 0.5:
                    kill_database()
                    if chance.random() < 0.5:
                        continue
                engine.send_signal(signal.SIGKILL)
                break
        assert engine.returncode in (0, -signal.SIGKILL)
        if said == "done":
            return killed


def _some(chance: random.Random) -> int:
    return chance.randint(1, MOST_BATCHES)


def read_until(engine: "subprocess.Popen[str]", batches: int | None) -> str:
    """Its last word: after so many batches, when it is done, or when it ended by itself."""
    said, seen = "", 0
    for line in engine.stdout or ():
        said = line.strip()
        seen += said == "batch"
        if said == "done" or seen == batches:
            return said
    return ""


async def read_account(url: str) -> dict[str, tuple[int, int, int, int]]:
    config = StoreConfig(url=database_url(url), threads=2, timeout_s=20.0)
    async with Database(config, SystemClock()) as database:
        window = Window(START_NS, START_NS + HOURS * HOUR_NS)
        facts = await CostStore(database).facts(window, frozenset({"owner"}))
    rows = [(fact.owner, row.amounts) for fact in facts for row in grouped([fact], ())]
    return {owner: (each.cost, each.used, each.idle, each.unknown) for owner, each in rows}


def test_an_engine_that_is_killed_all_the_time_ends_with_the_exact_account(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/cost.db"

    kill_often(url, KILLS, None)

    assert asyncio.run(read_account(url)) == account()


@pytest.mark.real
@pytest.mark.timeout(400)
def test_so_does_one_whose_postgresql_is_killed_too() -> None:
    require_server(os.environ)
    with local_server() as server:
        killed = kill_often(server.url, 50, server.crash)

        assert asyncio.run(read_account(server.url)) == account()
    assert killed >= 25
