"""`gpuloom holds`: what is taken out of placement, for whom and until when; and how a person ends a hold."""

import os
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
from gpuloom.errors import NotFoundError
from gpuloom.model.allocation import AllocatedDevice
from gpuloom.model.gpu import MILLI_PER_GPU
from gpuloom.model.ledger import Hold

if TYPE_CHECKING:
    from gpuloom.clients.holds import HoldClient

_Release = Annotated[str, typer.Option("--release", metavar="NAME", help="End this hold, whoever took it.")]


def register(app: typer.Typer) -> None:
    app.command("holds", short_help="Show what is taken out of placement.")(holds)


def holds(
    release: _Release = "",
    extender: ExtenderOption = "",
    directory: DirectoryOption = Path("run"),
    watch: WatchOption = False,
    output: OutputOption = Output.TABLE,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
) -> None:
    """Show what is taken out of placement: by which hold, for whom, why, and how long.

    Exits 0, 1 if there is no hold to release, 3 if the extender can't be reached.
    """
    endpoint = find_endpoint("scheduler_extender", extender, directory, os.environ)
    from gpuloom.clients.holds import HoldClient  # noqa: PLC0415 - brings gRPC along

    if release:
        ask(endpoint, lambda channel: _release(HoldClient(channel, timeout), release))
        typer.echo(f"{release} is over")
        return

    def found() -> tuple[Any, Iterator[str]]:
        held = ask(endpoint, lambda channel: HoldClient(channel, timeout).list())
        return held, hold_lines(held, datetime.now(UTC))

    follow(found, output, watch=watch)


async def _release(client: "HoldClient", name: str) -> None:
    # To release what is over is no error: who mistypes a name would take the hold for ended.
    if name not in {hold.name for hold in await client.list()}:
        raise NotFoundError(f"there is no hold {name}")
    await client.release(name)


def hold_lines(found: Sequence[Hold], now: datetime) -> Iterator[str]:
    if not found:
        yield "nothing is held"
        return
    rows = [("HOLD", "NODE", "WHAT", "FOR", "TAKEN BY", "EXPIRES", "REASON")]
    rows += [
        (
            hold.name,
            hold.node_name or "any",
            what_text(hold.device),
            _owner_text(hold),
            hold.taken_by or "somebody else",
            _expiry_text(hold.expires, now),
            hold.problem or hold.reason,
        )
        for hold in found
    ]
    yield from table_lines(rows)


def what_text(device: AllocatedDevice | None) -> str:
    if device is None:
        return "the node"
    if device.device.mig is not None:
        return f"{device.device.gpu_uuid} {device.device.mig.profile} at {device.device.mig.start}"
    if device.milli >= MILLI_PER_GPU:
        return device.device.gpu_uuid
    memory = f", {device.memory_mib} MiB" if device.memory_mib else ""
    return f"{device.device.gpu_uuid} {device.milli} milli{memory}"


def _owner_text(hold: Hold) -> str:
    owner = hold.owner
    return f"{owner.kind} {owner.namespace}/{owner.name}" if owner.namespace else f"{owner.kind} {owner.name}"


def _expiry_text(expires: datetime | None, now: datetime) -> str:
    if expires is None:
        return "when released"
    left_s = int((expires - now).total_seconds())
    return "now" if left_s <= 0 else f"in {left_s} s" if left_s < 600 else f"in {left_s // 60} min"
