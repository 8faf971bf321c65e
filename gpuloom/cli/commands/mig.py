"""`gpuloom mig`: how GPUs are cut, what it would take to fit slices, and to have that done."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from gpuloom.cli.connection.endpoints import (
    DEFAULT_TIMEOUT_S,
    DirectoryOption,
    TimeoutOption,
    ask,
    find_endpoint,
)
from gpuloom.cli.output import exits
from gpuloom.cli.output.forms import Output, OutputOption, WatchOption, follow, is_document, show
from gpuloom.cli.output.tables import table_lines
from gpuloom.errors import InvalidRequestError
from gpuloom.model.gpu import SharingMode
from gpuloom.model.mig import MigPlacement
from gpuloom.model.mig_cards import BegunChange, MigCard, MigCards, PlannedFit
from gpuloom.model.sharing import MigStage

_MAX_DIGITS = 9
_HEADER = (
    *("NODE", "GPU", "UUID", "MODEL", "STATE", "SHARED", "LAYOUT"),
    *("SLICE", "START", "SLICE-STATE", "OWNER", "NOTE"),
)

_Mig = Annotated[str, typer.Option("--mig", metavar="HOST:PORT", help="The MIG controller's gRPC address.")]
_Node = Annotated[str, typer.Option("--node", help="Only this node. Default: all.")]
_All = Annotated[bool, typer.Option("--all", help="Also GPUs that are not cut.")]
_Apply = Annotated[
    bool, typer.Option("--apply", help="Carry the plan out: pods are evicted, unless a budget forbids it.")
]
_Fit = Annotated[
    list[str], typer.Option("--fit", metavar="PROFILE=COUNT", help="Slices that are to fit; may be repeated.")
]


def register(app: typer.Typer) -> None:
    group = typer.Typer(name="mig", short_help="Show how GPUs are cut, and plan to cut them otherwise.")
    group.callback()(about)
    group.command("list", short_help="Show GPUs in MIG mode and their slices.")(list_cards)
    group.command("plan", short_help="Show what would have to move so that slices fit.")(plan)
    app.add_typer(group)


def about() -> None:
    """How GPUs of gpuloom nodes are cut into MIG slices."""


def list_cards(  # noqa: PLR0913, PLR0917 - every one is an option
    node: _Node = "",
    show_all: _All = False,
    mig: _Mig = "",
    directory: DirectoryOption = Path("run"),
    watch: WatchOption = False,
    output: OutputOption = Output.TABLE,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
) -> None:
    """Show GPUs that are cut, being cut or shared, their slices with state and owner, and pods that wait.

    Exits 0 also if there are none, 3 if the MIG controller can't be reached.
    """
    endpoint = find_endpoint("mig_controller", mig, directory, os.environ)
    from gpuloom.clients import mig as client  # noqa: PLC0415 - brings gRPC along

    def found() -> tuple[Any, Iterator[str]]:
        listed = ask(endpoint, lambda channel: client.list_cards(channel, timeout))
        cards = tuple(
            card for card in listed.cards if node in ("", card.node_name) and (show_all or _is_divided(card))
        )
        shown = MigCards(cards, listed.waiting)
        return shown, card_lines(shown, wide=output is Output.WIDE)

    follow(found, output, watch=watch)
    raise typer.Exit(exits.FINE)


def _is_divided(card: MigCard) -> bool:
    return bool(card.slices) or card.stage is not MigStage.GPU_DISCOVERED or _is_shared(card)


def _is_shared(card: MigCard) -> bool:
    return card.sharing in (SharingMode.MPS, SharingMode.TIME_SLICING)


def plan(
    fit: _Fit,
    apply: _Apply = False,
    mig: _Mig = "",
    directory: DirectoryOption = Path("run"),
    output: OutputOption = Output.TABLE,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
) -> None:
    """Show the fewest moves after which these slices fit, with their price. Changes nothing but with --apply.

    With --apply exactly what is shown is begun, or nothing: holds first, then pods are evicted, then GPUs are
    cut. `gpuloom mig list` shows how that goes on.

    Exits 0 if they fit, 1 if some do not, whatever moves, or if the plan could not be begun; 3 if the MIG
    controller can't be reached.
    """
    demand = demand_of(fit)
    endpoint = find_endpoint("mig_controller", mig, directory, os.environ)
    from gpuloom.clients import mig as client  # noqa: PLC0415 - brings gRPC along

    found = ask(endpoint, lambda channel: client.plan_fit(channel, demand, timeout))
    if not is_document(output):
        typer.echo("\n".join(plan_lines(found, demand)))
    begun: tuple[BegunChange, ...] = ()
    if apply and found.steps and not found.missing:
        begun = ask(endpoint, lambda channel: client.apply_fit(channel, demand, found.fingerprint, timeout))
    if is_document(output):
        show(output, {"plan": found, "begun": begun} if apply else found, list)
    elif begun:
        typer.echo(f"begun: {', '.join(change.id for change in begun)}; see gpuloom mig list")
    elif apply and found.missing:
        typer.echo("nothing is begun")
    raise typer.Exit(exits.NO if found.missing else exits.FINE)


def demand_of(texts: list[str]) -> dict[str, int]:
    """Raise InvalidRequestError for anything but PROFILE=COUNT."""
    demand: dict[str, int] = {}
    for text in texts:
        profile, _, count = text.partition("=")
        is_number = count.isascii() and count.isdigit() and len(count) <= _MAX_DIGITS
        if not profile or not is_number or int(count) < 1:
            raise InvalidRequestError(f"--fit {text}: write a profile and a number, as in 3g.40gb=4")
        demand[profile] = demand.get(profile, 0) + int(count)
    return demand


def card_lines(found: MigCards, *, wide: bool = False) -> Iterator[str]:
    rows = [cells for card in found.cards for cells in _cells(card)]
    if rows:
        yield from table_lines([_HEADER, *rows], right=("GPU", "START"), without=() if wide else ("UUID",))
    else:
        yield "no GPU of a gpuloom node is cut"
    if found.waiting:
        yield ""
        yield f"{len(found.waiting)} pods wait for a slice:"
        waiting = [(str(one.pod), one.profile, one.note) for one in found.waiting]
        yield from table_lines([("POD", "PROFILE", "NOTE"), *waiting])


def layout_text(card: MigCard) -> str:
    """One character a memory slice: # in use, + given, = free, * coming or going, . nothing."""
    marks = {
        "InUse": "#",
        "Allocated": "+",
        "Available": "=",
        "PartitionCreated": "*",
        "PartitionDestroyed": "*",
    }
    text = ["."] * card.memory_slices
    for one in card.slices:
        for at in range(one.placement.start, min(one.placement.start + one.slices, card.memory_slices)):
            text[at] = marks[one.stage.value]
    return "".join(text)


