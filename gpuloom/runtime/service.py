"""The one way to run a service: options, configuration, logging, signals, then its life to the exit code.

    run_service("discovery", DiscoveryConfig, build)

Exit codes: 0 stopped as asked, 1 could not start or a loop died, 2 wrong options or configuration,
130 a second signal.
"""

import asyncio
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import NoReturn, Protocol, TypeVar

import uvloop
from prometheus_client import disable_created_metrics

from gpuloom.errors import GpuloomError
from gpuloom.runtime.app import App
from gpuloom.runtime.clock import SystemClock
from gpuloom.runtime.config import ConfigError, Dataclass, describe, load_config, render
from gpuloom.runtime.lifecycle import CLOSE_TIME_S, EXIT_FAILED, EXIT_OK, Lifecycle
from gpuloom.runtime.logs import configure_logging
from gpuloom.runtime.metrics import new_registry, package_version
from gpuloom.runtime.settings import HttpConfig, LogConfig
from gpuloom.runtime.signals import ExitTimer, stop_on_signals

EXIT_USAGE = 2
# What the interpreter itself may need to end, on top of the bounded steps of a stop.
EXIT_MARGIN_S = 0.3
HELP_OPTIONS = ("--help", "-h")
OPTIONS = (*HELP_OPTIONS, "--print-config", "--version")

log = logging.getLogger(__name__)


class ServiceConfig(Dataclass, Protocol):
    """What the configuration of every service has."""

    @property
    def log(self) -> LogConfig: ...

    @property
    def http(self) -> HttpConfig: ...


C = TypeVar("C", bound=ServiceConfig)


def run_service(
    name: str,
    config_type: type[C],
    build: Callable[[App, C], Awaitable[None]],
    argv: Sequence[str] | None = None,
) -> NoReturn:
    """Run the service until it is told to stop or a loop of it dies, and exit."""
    arguments = sys.argv[1:] if argv is None else argv
    unknown = [argument for argument in arguments if argument not in OPTIONS]
    if unknown:
        _complain(name, *(f"unknown option {argument!r}, see --help" for argument in unknown))
        sys.exit(EXIT_USAGE)
    if any(option in arguments for option in HELP_OPTIONS):
        _say(_help(name, config_type))
        sys.exit(EXIT_OK)
    if "--version" in arguments:
        _say(f"{name} {package_version()}")
        sys.exit(EXIT_OK)
    try:
        config = load_config(config_type, os.environ)
    except ConfigError as error:
        _complain(name, *error.problems)
        sys.exit(EXIT_USAGE)
    if "--print-config" in arguments:
        _say(render(config))
        sys.exit(EXIT_OK)
    configure_logging(name, config.log.level, config.log.format, sys.stdout)
    # Without them a histogram has one series less per label set, and names are exactly as documented.
    disable_created_metrics()  # type: ignore[no-untyped-call]
    sys.exit(uvloop.run(_serve(name, config, build)))


async def _serve(name: str, config: C, build: Callable[[App, C], Awaitable[None]]) -> int:
    app = App(name, SystemClock(), new_registry(name))
    stop = asyncio.Event()
    timer = ExitTimer(name, config.http.drain_timeout_s + CLOSE_TIME_S + EXIT_MARGIN_S)
    stop_on_signals(name, stop, timer.start)

    async def build_app() -> None:
        await build(app, config)

    log.info("starting", extra={"version": package_version()})
    try:
        code = await Lifecycle(app, build_app, config.http, stop, timer.start).run()
    except (GpuloomError, OSError) as error:
        _complain(name, f"cannot start: {_reason(error)}")
        code = EXIT_FAILED
    except asyncio.CancelledError:
        # Nobody cancels the main task but a task group among the contexts, one of whose tasks failed. Its
        # error was logged when the group closed.
        log.critical("a context failed, so the service ends")
        code = EXIT_FAILED
    except Exception:
        log.critical("cannot start", exc_info=True)
        code = EXIT_FAILED
    log.info("stopped", extra={"exit_code": code})
    return code


def _help(name: str, config_type: type[ServiceConfig]) -> str:
    return (
        f"Usage: {name} [--help | --print-config | --version]\n\n"
        "  --help          show this text\n"
        "  --print-config  show the configuration that the environment makes, without secrets\n"
        "  --version       show the version\n\n"
        f"Environment variables:\n{describe(config_type)}"
    )


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        about = f": {error.filename}" if error.filename is not None else ""
        return f"{error.strerror}{about}"
    return str(error) or type(error).__name__


def _complain(name: str, *problems: str) -> None:
    for problem in problems:
        sys.stderr.write(f"{name}: {' '.join(problem.split())}\n")
    sys.stderr.flush()


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
