"""`gpuloom version`: of this command, and of every service of a run or a cluster. Only asks and shows."""

import asyncio
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuloom.cli.connection.endpoints import DEFAULT_TIMEOUT_S, DirectoryOption, TimeoutOption
from gpuloom.cli.connection.kube import ContextOption, KubeconfigOption, find_access, run_targets
from gpuloom.cli.output import exits
from gpuloom.cli.output.forms import Output, OutputOption, show
from gpuloom.cli.output.tables import table_lines
from gpuloom.errors import UnavailableError
from gpuloom.kube.objects import JsonObject, metadata_of
from gpuloom.runtime.metrics import package_version

if TYPE_CHECKING:
    from gpuloom.kube.access import KubeAccess

_BUILD = re.compile(r'^gpuloom_build_info\{service="([^"]*)",version="([^"]*)"\}', re.MULTILINE)
_HEADER = ("SERVICE", "VERSION", "PROCESSES")

_Client = Annotated[bool, typer.Option("--client", help="Only of this command.")]


@dataclass(frozen=True, slots=True)
class ServiceVersion:
    service: str
    version: str
    processes: int


def register(app: typer.Typer) -> None:
    app.command("version", short_help="Show the versions of this command and of all services.")(version)


def version(
    client: _Client = False,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = "",
    directory: DirectoryOption = Path("run"),
    output: OutputOption = Output.TABLE,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
) -> None:
    """Show the version of this command, and of every service of the run in --dir, else of the cluster.

    Exits 0, 1 if services have other versions than this command, 3 if nothing can be asked.
    """
    services = [] if client else _services(kubeconfig, context, directory, timeout)
    document = {"client": package_version(), "services": [asdict(service) for service in services]}
    show(output, document, lambda: version_lines(package_version(), services))
    differing = any(service.version != package_version() for service in services)
    raise typer.Exit(exits.NO if differing else exits.FINE)


def version_lines(client: str, services: Sequence[ServiceVersion]) -> Iterator[str]:
    rows = [("gpuloom (this command)", client, "")]
    rows += [(service.service, service.version, str(service.processes)) for service in services]
    yield from table_lines([_HEADER, *rows], right=("PROCESSES",))


def versions_of_metrics(texts: Iterable[str]) -> list[ServiceVersion]:
    """From what each process says of itself at /metrics."""
    found = Counter(pair for text in texts for pair in _BUILD.findall(text))
    return [ServiceVersion(service, number, count) for (service, number), count in sorted(found.items())]


def versions_of_pods(pods: Iterable[JsonObject]) -> list[ServiceVersion]:
    """From the images that run: a label may be ahead of a roll-out."""
    found: Counter[tuple[str, str]] = Counter()
    for pod in pods:
        name = (metadata_of(pod).get("labels") or {}).get("app.kubernetes.io/name", "")
        for container in (pod.get("spec") or {}).get("containers") or ():
            image = container.get("image", "")
            if f"gpuloom/{name}" in image:
                tail = image.rsplit("/", 1)[-1]
                found[name, tail.partition("@")[2] or tail.partition(":")[2] or "latest"] += 1
    return [ServiceVersion(service, number, count) for (service, number), count in sorted(found.items())]


def _services(
    kubeconfig: Path | None, context: str, directory: Path, timeout_s: float
) -> list[ServiceVersion]:
    targets = run_targets(kubeconfig, context, directory)
    if targets is not None:
        return asyncio.run(_of_run([place for places in targets.values() for place in places], timeout_s))
    return asyncio.run(_of_cluster(find_access(kubeconfig, context, directory), timeout_s))


async def _of_run(places: Sequence[str], timeout_s: float) -> list[ServiceVersion]:
    import aiohttp  # noqa: PLC0415 - `gpuloom --help` shall be quick

    async def scrape(session: aiohttp.ClientSession, place: str) -> str:
        try:
            async with session.get(f"http://{place}/metrics") as answer:
                return await answer.text()
        except (aiohttp.ClientError, TimeoutError):
            return ""

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=timeout_s)) as session:
        texts = await asyncio.gather(*(scrape(session, place) for place in places))
    if not any(texts):
        raise UnavailableError("no service of the run answers")
    return versions_of_metrics(texts)


async def _of_cluster(access: "KubeAccess", timeout_s: float) -> list[ServiceVersion]:
    from gpuloom.kube.client import KubeClient  # noqa: PLC0415 - brings HTTP along
    from gpuloom.kube.listing import Selection  # noqa: PLC0415
    from gpuloom.kube.resources import PODS  # noqa: PLC0415
    from gpuloom.runtime.clock import SystemClock  # noqa: PLC0415

    ours = Selection(label_selector="app.kubernetes.io/part-of=gpuloom")
    async with KubeClient(access, SystemClock()) as client:
        return versions_of_pods((await client.list(PODS, ours, timeout_s=timeout_s)).items)
