"""Two ways to show a run: one live screen for a person, or a line every few seconds for a log."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live

from gpuloom.cli.run.observation import MeshView, Observer
from gpuloom.cli.run.screen import Frame, render
from gpuloom.roster import Service
from gpuloom.sim.mesh.plan import CONSOLE, MeshPlan, central


class ProgressLines:
    """To stderr, so that stdout has the summary alone."""

    interval_s = 5.0

    @contextmanager
    def opened(self, plan: MeshPlan) -> Iterator[None]:
        for name, address in addresses(plan).items():
            self.say(f"{name}: {address}")
        yield

    def show(self, observer: Observer) -> None:
        self.say(progress_line(observer.view()))

    def say(self, text: str) -> None:
        print(f"gpuloom run: {text}", file=sys.stderr, flush=True)


class LiveScreen:
    interval_s = 0.5

    def __init__(self, title: str, duration_s: float | None) -> None:
        self._title = title
        self._duration_s = duration_s
        self._console = Console()
        self._frame: Frame | None = None
        self._live: Live | None = None

    @contextmanager
    def opened(self, plan: MeshPlan) -> Iterator[None]:
        self._frame = Frame(self._title, addresses(plan), self._duration_s)
        # A small screen has no room for all of them; here they stay in the terminal's history.
        for name, address in self._frame.addresses.items():
            self.say(f"{name}: {address}")
        with Live(console=self._console, screen=True, auto_refresh=False) as self._live:
            yield
        self._live = None

    def show(self, observer: Observer) -> None:
        if self._frame is None or self._live is None:
            return
        size = self._console.size
        lines = render(self._frame, observer.view(), size.width, size.height)
        self._live.update(Group(*lines), refresh=True)

    def say(self, text: str) -> None:
        print(f"gpuloom run: {text}", file=sys.stderr, flush=True)


def progress_line(view: MeshView) -> str:
    pods = view.pods
    trusted = sum(facts.trusted for facts in view.nodes)
    fields = {
        "elapsed_s": f"{view.elapsed_s:.0f}",
        "placed": pods.placed,
        "running": pods.running,
        "finished": pods.finished,
        "pending": pods.pending,
        "nodes_trusted": f"{trusted}/{len(view.nodes)}",
        "restarts": view.restarts,
        "double_bookings": "?" if view.audit is None else len(view.audit.double_bookings),
    }
    line = " ".join(f"{name}={value}" for name, value in fields.items())
    return line if view.fault is None else f'{line} fault="{view.fault}"'


def addresses(plan: MeshPlan) -> dict[str, str]:
    """Ready to paste, the most useful first; of the agents, which are all alike, the first."""
    endpoints = _shown(plan.directory.endpoints_file)
    return {
        "Console": f"{plan.console_url} (its certificate is of the run's own authority)",
        "Pods": f"kubectl --kubeconfig {_shown(plan.directory.kubeconfig)} get pods -A",
        "GPU metrics": f"{plan.exporter_urls[0]} (other nodes: {endpoints})",
        "Kubernetes": plan.api_url,
        **{row.short.capitalize(): _places(plan, row) for row in central(plan.roster) if row.name != CONSOLE},
        "Metrics": f"{plan.metrics_urls['extender']} (other services: {endpoints})",
        "Logs": str(_shown(plan.directory.logs)),
    }


def _places(plan: MeshPlan, row: Service) -> str:
    """All but where it tells of itself."""
    return ", ".join(f"{port.name} {plan.address(row.name, port.name)}" for port in row.own_ports)


def _shown(path: Path) -> Path:
    """Relative to where the user is, if that is shorter."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
