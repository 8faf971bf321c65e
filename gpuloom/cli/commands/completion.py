"""`gpuloom completion`: the script by which a shell completes our commands. Only prints it."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated

import typer

PROGRAMS = ("gpuloom", "gpu-autoscaler")


class Shell(StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


_Shell = Annotated[Shell, typer.Argument(help="bash, zsh or fish.")]


def register(app: typer.Typer) -> None:
    app.command("completion", short_help="Print the completion script of a shell.")(completion)


def completion(shell: _Shell) -> None:
    """Print the script by which a shell completes gpuloom and gpu-autoscaler.

    For bash: source <(gpuloom completion bash). For fish: gpuloom completion fish | source.
    """
    for program in PROGRAMS:
        typer.echo(completion_script(program, shell))


def completion_script(program: str, shell: Shell) -> str:
    from typer._completion_shared import get_completion_script  # noqa: PLC0415 - the only door to it

    variable = completion_variable(program)
    return str(get_completion_script(prog_name=program, complete_var=variable, shell=shell.value))


def completion_variable(program: str) -> str:
    """By which the script asks what could come next."""
    return f"_{program.upper().replace('-', '_')}_COMPLETE"


def question_of_a_shell(environ: Mapping[str, str]) -> str | None:
    """The variable by which a script of ours asks, ready to be answered; None if none does."""
    asked = next((one for one in map(completion_variable, PROGRAMS) if one in environ), None)
    if asked is not None:
        # Without it typer knows no shell: we let it add no options of its own, which would do this.
        from typer._completion_classes import completion_init  # noqa: PLC0415 - the only door to it

        completion_init()
    return asked
