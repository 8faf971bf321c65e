"""`gpuloom gangs` and `gpuloom reserve`: what is planned ahead, and GPUs that are kept for later."""

import os
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from gpuloom.cli.connection.endpoints import (
    DEFAULT_TIMEOUT_S,
    DirectoryOption,
    ExtenderOption,
    TimeoutOption,
    ask,
    find_endpoint,
)
from gpuloom.cli.output.forms import Output, OutputOption, WatchOption, follow
from gpuloom.cli.output.tables import table_lines
from gpuloom.kube.parse import parse_time
from gpuloom.model.planning import GangReport, ReservationReport, times_problem
from gpuloom.runtime.parsers import seconds

_Namespace = Annotated[str, typer.Option("--namespace", "-n", help="Namespace of the reservation.")]
_Name = Annotated[str, typer.Argument(help="Name of the reservation.")]


def register(app: typer.Typer) -> None:
    app.command("gangs", short_help="Show gangs, and what those that wait are waiting for.")(gangs)
    reserve = typer.Typer()
    reserve.command("create", short_help="Keep GPUs for certain pods, for a time.")(create)
    reserve.command("list", short_help="Show what is reserved.")(listed)
    reserve.command("delete", short_help="Give a reservation back.")(delete)
    app.add_typer(reserve, name="reserve", help="GPUs that are kept for later.", short_help="Reserve GPUs.")


def gangs(
    extender: ExtenderOption = "",
    directory: DirectoryOption = Path("run"),
    watch: WatchOption = False,
    output: OutputOption = Output.TABLE,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
) -> None:
    """Show every gang: how many of its pods are bound or have a place, and why the others wait.

    Exits 0, or 3 if the extender can't be reached.
    """
    endpoint = find_endpoint("scheduler_extender", extender, directory, os.environ)
    from gpuloom.clients.planning import PlanClient  # noqa: PLC0415 - brings gRPC along

    def found() -> tuple[Any, Iterator[str]]:
        gangs = ask(endpoint, lambda channel: PlanClient(channel, timeout).gangs())
        return list(gangs), gang_lines(gangs, wide=output is Output.WIDE)

    follow(found, output, watch=watch)


def create(  # noqa: PLR0913, PLR0917 - each is an option of the command
    name: _Name,
    gpus: Annotated[int, typer.Option("--gpus", min=1, help="GPUs of each place.")] = 1,
    count: Annotated[int, typer.Option("--count", min=1, help="How many such places.")] = 1,
    model: Annotated[str, typer.Option("--model", help="GPU model; any if absent.")] = "",
    mig: Annotated[str, typer.Option("--mig", help="MIG profile instead of whole GPUs.")] = "",
    start: Annotated[str, typer.Option("--from", help="When it begins, as 2026-01-31T08:00:00Z.")] = "",
    until: Annotated[str, typer.Option("--until", help="When it ends.")] = "",
    ttl: Annotated[str, typer.Option("--ttl", help="How long it lasts, as 2h.")] = "",
    label: Annotated[
        list[str] | None, typer.Option("--label", help="key=value that pods must have; repeat.")
    ] = None,
    namespace: _Namespace = "default",
    extender: ExtenderOption = "",
    directory: DirectoryOption = Path("run"),
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
) -> None:
    """Keep GPUs for pods of a namespace, from now or a later time on.

    Exits 0; 2 for what can't be understood; 3 if the extender can't be reached.
    """
    if bool(until) == bool(ttl):
        raise typer.BadParameter("either --until or --ttl is needed")
    wanted = ReservationReport(
        namespace=namespace,
        name=name,
        gpu_count=gpus,
        count=count,
        gpu_model=model,
        mig_profile=mig,
        start=_moment(start, "--from"),
        end=_moment(until, "--until"),
        match_labels=dict(_label(text) for text in label or ()),
    )
    lasting_s = _lasting_s(ttl) if ttl else 0
    problem = times_problem(wanted.start, wanted.end, lasting_s, datetime.now(UTC))
    if problem:
        raise typer.BadParameter(problem)
    endpoint = find_endpoint("scheduler_extender", extender, directory, os.environ)
    from gpuloom.clients.planning import PlanClient  # noqa: PLC0415 - brings gRPC along

    ask(endpoint, lambda channel: PlanClient(channel, timeout).reserve(wanted, lasting_s))
    typer.echo(f"{namespace}/{name} is made; `gpuloom reserve list` shows what it got")


