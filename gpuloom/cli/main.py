"""The `gpuloom` command: its subcommands, and how every one of them fails.

An expected failure is one line on stderr and an exit code; a traceback means that we made a mistake.
"""

import asyncio
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from gpuloom.cli.commands import autoscaler, certs, completion, events, mig, optimize, version, workloads
from gpuloom.cli.connection.compose import compose_environment
from gpuloom.cli.connection.forwarding import cluster_environment
from gpuloom.cli.connection.kube import ASK_KUBECTL
from gpuloom.cli.costs import cost, report
from gpuloom.cli.doctor import command as doctor
from gpuloom.cli.nodes import status, top, topology
from gpuloom.cli.output import exits
from gpuloom.cli.run import command as run
from gpuloom.cli.scheduling import explain, holds, plans, scheduler_config, whatif
from gpuloom.errors import DeadlineError, GpuloomError, InvalidRequestError, NotReadyError, UnavailableError
from gpuloom.kube.errors import KubeAccessError
from gpuloom.runtime.config import ConfigError
from gpuloom.runtime.metrics import package_version

PROGRAM = "gpuloom"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit with its code."""
    sys.exit(exit_code_of(list(sys.argv[1:] if arguments is None else arguments)))


def plugin() -> None:
    """As `kubectl gpuloom`: the cluster that kubectl reaches is asked, unless the command needs none."""
    arguments = sys.argv[1:]
    offline = {"--version", "completion", "doctor", "events", "run", "certs", "scheduler-config"}
    asks = bool(arguments) and arguments[0] not in offline and not {"--help", "-h"}.intersection(arguments)
    main(["--kube", *arguments] if asks else arguments)


def exit_code_of(arguments: list[str]) -> int:
    command = typer.main.get_command(build_app())
    asked = completion.question_of_a_shell(os.environ)
    try:
        # Not standalone: then usage errors come here, and are told in one line like all others.
        code = command.main(
            arguments or ["--help"], prog_name=PROGRAM, complete_var=asked, standalone_mode=False
        )
    except typer.TyperException as error:
        return _usage(error)
    except (KeyboardInterrupt, typer.Abort, asyncio.CancelledError):
        return _complain("interrupted", exits.INTERRUPTED)
    except BrokenPipeError:
        # Whoever read our output has enough of it.
        return exits.FINE
    except OSError as error:
        return _complain(error, exits.NO)
    except (GpuloomError, BaseExceptionGroup) as error:
        known = list(_our_errors(error))
        if not known:
            raise
        return _complain(known[0], code_of(known[0]))
    return code if isinstance(code, int) else exits.FINE


def build_app() -> typer.Typer:
    app = typer.Typer(
        name=PROGRAM,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        add_completion=False,
        # Subcommands inherit it.
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(about)
    autoscaler.register(app)
    certs.register(app)
    completion.register(app)
    cost.register(app)
    doctor.register(app)
    events.register(app)
    explain.register(app)
    holds.register(app)
    plans.register(app)
    report.register(app)
    mig.register(app)
    optimize.register(app)
    run.register(app)
    scheduler_config.register(app)
    status.register(app)
    top.register(app)
    topology.register(app)
    version.register(app)
    whatif.register(app)
    workloads.register(app)
    return app


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"{PROGRAM} {package_version()}")
        raise typer.Exit(exits.FINE)


_VersionOption = Annotated[
    bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
]


_Compose = Annotated[
    bool, typer.Option("--compose", help="Ask the mesh that `docker compose up` started in this directory.")
]


_Kube = Annotated[
    bool, typer.Option("--kube", help="Ask the cluster that kubectl reaches, through ports that it forwards.")
]
_KubeContext = Annotated[
    str, typer.Option("--kube-context", help="With --kube: the context that kubectl uses.")
]


def about(
    context: typer.Context,
    version: _VersionOption = False,
    compose: _Compose = False,
    kube: _Kube = False,
    kube_context: _KubeContext = "",
) -> None:
    """GPULoom places GPU work on Kubernetes.

    Exits 0 if all is fine, 1 if the answer is no, 2 for wrong usage, 3 if something can't be reached.
    """
    if compose:
        os.environ.update(context.with_resource(compose_environment()))
    elif kube or kube_context:
        kubectl = ("kubectl", *(("--context", kube_context) if kube_context else ()))
        os.environ.update(context.with_resource(cluster_environment(kubectl)))
        # For commands that ask the Kubernetes API, too.
        os.environ[ASK_KUBECTL] = "1"
        if kube_context:
            os.environ["GPULOOM_KUBE_CONTEXT"] = kube_context


def code_of(error: GpuloomError) -> int:
    # Settings that are missing or wrong are usage too: they stand for options.
    if isinstance(error, InvalidRequestError | ConfigError):
        return exits.USAGE
    if isinstance(error, UnavailableError | DeadlineError | NotReadyError | KubeAccessError):
        return exits.UNREACHABLE
    return exits.NO


def _our_errors(error: BaseException) -> Iterator[GpuloomError]:
    if isinstance(error, GpuloomError):
        yield error
    elif isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            yield from _our_errors(part)


def _usage(error: typer.TyperException) -> int:
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else PROGRAM
    text = error.format_message() if hasattr(error, "format_message") else str(error)
    sys.stderr.write(f"{path}: {exits.one_line(text)} (see {path} --help)\n")
    return exits.USAGE


def _complain(failure: Exception | str, code: int) -> int:
    sys.stderr.write(f"{PROGRAM}: {exits.one_line(failure)}\n")
    return code


if __name__ == "__main__":
    main()
