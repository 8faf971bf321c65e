"""`gpuloom events`: what GPULoom told by Kubernetes Events, the newest last. Only asks and shows."""

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuloom.cli.connection.endpoints import DEFAULT_TIMEOUT_S, DirectoryOption, TimeoutOption
from gpuloom.cli.connection.kube import ContextOption, KubeconfigOption, find_access
from gpuloom.cli.output import exits
from gpuloom.cli.output.forms import Output, OutputOption, WatchOption, follow
from gpuloom.cli.output.tables import table_lines
from gpuloom.errors import InvalidRequestError
from gpuloom.kube.objects import JsonObject, metadata_of

if TYPE_CHECKING:
    from gpuloom.kube.access import KubeAccess

_OURS = "gpuloom"
_HEADER = ("AGE", "TYPE", "FROM", "REASON", "OBJECT", "MESSAGE")

_Namespace = Annotated[
    str, typer.Option("-n", "--namespace", help="Only of this namespace. Default: of all.")
]
_For = Annotated[
    str, typer.Option("--for", metavar="KIND/NAME", help="Only about this object, as pod/train-0.")
]
_Warnings = Annotated[bool, typer.Option("--warnings", help="Only warnings.")]
_Most = Annotated[int, typer.Option("--most", min=1, help="At most so many, the newest.")]


@dataclass(frozen=True, slots=True)
class EventRow:
    """`last` is when it was told last; `count` how often."""

    last: datetime
    kind: str
    component: str
    reason: str
    object: str
    namespace: str
    message: str
    count: int


def register(app: typer.Typer) -> None:
    app.command("events", short_help="Show what GPULoom told by Kubernetes Events.")(events)


def events(  # noqa: PLR0913, PLR0917 - every one is an option
    namespace: _Namespace = "",
    about: _For = "",
    warnings: _Warnings = False,
    most: _Most = 50,
    watch: WatchOption = False,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = "",
    directory: DirectoryOption = Path("run"),
    output: OutputOption = Output.TABLE,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
) -> None:
    """Show what GPULoom's services told by Kubernetes Events: decisions, refusals, faults; the newest last.

    Exits 0 also if there are none, 3 if the Kubernetes API can't be reached.
    """
    if about and about.count("/") not in (1, 2):
        raise InvalidRequestError(f"--for is KIND/NAME, as pod/train-0, not {exits.one_line(about)}")
    access = find_access(kubeconfig, context, directory)

    def found() -> tuple[Any, Iterable[str]]:
        listed = asyncio.run(_read(access, namespace, timeout))
        rows = event_rows(listed, about, warnings_only=warnings)[-most:]
        return {"events": [asdict(row) for row in rows]}, event_lines(rows, datetime.now(UTC))

    follow(found, output, watch=watch)
    raise typer.Exit(exits.FINE)


def event_rows(found: Iterable[JsonObject], about: str, *, warnings_only: bool) -> list[EventRow]:
    """GPULoom's own, oldest first."""
    rows = [_row(event) for event in found if _component(event).startswith(_OURS)]
    wanted = about.lower()
    kept = [
        row
        for row in rows
        if (not wanted or wanted in (row.object.lower(), f"{row.namespace}/{row.object}".lower()))
        and (not warnings_only or row.kind == "Warning")
    ]
    return sorted(kept, key=lambda row: (row.last, row.namespace, row.object, row.reason))


def event_lines(rows: list[EventRow], now: datetime) -> Iterator[str]:
    if not rows:
        yield "no events"
        return
    cells = [
        (
            _age((now - row.last).total_seconds()),
            row.kind,
            row.component.removeprefix(f"{_OURS}-"),
            row.reason,
            f"{row.namespace}/{row.object}" if row.namespace else row.object,
            exits.one_line(row.message) + (f" (x{row.count})" if row.count > 1 else ""),
        )
        for row in rows
    ]
    yield from table_lines([_HEADER, *cells], right=("AGE",))


async def _read(access: "KubeAccess", namespace: str, timeout_s: float) -> tuple[JsonObject, ...]:
    from gpuloom.kube.client import KubeClient  # noqa: PLC0415 - brings HTTP along
    from gpuloom.kube.listing import Selection  # noqa: PLC0415
    from gpuloom.kube.resources import EVENTS  # noqa: PLC0415
    from gpuloom.runtime.clock import SystemClock  # noqa: PLC0415

    async with KubeClient(access, SystemClock()) as client:
        listing = await client.list(EVENTS, Selection(namespace=namespace or None), timeout_s=timeout_s)
        return listing.items


def _row(event: JsonObject) -> EventRow:
    involved = event.get("involvedObject") or {}
    return EventRow(
        last=_time(event),
        kind=event.get("type") or "Normal",
        component=_component(event),
        reason=event.get("reason") or "",
        object=f"{involved.get('kind', '').lower()}/{involved.get('name', '')}",
        namespace=involved.get("namespace") or "",
        message=event.get("message") or "",
        count=int(event.get("count") or (event.get("series") or {}).get("count") or 1),
    )


def _component(event: JsonObject) -> str:
    return event.get("reportingComponent") or (event.get("source") or {}).get("component") or ""


def _time(event: JsonObject) -> datetime:
    told = event.get("lastTimestamp") or event.get("eventTime") or metadata_of(event).get("creationTimestamp")
    try:
        return datetime.fromisoformat(told or "").astimezone(UTC)
    except ValueError:
        return datetime.fromtimestamp(0, UTC)


def _age(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= size:
            return f"{seconds // size:.0f}{unit}"
    return f"{max(seconds, 0):.0f}s"
