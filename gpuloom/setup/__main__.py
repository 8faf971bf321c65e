"""`python -m gpuloom.setup`: the jobs of the charts. Exit codes: 0 done, 1 not done, 2 wrong options."""

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Sequence

from gpuloom.errors import GpuloomError
from gpuloom.kube.access import load_access
from gpuloom.kube.client import KubeClient
from gpuloom.kube.objects import ObjectKey
from gpuloom.rpc.identity import checked_service_name
from gpuloom.runtime.clock import Clock, SystemClock
from gpuloom.runtime.logs import LogFormat, LogLevel, configure_logging
from gpuloom.setup.certificates import Order
from gpuloom.setup.cluster import Secrets, apply_definitions, write_certificates

_log = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    configure_logging("setup", LogLevel.INFO, LogFormat.AUTO, sys.stdout)
    try:
        asyncio.run(_run(options, SystemClock()))
    except (GpuloomError, OSError) as error:
        _log.error("not done", extra={"reason": str(error)})
        return 1
    return 0


async def _run(options: argparse.Namespace, clock: Clock) -> None:
    async with KubeClient(load_access(None, os.environ), clock) as client:
        if options.job == "definitions":
            await apply_definitions(client)
            return
        order = Order(clock.now(), options.days, options.rotate_authority)
        await write_certificates(client, Secrets(options.authority, dict(options.secret)), order)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m gpuloom.setup", description="Set a cluster up.")
    jobs = parser.add_subparsers(dest="job", required=True)
    jobs.add_parser("definitions", help="apply the definitions of custom resources of this version")
    certificates = jobs.add_parser("certificates", help="make and renew certificates in Secrets")
    certificates.add_argument("--authority", type=_key, required=True, metavar="NAMESPACE/NAME")
    certificates.add_argument(
        "--secret", type=_service_key, action="append", default=[], metavar="IDENTITY=NAMESPACE/NAME"
    )
    certificates.add_argument("--days", type=int, default=90, help="how long certificates are good for")
    certificates.add_argument(
        "--rotate-authority", action="store_true", help="start to replace the authority now"
    )
    return parser


def _key(text: str) -> ObjectKey:
    namespace, slash, name = text.partition("/")
    if not slash or not namespace or not name:
        raise argparse.ArgumentTypeError(f"must be NAMESPACE/NAME, not {text!r}")
    return namespace, name


def _service_key(text: str) -> tuple[str, ObjectKey]:
    identity, _, key = text.partition("=")
    try:
        return checked_service_name(identity), _key(key)
    except GpuloomError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


if __name__ == "__main__":
    sys.exit(main())
