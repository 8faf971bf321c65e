"""A simulated part as a process: logs to stderr, ends on SIGTERM or Ctrl-C, says a mistake in one line."""

import argparse
import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

from gpuloom.errors import GpuloomError
from gpuloom.kube.access import KubeAccess, access_from_kubeconfig
from gpuloom.runtime.clock import Clock
from gpuloom.runtime.logs import LogFormat, LogLevel, configure_logging
from gpuloom.sim.duration import parse_duration_s

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2


class CommandParser(argparse.ArgumentParser):
    """Says a mistake in one line, without the usage above it."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USAGE, f"{self.prog}: {message}; --help lists the options\n")


def run_command(name: str, main: Callable[[], Coroutine[Any, Any, None]]) -> int:
    """Run until the work ends or a signal ends it; the exit code says which of both was a failure."""
    configure_logging(name, LogLevel.INFO, LogFormat.AUTO, sys.stderr)
    try:
        asyncio.run(_until_signal(main))
    except (GpuloomError, BaseExceptionGroup) as error:
        causes = list(_causes(error))
        if not all(isinstance(cause, GpuloomError) for cause in causes):
            raise
        sys.stderr.write(f"{name}: {causes[0]}\n")
        return EXIT_FAILED
    return EXIT_OK


def add_api_arguments(parser: CommandParser) -> None:
    """How every simulated part is told where the Kubernetes API is; `api_access` reads it."""
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("--api", type=url_argument, help="address of the Kubernetes API, plain HTTP")
    group.add_argument("--kubeconfig", type=Path, metavar="FILE", help="of a real Kubernetes API, instead")


def api_access(options: argparse.Namespace, clock: Clock) -> KubeAccess:
    """Raise KubeAccessError if the kubeconfig can't be used."""
    if options.kubeconfig is not None:
        return access_from_kubeconfig([options.kubeconfig], None, clock)
    return KubeAccess(options.api)


def url_argument(text: str) -> str:
    try:
        parts = urlsplit(text)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise argparse.ArgumentTypeError(f"{text!r} is not an address; write e.g. http://127.0.0.1:8001")
    return text.rstrip("/")


def duration_argument(text: str) -> float:
    try:
        return parse_duration_s(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


async def _until_signal(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    work = asyncio.ensure_future(main())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, work.cancel)
    try:
        await work
    except asyncio.CancelledError:
        if not work.cancelled():
            raise


def _causes(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            yield from _causes(part)
    else:
        yield error
