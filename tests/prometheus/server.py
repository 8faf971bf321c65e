"""A Prometheus of a test's own, and how to ask it."""

import os
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from gpuloom.runtime.clock import SystemClock, deadline
from gpuloom.sim.child_process import ProcessSpec
from gpuloom.sim.ports import HOST, free_ports
from gpuloom.sim.probes import answers_ok
from gpuloom.sim.supervisor import Supervisor

JOB = "gpus"
_INTERVAL = "500ms"
_POLL_S = 0.1
_PATIENCE_S = 30.0

Series = list[tuple[dict[str, str], float]]


@dataclass(frozen=True)
class Prometheus:
    url: str
    clock: SystemClock
    session: aiohttp.ClientSession

    async def query(self, expression: str) -> Series:
        async with self.session.get(f"{self.url}/api/v1/query", params={"query": expression}) as answer:
            body: dict[str, Any] = await answer.json()
        assert body["status"] == "success", body
        return [(item["metric"], float(item["value"][1])) for item in body["data"]["result"]]

    async def until(self, expression: str, satisfied: Callable[[Series], bool]) -> Series:
        """The first answer that satisfies. TimeoutError if none does for long."""
        async with deadline(self.clock, _PATIENCE_S):
            while True:
                found = await self.query(expression)
                if satisfied(found):
                    return found
                await self.clock.sleep(_POLL_S)
        raise AssertionError("a deadline either raises or lets the loop return")


@asynccontextmanager
async def running(
    program: Path,
    folder: Path,
    exporter_port: int | None,
    clock: SystemClock,
    more_flags: Mapping[str, str] | None = None,
) -> AsyncIterator[Prometheus]:
    """Without a port it scrapes nothing."""
    (port,) = free_ports(1, random.Random())
    config = folder / "prometheus.yaml"
    targets = [{"targets": [f"{HOST}:{exporter_port}"]}]
    job = {"job_name": JOB, "scrape_interval": _INTERVAL, "scrape_timeout": _INTERVAL}
    jobs = [] if exporter_port is None else [{**job, "static_configs": targets}]
    config.write_text(yaml.safe_dump({"scrape_configs": jobs}))
    flags = {
        "config.file": config,
        "storage.tsdb.path": folder / "data",
        "web.listen-address": f"{HOST}:{port}",
        "web.console.templates": folder,
        "web.console.libraries": folder,
        **(more_flags or {}),
    }
    spec = ProcessSpec(
        name="prometheus",
        argv=(str(program), *(f"--{name}={value}" for name, value in flags.items())),
        log_path=folder / "prometheus.log",
        environment={"PATH": os.environ.get("PATH", ""), "HOME": str(folder)},
        working_dir=folder,
        ready=answers_ok(f"http://{HOST}:{port}/-/ready", clock),
    )
    async with Supervisor(clock) as supervisor, aiohttp.ClientSession() as session:
        await supervisor.start([[spec]])
        yield Prometheus(f"http://{HOST}:{port}", clock, session)
