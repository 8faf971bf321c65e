"""`python -m gpuloom.sim.kubeapi`: the simulated API server as a process of its own."""

import argparse
import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from gpuloom.catalog.manifests import definitions, priority_classes
from gpuloom.errors import GpuloomError
from gpuloom.sim.kubeapi.server import SimKubeApi
from gpuloom.sim.kubeapi.storage.database import Change
from gpuloom.sim.kubeapi.storage.journal import Journal, StateError


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s")
    try:
        asyncio.run(_run(options))
    except (GpuloomError, OSError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        sys.stderr.write(f"kubeapi: {reason}\n")
        return 1
    return 0


async def _run(options: argparse.Namespace) -> None:
    token = None if options.token_file is None else _read_token(options.token_file)
    journal, changes = (None, []) if options.state is None else Journal.open(options.state)
    stopped = _stop_on_signals()
    async with _server(options, token, journal, changes) as api:
        sys.stdout.write(f"listening on {api.url}\n")
        sys.stdout.flush()
        running = asyncio.create_task(api.run())
        stopping = asyncio.create_task(stopped.wait())
        done, _ = await asyncio.wait([running, stopping], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if running in done:
            await running
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


def _server(
    options: argparse.Namespace, token: str | None, journal: Journal | None, changes: list[Change]
) -> SimKubeApi:
    try:
        return SimKubeApi(
            host=options.host,
            port=options.port,
            token=token,
            journal=journal,
            changes=changes,
            preinstalled=(*definitions(), *priority_classes()),
        )
    except GpuloomError as error:
        if journal is not None:
            journal.close()
        raise StateError(f"the state file {options.state} can't be restored: {error}") from error


def _stop_on_signals() -> asyncio.Event:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    return stopped


def _read_token(path: Path) -> str:
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise StateError(f"can't read the token file {path}: {error}") from error
    if not token:
        raise StateError(f"the token file {path} is empty")
    return token


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m gpuloom.sim.kubeapi", description="Serve a simulated Kubernetes API."
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=_port, required=True, help="port to listen on; 0 picks a free one")
    parser.add_argument("--token-file", type=Path, help="file with the bearer token that clients must send")
    parser.add_argument(
        "--state", type=Path, help="file to keep all objects in; without it they end with the process"
    )
    return parser


def _port(text: str) -> int:
    if not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port (0 to 65535)")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
