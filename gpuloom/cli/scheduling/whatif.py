"""`gpuloom whatif`: where replicas of a pod would go, if they came now. Only asks and shows."""

import os
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from gpuloom.cli.connection.endpoints import (
    DEFAULT_TIMEOUT_S,
    DirectoryOption,
    ExtenderOption,
    TimeoutOption,
    ask,
    find_endpoint,
)
from gpuloom.cli.output import exits
from gpuloom.cli.output.forms import Output, OutputOption, show
from gpuloom.cli.output.tables import table_lines
from gpuloom.cli.scheduling.judgement_text import device_texts, judgement_lines, offer_lines
from gpuloom.cli.scheduling.manifests import MAX_BYTES, Manifest, read_manifest
from gpuloom.errors import InvalidRequestError
from gpuloom.model.explanation import Forecast, Offer

MAX_REPLICAS = 1000
STDIN = "-"

_File = Annotated[
    str,
    typer.Option(
        "--filename",
        "-f",
        metavar="FILE",
        help="Pod, Job, Deployment or StatefulSet; - is the standard input.",
    ),
]
_Replicas = Annotated[
    int | None,
    typer.Option(min=1, max=MAX_REPLICAS, help="How many pods. Default: as many as the object says."),
]


def register(app: typer.Typer) -> None:
    app.command("whatif", short_help="Say where pods would go.")(whatif)
    app.command("what-if", hidden=True)(whatif)


def whatif(
    filename: _File,
    replicas: _Replicas = None,
    extender: ExtenderOption = "",
    directory: DirectoryOption = Path("run"),
    output: OutputOption = Output.TABLE,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
) -> None:
    """Say where pods would go if they came now, one after the other, without creating any.

    Exits 0 if all of them fit, 1 if not, 2 if the file is no such object, 3 if the extender can't be reached.
    """
    manifest = read_manifest(_read(filename))
    count = _count(manifest, replicas)
    endpoint = find_endpoint("scheduler_extender", extender, directory, os.environ)
    from gpuloom.clients.extender import what_if  # noqa: PLC0415 - brings gRPC along

    forecast = ask(endpoint, lambda channel: what_if(channel, manifest.pod_json, count, timeout))
    show(output, forecast, lambda: forecast_lines(manifest.name, forecast))
    raise typer.Exit(exits.FINE if is_fine(forecast) else exits.NO)


def is_fine(forecast: Forecast) -> bool:
    """Whether nothing stands in the way of the pods, as far as we have a say."""
    return not forecast.problem and (not forecast.request or len(forecast.placed) == forecast.replicas)


def forecast_lines(name: str, forecast: Forecast) -> Iterator[str]:
    if forecast.problem:
        yield f"{name}: no node may have it"
        yield f"problem: {forecast.problem}"
    elif not forecast.request:
        yield f"{name}: asks for no GPU that GPULoom manages"
    else:
        yield f"{name}: {len(forecast.placed)} of {forecast.replicas} would fit"
        yield f"asks for {forecast.request}"
        yield from _placed_lines(forecast.placed)
        if forecast.judgement is not None:
            yield ""
            yield f"the next one fits on none of {forecast.judgement.node_count} nodes"
            yield from judgement_lines(forecast.judgement)
    if forecast.note:
        yield ""
        yield forecast.note


def _placed_lines(placed: tuple[Offer, ...]) -> Iterator[str]:
    if not placed:
        return
    yield ""
    if len(placed) == 1:
        yield from offer_lines(placed)
        return
    by_node: dict[str, list[Offer]] = defaultdict(list)
    for offer in placed:
        by_node[offer.node_name].append(offer)
    rows = [("NODE", "PODS", "DEVICES")]
    rows += [
        (name, str(len(offers)), _counted(device_texts(offer.devices) for offer in offers))
        for name, offers in by_node.items()
    ]
    yield from table_lines(rows)


def _counted(texts: Iterable[str]) -> str:
    """Equal ones once, with their number."""
    return "; ".join(f"{count} x {text}" if count > 1 else text for text, count in Counter(texts).items())


def _count(manifest: Manifest, replicas: int | None) -> int:
    count = manifest.replicas if replicas is None else replicas
    if not 1 <= count <= MAX_REPLICAS:
        raise InvalidRequestError(
            f"{manifest.name} has {count} replicas; name 1 to {MAX_REPLICAS} with --replicas"
        )
    return count


def _read(filename: str) -> bytes:
    """One byte more than allowed tells that there is too much."""
    if filename == STDIN:
        return sys.stdin.buffer.read(MAX_BYTES + 1)
    try:
        with Path(filename).open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InvalidRequestError(exits.one_line(error)) from None
