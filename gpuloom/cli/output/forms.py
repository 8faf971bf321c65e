"""The forms in which a command gives its answer, and how it is given again and again."""

import sys
import time
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Annotated, Any

import orjson
import typer


class Output(StrEnum):
    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"


OutputOption = Annotated[
    Output,
    typer.Option("--output", "-o", help="table, wide (with more columns where there are any), json or yaml."),
]
WatchOption = Annotated[
    bool, typer.Option("--watch", "-w", help="Show it again every two seconds, until Ctrl-C.")
]

WATCH_INTERVAL_S = 2.0
_CLEAR = "\x1b[H\x1b[2J"


def is_document(output: Output) -> bool:
    """Whether the answer is for a program."""
    return output in (Output.JSON, Output.YAML)


def show(output: Output, document: Any, lines: Callable[[], Iterable[str]]) -> None:
    """The answer as a document, or as lines for a person."""
    typer.echo(rendered(output, document, lines))


def rendered(output: Output, document: Any, lines: Callable[[], Iterable[str]]) -> str:
    if not is_document(output):
        return "\n".join(lines())
    encoded = orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS)
    if output is Output.JSON:
        return encoded.decode()
    import yaml  # noqa: PLC0415 - rarely asked for

    # By way of JSON, so that both forms name and round everything alike.
    return str(yaml.safe_dump(orjson.loads(encoded), sort_keys=False, allow_unicode=True)).rstrip()


def follow(find: Callable[[], tuple[Any, Iterable[str]]], output: Output, *, watch: bool) -> None:
    """Show what is found, as a document or as lines; with `watch` find and show it again and again."""

    def answer() -> str:
        document, lines = find()
        return rendered(output, document, lambda: lines)

    repeat(answer, watch, before="---\n" if output is Output.YAML else "")


def repeat(answer: Callable[[], str], watch: bool, before: str = "") -> None:
    """Once, or again and again until interrupted; then `before` stands before each answer.

    On a terminal each answer replaces the one before; a pipe gets them one after the other.
    """
    while True:
        text = answer()
        if not watch:
            typer.echo(text)
            return
        typer.echo(f"{_CLEAR if sys.stdout.isatty() else ''}{before}{text}")
        time.sleep(WATCH_INTERVAL_S)
