"""The engine's store on SQLite, and on a real PostgreSQL."""

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gpuloom.runtime.clock import SystemClock
from gpuloom.store.database import Database
from gpuloom.store.settings import StoreConfig, database_url
from services.cost_engine.store.store import MIGRATIONS, CostStore
from tests.contract.store.postgres import require_server, server_url


@pytest.fixture(scope="session")
def cost_postgres() -> Iterator[str]:
    require_server(os.environ)
    with server_url() as url:
        yield url


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.real)])
def database_address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/cost.db"
    server: str = request.getfixturevalue("cost_postgres")
    return server


@pytest.fixture
async def database(database_address: str) -> AsyncIterator[Database]:
    config = StoreConfig(url=database_url(database_address), threads=4, timeout_s=20.0)
    async with Database(config, SystemClock()) as database:
        yield database
        await MIGRATIONS.downgrade(database)


@pytest.fixture
async def store(database: Database) -> CostStore:
    store = CostStore(database)
    await store.open()
    return store
