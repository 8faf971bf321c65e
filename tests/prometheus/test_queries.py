"""Every query of every dashboard and rule resolves in a real Prometheus that scrapes a running mesh.

A query resolves if each series that it reads is there, under labels that there are, and it returns something.
What may return nothing: an alert, and what reads a counter or a histogram of what has not happened.
"""

import random
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml

from gpuloom.runtime.clock import SystemClock
from gpuloom.sim.embedded import open_mesh
from gpuloom.sim.mesh.plan import MeshOptions
from gpuloom.sim.processes.ports import HOST, free_ports
from tests.prometheus.queries import (
    MONITORING,
    RULES,
    Query,
    Selector,
    dashboard_queries,
    family_of,
    quick_rules,
    rule_queries,
    selectors,
)
from tests.prometheus.server import Prometheus, Series, Started, running_with

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(400)]

INTERVAL = "1s"
SILENT: dict[str, str] = yaml.safe_load(Path(__file__).with_name("silent.yaml").read_text())


@dataclass(frozen=True)
class Scraped:
    prometheus: Prometheus
    types: dict[str, str]

    async def problem(self, query: Query, may_be_empty: bool) -> str | None:
        """Why it does not resolve."""
        read = selectors(query.expression)
        found = [(selector, await self.prometheus.query(selector.bare)) for selector in read]
        for selector, series in found:
            wrong = self._wrong(selector, series)
            if wrong is not None:
                return f"{query.place}: {selector.text}: {wrong}"
        answer = await self.prometheus.query(query.expression)
        quiet = any([await self._is_quiet(selector) for selector in read])
        return None if answer or may_be_empty or quiet else f"{query.place}: nothing: {query.expression}"

    def _wrong(self, selector: Selector, series: Series) -> str | None:
        if not series:
            return None if self._may_be_missing(selector) else "there is no such series"
        known = {label for labels, _ in series for label in labels}
        unknown = selector.labels - known - _OPTIONAL_LABELS
        return f"no series has a label {min(unknown)}" if unknown else None

    async def _is_quiet(self, selector: Selector) -> bool:
        """What counts, or is in the list, and has nothing to tell under these labels."""
        return self._may_be_missing(selector) and not await self.prometheus.query(selector.text)

    def _may_be_missing(self, selector: Selector) -> bool:
        named = selector.name or next(value for label, _, value in selector.matchers if label == "__name__")
        if any(named == name or re.fullmatch(name, named) for name in SILENT):
            return True
        family = family_of(named, self.types)
        return family is not None and self.types[family] in ("counter", "histogram")


# Only devices that somebody holds, or that are slices, have these.
_OPTIONAL_LABELS = {"pod", "namespace", "container", "GPU_I_ID", "GPU_I_PROFILE"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scraped(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scraped]:
    """The mesh of `gpuloom run` with pods on its GPUs, and every rule evaluated at least once."""
    clock, folder = SystemClock(), tmp_path_factory.mktemp("queries")
    (port,) = free_ports(1, random.Random())
    started = Started(programs / "prometheus", folder, port, clock)
    async with open_mesh(MeshOptions(), folder / "run", clock) as mesh:
        targets = mesh.plan.directory.prometheus_targets_file
        async with running_with(_configuration(folder, targets, port), started) as prometheus:
            await mesh.start()
            await prometheus.until('DCGM_FI_DEV_FB_USED{pod!="", GPU_I_ID!=""}', bool)
            await prometheus.until("gpuloom:extender_call_duration_seconds:p99", bool)
            await prometheus.until("gpuloom:namespace_gpu_busy:avg30d", bool)
            yield Scraped(prometheus, await prometheus.types())


async def test_every_query_of_every_dashboard_resolves(scraped: Scraped) -> None:
    problems = [await scraped.problem(query, may_be_empty=False) for query in dashboard_queries()]

    assert "\n".join(filter(None, problems)) == ""


async def test_every_rule_resolves(scraped: Scraped) -> None:
    problems = [
        await scraped.problem(query, may_be_empty="GPULoom" in query.place) for query in rule_queries()
    ]

    assert "\n".join(filter(None, problems)) == ""


async def test_a_query_that_nobody_can_answer_would_be_found(scraped: Scraped) -> None:
    wrong = [
        "sum(gpuloom_discovery_knots)",
        'gpuloom_discovery_distrust{reason="x"}',
        "gpuloom_discovery_nodes > 1000",
        'rate(gpuloom_discovery_node_writes_total{result="failed"}[5m])',
    ]

    problems = [await scraped.problem(Query("here", text), may_be_empty=False) for text in wrong]

    assert all(problems)


async def test_a_mesh_that_is_well_raises_no_alert_but_the_watchdog(scraped: Scraped) -> None:
    firing = await scraped.prometheus.query('ALERTS{alertstate="firing"}')

    assert {labels["alertname"] for labels, _ in firing} == {"GPULoomWatchdog"}


def _configuration(folder: Path, targets: Path, port: int) -> dict[str, Any]:
    """The one that is shipped, with this run's addresses, and in a hurry."""
    shipped: dict[str, Any] = yaml.safe_load((MONITORING / "prometheus.yaml").read_text())
    itself, mesh = shipped["scrape_configs"]
    mesh["file_sd_configs"] = [{"files": [str(targets)], "refresh_interval": INTERVAL}]
    itself["static_configs"] = [{"targets": [f"{HOST}:{port}"]}]
    (folder / "rules").mkdir()
    for path in RULES.glob("*.yaml"):
        (folder / "rules" / path.name).write_text(yaml.safe_dump(quick_rules(path, INTERVAL)))
    hurry = {"scrape_interval": INTERVAL, "evaluation_interval": INTERVAL}
    return {"global": hurry, "rule_files": ["rules/*.yaml"], "scrape_configs": [itself, mesh]}