def listed(
    extender: ExtenderOption = "",
    directory: DirectoryOption = Path("run"),
    watch: WatchOption = False,
    output: OutputOption = Output.TABLE,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
) -> None:
    """Show every GPUReservation: for whom, until when, and how much of it is kept.

    Exits 0, or 3 if the extender can't be reached.
    """
    endpoint = find_endpoint("scheduler_extender", extender, directory, os.environ)
    from gpuloom.clients.planning import PlanClient  # noqa: PLC0415 - brings gRPC along

    def found() -> tuple[Any, Iterator[str]]:
        reserved = ask(endpoint, lambda channel: PlanClient(channel, timeout).reservations())
        return list(reserved), reservation_lines(reserved, wide=output is Output.WIDE)

    follow(found, output, watch=watch)


def delete(
    name: _Name,
    namespace: _Namespace = "default",
    extender: ExtenderOption = "",
    directory: DirectoryOption = Path("run"),
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
) -> None:
    """Give back what is reserved; pods that use it run on.

    Exits 0; 1 if there is none; 3 if the extender can't be reached.
    """
    endpoint = find_endpoint("scheduler_extender", extender, directory, os.environ)
    from gpuloom.clients.planning import PlanClient  # noqa: PLC0415 - brings gRPC along

    ask(endpoint, lambda channel: PlanClient(channel, timeout).delete_reservation(namespace, name))
    typer.echo(f"{namespace}/{name} is over")


def gang_lines(found: Sequence[GangReport], *, wide: bool = False) -> Iterator[str]:
    if not found:
        yield "there are no gangs"
        return
    rows = [("GANG", "PHASE", "SIZE", "BOUND", "RESERVED", "WAITING", "PRIORITY", "NODES", "UNTIL", "REASON")]
    for gang in found:
        counts = gang.size, gang.bound, gang.reserved, gang.waiting, gang.priority
        size, bound, reserved, waiting, priority = map(str, counts)
        nodes = ",".join(gang.nodes) or "-"
        until = _time_text(gang.deadline)
        cells = size, bound, reserved, waiting, priority, nodes, until
        rows.append((gang.name, gang.phase, *cells, gang.reason))
    yield from table_lines(rows, without=() if wide else ("UNTIL",))


def reservation_lines(found: Sequence[ReservationReport], *, wide: bool = False) -> Iterator[str]:
    if not found:
        yield "nothing is reserved"
        return
    rows = [("RESERVATION", "STATE", "EACH", "RESERVED", "FROM", "UNTIL", "FOR", "NODES")]
    for each in found:
        what = each.mig_profile or each.gpu_model or "GPU"
        labels = ",".join(f"{key}={value}" for key, value in sorted(each.match_labels.items()))
        rows.append(
            (
                f"{each.namespace}/{each.name}",
                each.state or "-",
                f"{each.gpu_count} {what}",
                f"{each.reserved}/{each.count}",
                _time_text(each.start),
                _time_text(each.end),
                labels or "all pods of the namespace",
                ",".join(each.nodes) or "-",
            )
        )
    yield from table_lines(rows, without=() if wide else ("FROM",))


def _time_text(moment: datetime | None) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if moment else "-"


def _moment(text: str, option: str) -> datetime | None:
    if not text:
        return None
    try:
        return parse_time(text)
    except ValueError:
        raise typer.BadParameter(f"{option} must be a time as 2026-01-31T08:00:00Z, not {text!r}") from None


def _lasting_s(text: str) -> int:
    try:
        lasting_s = int(seconds(text))
    except ValueError as error:
        raise typer.BadParameter(f"--ttl: {error}") from None
    if lasting_s < 1:
        raise typer.BadParameter("--ttl must be at least a second")
    return lasting_s


def _label(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not key or not sign:
        raise typer.BadParameter(f"--label must be key=value, not {text!r}")
    return key, value
