"""A Prometheus of a test's own, and how to ask it."""

import os
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from gpuloom.runtime.clock import SystemClock, deadline
from gpuloom.sim.processes.child_process import ProcessSpec
from gpuloom.sim.processes.ports import HOST, free_ports
from gpuloom.sim.processes.probes import answers_ok
from gpuloom.sim.processes.supervisor import Supervisor

JOB = "gpus"
_INTERVAL = "500ms"
_POLL_S = 0.1
_PATIENCE_S = 90.0

Series = list[tuple[dict[str, str], float]]


@dataclass(frozen=True)
class Prometheus:
    url: str
    clock: SystemClock
    session: aiohttp.ClientSession

    async def query(self, expression: str) -> Series:
        """Of an instant vector, or a scalar, which has no labels."""
        data = await self._ask("query", {"query": expression})
        if data["resultType"] == "scalar":
            return [({}, float(data["result"][1]))]
        return [(item["metric"], float(item["value"][1])) for item in data["result"]]

    async def types(self) -> dict[str, str]:
        """Of all families that targets declare, also of those that have no series yet."""
        data = await self._ask("metadata", {})
        return {name: entries[0]["type"] for name, entries in data.items()}

    async def _ask(self, what: str, parameters: Mapping[str, str]) -> Any:
        async with self.session.get(f"{self.url}/api/v1/{what}", params=parameters) as answer:
            body: dict[str, Any] = await answer.json()
        assert body["status"] == "success", (body, parameters)
        return body["data"]

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
    targets = [{"targets": [f"{HOST}:{exporter_port}"]}]
    job = {"job_name": JOB, "scrape_interval": _INTERVAL, "scrape_timeout": _INTERVAL}
    jobs = [] if exporter_port is None else [{**job, "static_configs": targets}]
    started = Started(program, folder, port, clock, more_flags or {})
    async with running_with({"scrape_configs": jobs}, started) as prometheus:
        yield prometheus


@dataclass(frozen=True)
class Started:
    """How and where it is started."""

    program: Path
    folder: Path
    port: int
    clock: SystemClock
    flags: Mapping[str, str] = field(default_factory=dict)


@asynccontextmanager
async def running_with(configuration: Mapping[str, Any], started: Started) -> AsyncIterator[Prometheus]:
    folder, port, clock = started.folder, started.port, started.clock
    config = folder / "prometheus.yaml"
    config.write_text(yaml.safe_dump(dict(configuration)))
    flags = {
        "config.file": config,
        "storage.tsdb.path": folder / "data",
        "web.listen-address": f"{HOST}:{port}",
        "web.console.templates": folder,
        "web.console.libraries": folder,
        **started.flags,
    }
    spec = ProcessSpec(
        name="prometheus",
        argv=(str(started.program), *(f"--{name}={value}" for name, value in flags.items())),
        log_path=folder / "prometheus.log",
        environment={"PATH": os.environ.get("PATH", ""), "HOME": str(folder)},
        working_dir=folder,
        ready=answers_ok(f"http://{HOST}:{port}/-/ready", clock),
    )
    async with Supervisor(clock) as supervisor, aiohttp.ClientSession() as session:
        await supervisor.start([[spec]])
        yield Prometheus(f"http://{HOST}:{port}", clock, session)
