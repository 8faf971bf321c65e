"""`gpuloom completion`: the script by which a shell completes our commands. Only prints it."""

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

    variable = f"_{program.upper().replace('-', '_')}_COMPLETE"
    return str(get_completion_script(prog_name=program, complete_var=variable, shell=shell.value))
