"""The client, against a real Prometheus that holds a known history."""

import asyncio
import subprocess
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import pytest_asyncio

from gpuloom.clients.prometheus import PrometheusClient, PrometheusConfig, Range
from gpuloom.errors import InvalidRequestError, UnavailableError
from gpuloom.runtime.clock import SystemClock
from tests.prometheus.server import running

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

START = datetime(2026, 11, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
# Utilisation of two cards once a minute for ten minutes; the second falls silent after five.
LINES = [
    "# TYPE util gauge",
    *(f'util{{gpu="0"}} {10 * n} {START.timestamp() + 60 * n}' for n in range(11)),
    *(f'util{{gpu="1"}} {n} {START.timestamp() + 60 * n}' for n in range(6)),
    "# TYPE odd gauge",
    *(f"odd NaN {START.timestamp() + 60 * n}" for n in range(11)),
    "# EOF",
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[PrometheusClient]:
    folder = tmp_path_factory.mktemp("history")
    history = folder / "history.txt"
    history.write_text("\n".join(LINES) + "\n")
    blocks = ["tsdb", "create-blocks-from", "openmetrics", str(history), str(folder / "data")]
    command = [str(programs / "promtool"), *blocks]
    await asyncio.to_thread(lambda: subprocess.run(command, check=True, capture_output=True, timeout=30))  # noqa: S603
    flags = {"storage.tsdb.retention.time": "100y"}
    async with (
        running(programs / "prometheus", folder, None, SystemClock(), flags) as prometheus,
        PrometheusClient(PrometheusConfig(url=prometheus.url)) as client,
    ):
        yield client


async def test_an_instant_query_gives_the_series_of_that_moment(client: PrometheusClient) -> None:
    found = await client.instant("util", max_age_s=60.0, at=START + 5 * MINUTE)

    assert {(sample.labels["gpu"], sample.value) for sample in found} == {("0", 50.0), ("1", 5.0)}


async def test_a_sample_that_is_too_old_is_absent_and_not_zero(client: PrometheusClient) -> None:
    at = START + 8 * MINUTE

    stale = await client.value('util{gpu="1"}', max_age_s=60.0, at=at)
    tolerated = await client.value('util{gpu="1"}', max_age_s=240.0, at=at)

    assert (stale, tolerated) == (None, 5.0)


async def test_what_is_not_there_and_what_is_no_number_is_none(client: PrometheusClient) -> None:
    at = START + 5 * MINUTE

    assert await client.value("nowhere", max_age_s=60.0, at=at) is None
    assert await client.value("odd", max_age_s=60.0, at=at) is None
    assert await client.value("vector(1) / 0", max_age_s=60.0, at=at) is None
    assert await client.value("scalar(vector(3))", max_age_s=60.0, at=at) == 3.0


async def test_several_series_where_one_is_needed_are_refused(client: PrometheusClient) -> None:
    with pytest.raises(InvalidRequestError, match="2 series"):
        await client.value("util", max_age_s=60.0, at=START + MINUTE)


async def test_a_range_leaves_gaps_where_nothing_was_measured(client: PrometheusClient) -> None:
    over = Range(START, START + 10 * MINUTE, 60.0)

    series = await client.range("util", over, max_age_s=30.0)
    found = {one.labels["gpu"]: one.points for one in series}

    assert [value for _, value in found["0"]] == [10.0 * n for n in range(11)]
    assert found["1"] == tuple((START + n * MINUTE, float(n)) for n in range(6))


@pytest.mark.parametrize("query", ["util{", "rate(util)", "", "util[5m]"])
async def test_a_query_that_makes_no_sense_is_refused(client: PrometheusClient, query: str) -> None:
    with pytest.raises(InvalidRequestError):
        await client.instant(query, max_age_s=60.0)


async def test_a_range_of_too_many_steps_is_refused_before_it_is_asked(client: PrometheusClient) -> None:
    with pytest.raises(InvalidRequestError, match="at most 11000 steps"):
        await client.range("util", Range(START, START + timedelta(days=30), 1.0), max_age_s=60.0)


async def test_a_server_that_is_not_there_is_unavailable() -> None:
    async with PrometheusClient(PrometheusConfig(url="http://127.0.0.1:1")) as client:
        with pytest.raises(UnavailableError):
            await client.ping()
