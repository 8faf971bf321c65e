"""`gpuloom certs`: certificates for development. Only asks and tells; `rpc/dev_ca.py` makes them."""

from pathlib import Path
from typing import Annotated

import typer

from gpuloom.cli.output import exits
from gpuloom.errors import GpuloomError
from gpuloom.roster import ROSTER
from gpuloom.rpc.dev_ca import CertificateOrder, issue_development_certificates
from gpuloom.rpc.tls import TlsFiles
from gpuloom.runtime.clock import SystemClock

_ServiceOption = Annotated[
    list[str] | None,
    typer.Option(
        "--service", help=f"A service to certify; repeatable. Default: {', '.join(ROSTER.identities)}."
    ),
]
_HostOption = Annotated[
    list[str] | None,
    typer.Option("--host", help="A further DNS name or address the certificates shall hold; repeatable."),
]


def register(app: typer.Typer) -> None:
    app.command("certs", short_help="Make development certificates.")(certs)


def certs(
    out: Annotated[Path, typer.Option("--out", help="The folder to write to; made if it is not there.")],
    service: _ServiceOption = None,
    days: Annotated[int, typer.Option(min=1, help="How long the certificates are good for.")] = 30,
    host: _HostOption = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that were not made here.")] = False,
) -> None:
    """Make a development CA and one certificate per service. Run again to renew; the CA stays."""
    order = CertificateOrder(tuple(service or ROSTER.identities), days, tuple(host or ()))
    try:
        made = issue_development_certificates(out, order, SystemClock(), force)
    except (GpuloomError, OSError) as error:
        typer.echo(f"gpuloom certs: {exits.one_line(error)}", err=True)
        raise typer.Exit(exits.NO) from error
    typer.echo(_summary(out, made, days))


def _summary(out: Path, made: dict[str, TlsFiles], days: int) -> str:
    service, files = next(iter(made.items()))
    return "\n".join(
        [
            f"Certificates good for {days} days in {out}: {', '.join(made)}",
            "Keep ca.key to yourself: whoever has it can be any service.",
            f"A process uses them by its environment, e.g. {service}:",
            f"  GPULOOM_TLS_CERT_FILE={files.cert_file}",
            f"  GPULOOM_TLS_KEY_FILE={files.key_file}",
            f"  GPULOOM_TLS_CA_FILE={files.ca_file}",
        ]
    )
