"""`gpuloom doctor`: whether a cluster has what GPULoom needs, and how to mend what it lacks. Only asks."""

import asyncio
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuloom.cli.connection.endpoints import (
    DEFAULT_TIMEOUT_S,
    DirectoryOption,
    DiscoveryOption,
    TimeoutOption,
    find_endpoint,
    read_cluster_async,
)
from gpuloom.cli.connection.kube import ContextOption, KubeconfigOption, find_access, run_targets
from gpuloom.cli.doctor.findings import Finding, Verdict
from gpuloom.cli.output import exits
from gpuloom.cli.output.forms import Output, OutputOption, show
from gpuloom.errors import GpuloomError

if TYPE_CHECKING:
    from gpuloom.cli.doctor.observed import Observed, Prometheus, Unread
    from gpuloom.kube.access import KubeAccess
    from gpuloom.model.snapshot import ClusterSnapshot

_MARKS = {Verdict.OK: "ok  ", Verdict.SKIPPED: "skip", Verdict.WARNING: "WARN", Verdict.FAILED: "FAIL"}
_COLORS = {Verdict.OK: "green", Verdict.WARNING: "yellow", Verdict.FAILED: "red", Verdict.SKIPPED: None}

_Prometheus = Annotated[
    str,
    typer.Option(
        "--prometheus",
        envvar="GPULOOM_PROMETHEUS_URL",
        metavar="URL",
        help="Also check that this Prometheus has the agents' metrics.",
    ),
]


def register(app: typer.Typer) -> None:
    app.command("doctor", short_help="Check a cluster for everything GPULoom needs.")(doctor)


def doctor(  # noqa: PLR0913, PLR0917 - every one is an option
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = "",
    discovery: DiscoveryOption = "",
    prometheus: _Prometheus = "",
    directory: DirectoryOption = Path("run"),
    output: OutputOption = Output.TABLE,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
) -> None:
    """Check a cluster for everything GPULoom needs, and say how to mend what is wrong.

    Looks at versions, definitions, services, agents, trust, delivery, webhooks, policies, rights,
    certificates, clocks and Prometheus; changes nothing. What it may not read is skipped, with the reason.
    Of a run here (--dir) it looks at what a run has: its services are processes, not pods with rights.

    Exits 0 if nothing failed, 1 if something did, 3 if the Kubernetes API can't be reached.
    """
    from gpuloom.cli.doctor.checks import findings_of  # noqa: PLC0415 - brings Kubernetes along

    access = find_access(kubeconfig, context, directory)
    targets = run_targets(kubeconfig, context, directory)
    observed = asyncio.run(_observe(access, targets, discovery, directory, prometheus, timeout))
    findings = findings_of(observed)
    show(output, {"findings": [asdict(finding) for finding in findings]}, lambda: finding_lines(findings))
    worst = any(finding.verdict is Verdict.FAILED for finding in findings)
    raise typer.Exit(exits.NO if worst else exits.FINE)


def finding_lines(findings: Sequence[Finding]) -> Iterator[str]:
    width = max((len(finding.check) for finding in findings), default=0)
    for finding in findings:
        mark = typer.style(_MARKS[finding.verdict], fg=_COLORS[finding.verdict])
        yield f"{mark}  {finding.check:<{width}}  {exits.one_line(finding.text)}"
        if finding.remedy:
            yield f"{'':<{width + 8}}to do: {finding.remedy}"
    failed = sum(finding.verdict is Verdict.FAILED for finding in findings)
    warned = sum(finding.verdict is Verdict.WARNING for finding in findings)
    yield ""
    yield f"{len(findings)} checks: {failed} failed, {warned} warnings"


async def _observe(
    access: "KubeAccess",
    targets: dict[str, list[str]] | None,
    discovery: str,
    directory: Path,
    prometheus: str,
    timeout_s: float,
) -> "Observed":
    from gpuloom.catalog.manifests import definitions  # noqa: PLC0415
    from gpuloom.cli.doctor.observed import Observed, Unread  # noqa: PLC0415
    from gpuloom.cli.doctor.reading import ClusterReader, read_run  # noqa: PLC0415
    from gpuloom.errors import UnavailableError  # noqa: PLC0415
    from gpuloom.kube.client import KubeClient  # noqa: PLC0415
    from gpuloom.runtime.clock import SystemClock  # noqa: PLC0415

    async with KubeClient(access, SystemClock()) as client:
        reader = ClusterReader(client)
        version = await reader.version()
        if isinstance(version, Unread):
            raise UnavailableError(f"the Kubernetes API can't be asked: {version.why}")
        pods = await reader.pods()
        # In this order: a lease that is renewed while others are asked would look ahead of the server.
        node_leases = await reader.node_leases()
        server_time = await reader.server_time()
        return Observed(
            now=datetime.now(UTC),
            version=version,
            server_time=server_time,
            definitions=await reader.definitions(),
            shipped=definitions(),
            priority_classes=await reader.priority_classes(),
            pods=pods,
            deployments=await reader.deployments(),
            nodes=await reader.nodes(),
            node_leases=node_leases,
            webhooks=await reader.webhooks(),
            admission_policies=await reader.admission_policies(),
            admission_bindings=await reader.admission_bindings(),
            certificates=await reader.certificates(pods),
            rights=await reader.rights(pods),
            facts=await _facts(discovery, directory, timeout_s),
            prometheus=await _prometheus(prometheus, timeout_s),
            run=None if targets is None else await read_run(targets, timeout_s),
        )


async def _facts(discovery: str, directory: Path, timeout_s: float) -> "ClusterSnapshot | Unread":
    from gpuloom.cli.doctor.observed import Unread  # noqa: PLC0415

    try:
        endpoint = find_endpoint("discovery", discovery, directory, os.environ)
        return await read_cluster_async(endpoint, timeout_s)
    except GpuloomError as error:
        return Unread(f"discovery was not asked: {error}")


async def _prometheus(url: str, timeout_s: float) -> "Prometheus | Unread":
    from gpuloom.cli.doctor.observed import Prometheus, Unread  # noqa: PLC0415
    from gpuloom.clients.prometheus import PrometheusClient, PrometheusConfig  # noqa: PLC0415

    if not url:
        return Unread("no address was given")
    try:
        async with PrometheusClient(PrometheusConfig(url=url, timeout_s=timeout_s)) as client:
            answer = await client.instant("count(DCGM_FI_DEV_GPU_UTIL)", max_age_s=300.0)
    except GpuloomError as error:
        return Prometheus(url, str(error))
    return Prometheus(url, gpu_series=int(answer[0].value) if answer else 0)