def plan_lines(found: PlannedFit, demand: Mapping[str, int]) -> Iterator[str]:
    wanted = ", ".join(f"{count} x {profile}" for profile, count in sorted(demand.items()))
    there = ", ".join(f"{count} x {profile}" for profile, count in sorted(found.there.items()))
    yield f"to fit {wanted}" + (f" ({there} free already)" if there else "") + ":"
    if not found.steps and not found.missing:
        yield "  nothing has to be done"
    moves = 0
    for step in found.steps:
        yield f"  node {step.node_name}, GPU {step.gpu_uuid}"
        for move in step.moves:
            moves += 1
            price = "price not known" if move.price_usd is None else f"${move.price_usd:.2f} of work lost"
            yield f"    move {move.owner} away from {_place(move.placement)} ({price})"
        kept = {move.placement for move in step.moves}
        for place in step.destroy:
            if place not in kept:
                yield f"    take away {_place(place)}, which nobody has"
        for place in step.create:
            yield f"    make {_place(place)}"
    if found.steps:
        yield _moves_text(found) if moves else "nobody has to move"
    if found.stranded:
        yield f"no place now for {', '.join(found.stranded)}: they would wait"
    if found.missing:
        missing = ", ".join(f"{count} x {profile}" for profile, count in sorted(found.missing.items()))
        yield f"does not fit, whatever moves: {missing}"


def _moves_text(found: PlannedFit) -> str:
    prices = [move.price_usd for step in found.steps for move in step.moves]
    known = [price for price in prices if price is not None]
    text = "1 pod has to move" if len(prices) == 1 else f"{len(prices)} pods have to move"
    if not known:
        return text
    rest = f", and what {len(prices) - len(known)} lose is not known" if len(known) < len(prices) else ""
    return f"{text}: ${sum(known):.2f} of work lost{rest}"


def _cells(card: MigCard) -> Iterator[tuple[str, ...]]:
    shared = card.sharing.value if _is_shared(card) else "-"
    gpu = (str(card.index), card.gpu_uuid, card.model)
    head = (card.node_name, *gpu, card.stage.value, shared, layout_text(card))
    note = exits.one_line(card.note) if card.note else ""
    for number, tenant in enumerate(card.tenants):
        first = head if number == 0 else ("",) * len(head)
        milli = f"{tenant.milli}/1000"
        yield (*first, milli, "-", tenant.keeping, tenant.owner, note if number == 0 else "")
    if not card.slices and not card.tenants:
        yield (*head, "-", "-", "-", "-", note)
    for number, one in enumerate(card.slices):
        first = head if number == 0 else ("",) * len(head)
        place = (one.placement.profile, str(one.placement.start), one.stage.value, one.owner or "-")
        yield (*first, *place, note if number == 0 else "")


def _place(place: MigPlacement) -> str:
    return f"{place.profile} at {place.start}"
