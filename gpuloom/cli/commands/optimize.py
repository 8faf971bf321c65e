"""`gpuloom optimize`: the pods that waste GPU time, and what to change. Only asks and shows."""

import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from gpuloom.cli.connection.endpoints import (
    DEFAULT_TIMEOUT_S,
    DirectoryOption,
    TimeoutOption,
    address_option,
    ask,
    find_endpoint,
)
from gpuloom.cli.output import exits
from gpuloom.cli.output.forms import Output, OutputOption, WatchOption, follow, show
from gpuloom.cli.output.tables import table_lines
from gpuloom.cli.scheduling.explain import parse_pod
from gpuloom.errors import InvalidRequestError
from gpuloom.model.money import usd
from gpuloom.model.optimization import PodWaste, Recommendation, WasteReport

OptimizerOption = Annotated[str, address_option("optimizer")]

_WIDE = ("CLASS", "OWNER", "REASON")
_COLUMNS = ("POD", "SCORE", "GPU-UTIL", "NOW", "RECOMMENDED", "SAVING/MONTH", "CONFIDENCE", *_WIDE)
_NUMBERS = ("SCORE", "GPU-UTIL", "SAVING/MONTH", "CONFIDENCE")
_UNKNOWN = "-"


def register(app: typer.Typer) -> None:
    app.command("optimize", short_help="Show pods that waste GPU time, and what to change.")(optimize)


def optimize(  # noqa: PLR0913, PLR0917 - every one is an option
    pod: Annotated[str, typer.Option("--pod", metavar="NAMESPACE/NAME", help="Only this pod, in full.")] = "",
    yaml: Annotated[bool, typer.Option("--yaml", help="With --pod: print the change itself.")] = False,
    optimizer: OptimizerOption = "",
    directory: DirectoryOption = Path("run"),
    watch: WatchOption = False,
    output: OutputOption = Output.TABLE,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
) -> None:
    """Show the pods that use less of their GPUs than they hold, worst first, and what would do for them.

    --pod NAME --yaml prints a patch for kubectl patch (of a Deployment or StatefulSet) or a new manifest
    (of a Job or a pod, whose resources can't change). Exits 0, 1 if nothing is or was recommended for the
    pod, 3 if the optimizer can't be reached.
    """
    if yaml and not pod:
        raise InvalidRequestError("--yaml needs --pod")
    if watch and pod:
        raise InvalidRequestError("--watch is for all pods, without --pod")
    endpoint = find_endpoint("optimizer", optimizer, directory, os.environ)
    from gpuloom.clients import optimizer as client  # noqa: PLC0415 - brings gRPC along

    if pod:
        found = ask(endpoint, lambda channel: client.recommend(channel, parse_pod(pod), timeout))
        _show_one(found, yaml, output)
        raise typer.Exit(exits.FINE if found.yaml or found.applied else exits.NO)

    def found_now() -> tuple[Any, Iterator[str]]:
        report = ask(endpoint, lambda channel: client.waste(channel, timeout_s=timeout))
        document = {**asdict(report), "pods": [_document(each) for each in report.pods]}
        return document, report_lines(report, wide=output is Output.WIDE)

    follow(found_now, output, watch=watch)


def report_lines(report: WasteReport, *, wide: bool = False) -> Iterator[str]:
    if report.problem:
        yield report.problem
    elif not report.pods:
        yield f"no waste found; {report.observed_pods} pods are observed"
    else:
        rows = [_COLUMNS, *map(_cells, report.pods)]
        yield from table_lines(rows, right=_NUMBERS, without=() if wide else _WIDE)


def recommendation_lines(found: Recommendation) -> Iterator[str]:
    waste = found.waste
    yield from table_lines([_COLUMNS, _cells(waste)], right=_NUMBERS, without=_WIDE)
    parts = waste.parts
    yield ""
    yield f"{waste.pod} ({waste.workload_class}): {waste.reason}"
    yield (
        f"score {waste.score:.0f} = idle {parts.idle:.0f} + oversized {parts.oversized:.0f} "
        f"+ wrong kind {parts.wrong_kind:.0f} + sharable {parts.sharable:.0f}"
    )
    if found.target:
        what = f"patch {found.target}" if found.is_patch else f"a new manifest, {found.target}"
        yield f"change: {what}; --yaml prints it"
    if waste.saving_nano_usd is not None:
        yield f"saving: {_money(waste.saving_nano_usd)} a month of {found.hours_per_month} h, an estimate"
    for each in found.applied:
        saved = _money(each.actual_nano_usd) if each.actual_nano_usd is not None else "not known"
        yield f"applied {each.applied_at:%Y-%m-%d %H:%M} UTC: {each.before} -> {each.after}, saves {saved}"


def _show_one(found: Recommendation, yaml: bool, output: Output) -> None:
    if yaml:
        typer.echo(found.yaml, nl=False)
    else:
        document = {**asdict(found), "waste": _document(found.waste)}
        show(output, document, lambda: recommendation_lines(found))


def _document(waste: PodWaste) -> dict[str, object]:
    return {**asdict(waste), "score": round(waste.score, 1)}


def _cells(waste: PodWaste) -> tuple[str, ...]:
    return (
        str(waste.pod),
        f"{waste.score:.0f}",
        _UNKNOWN if waste.utilization_ratio is None else f"{waste.utilization_ratio:.0%}",
        waste.now,
        waste.recommended or _UNKNOWN,
        _UNKNOWN if waste.saving_nano_usd is None else _money(waste.saving_nano_usd),
        f"{waste.confidence:.0%}" if waste.recommended else _UNKNOWN,
        waste.workload_class.value,
        waste.owner or _UNKNOWN,
        exits.one_line(waste.reason) if waste.reason else _UNKNOWN,
    )


def _money(nano: int) -> str:
    return f"${usd(nano):,.2f}"
