"""`python -m tests.scaffold.figures --services 7 --nodes 12`: what a run costs with so many services more.

Starts the embedded mesh with scaffolded services, and prints how long it took until all were ready and the
memory of all its processes. No test: figures depend on the machine.
"""

import argparse
import asyncio
import os
import sys
import tempfile
from pathlib import Path

from gpuloom.runtime.clock import SystemClock
from gpuloom.sim.embedded import open_mesh
from gpuloom.sim.mesh.plan import MeshOptions
from tests.scaffold.writing import python_path, write_services

CLOCK = SystemClock()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--services", type=int, default=7, help="scaffolded services beside ours")
    parser.add_argument("--nodes", type=int, default=MeshOptions().nodes, help="simulated nodes")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gpuloom-figures-") as directory:
        for line in asyncio.run(measure(Path(directory), given.services, given.nodes)):
            sys.stdout.write(f"{line}\n")


async def measure(directory: Path, services: int, nodes: int) -> list[str]:
    source = directory / "source"
    roster = write_services(source, [f"scaffold_{number}" for number in range(1, services + 1)])
    os.environ["PYTHONPATH"] = python_path(source)
    async with open_mesh(MeshOptions(nodes=nodes), directory / "run", CLOCK, roster) as mesh:
        began_s = CLOCK.monotonic()
        await mesh.start()
        ready_s = CLOCK.monotonic() - began_s
        processes = {
            process.name: memory_mib(process.pid) for process in mesh.supervisor.statuses() if process.pid
        }
    rss_mib, pss_mib = (sum(figures) for figures in zip(*processes.values(), strict=True))
    return [
        *(f"{name:<24} {rss:6.0f} MiB RSS {pss:6.0f} MiB PSS" for name, (rss, pss) in processes.items()),
        f"{len(processes)} processes for {nodes} nodes, {services} services scaffolded",
        f"ready after {ready_s:.1f} s, {rss_mib:.0f} MiB RSS, {pss_mib:.0f} MiB PSS (shared pages once)",
    ]


def memory_mib(pid: int) -> tuple[float, float]:
    """RSS and PSS of a process; Linux only."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()[1:]
    kib = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
    return kib["Rss"] / 1024, kib["Pss"] / 1024


if __name__ == "__main__":
    main()
