"""A certificate authority for development: one CA and one certificate per service, as files.

Decides what such certificates say. It is no way to run a production mesh: the CA's key lies beside what it
signed.
"""

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from gpuloom.errors import ConflictError, InvalidRequestError
from gpuloom.roster import ROSTER
from gpuloom.rpc.authority import Pair, common_name, host_name, issue, new_authority, read_pair
from gpuloom.rpc.identity import checked_service_name
from gpuloom.rpc.tls import TlsFiles
from gpuloom.runtime.clock import Clock

_CA_NAME = "GPULoom development CA"
_LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class CertificateOrder:
    """What to make. `hosts` are further DNS names or addresses that the certificates shall be good for."""

    services: Sequence[str] = ROSTER.identities
    days: int = 30
    hosts: Sequence[str] = ()


def tls_files(folder: Path, service: str) -> TlsFiles:
    """Where the files of a service are in a folder made by `issue_development_certificates`."""
    return TlsFiles(folder / f"{service}.crt", folder / f"{service}.key", folder / "ca.crt")


def issue_development_certificates(
    folder: Path, order: CertificateOrder, clock: Clock, force: bool = False
) -> dict[str, TlsFiles]:
    """Make, or make anew, a certificate per service. A CA that is there already stays.

    Raise ConflictError, before anything is written, if the folder holds files of these names that this CA did
    not make; `force` replaces them.
    """
    _check(order)
    now = clock.now()
    authority = _existing_authority(folder, now, force)
    if not force:
        _refuse_foreign_files(folder, order, authority)
    folder.mkdir(parents=True, exist_ok=True)
    if authority is None:
        authority = new_authority(_CA_NAME, now)
        _write_pair(folder, "ca", authority)
    for service in order.services:
        pair = issue(authority, service, now, order.days, (*_LOCAL_HOSTS, *order.hosts))
        _write_pair(folder, service, pair)
    return {service: tls_files(folder, service) for service in order.services}


def _check(order: CertificateOrder) -> None:
    if order.days < 1:
        raise InvalidRequestError(f"certificates must be good for at least 1 day, not {order.days}")
    for service in order.services:
        if checked_service_name(service) == "ca":
            raise InvalidRequestError("no service can be called ca: the authority's files have that name")
    for host in order.hosts:
        host_name(host)


def _existing_authority(folder: Path, now: datetime, force: bool) -> Pair | None:
    """The CA of the folder. None: there is none, it is over, or force may replace what is there instead."""
    certificate_file, key_file = folder / "ca.crt", folder / "ca.key"
    if not certificate_file.exists() and not key_file.exists():
        return None
    authority = _load_authority(certificate_file, key_file)
    if authority is not None:
        return authority if authority.certificate.not_valid_after_utc > now else None
    if force:
        return None
    raise ConflictError(
        f"{certificate_file} and {key_file} are not a development CA made here; "
        "choose another folder, or replace them with --force"
    )


def _load_authority(certificate_file: Path, key_file: Path) -> Pair | None:
    try:
        pair = read_pair(certificate_file.read_bytes(), key_file.read_bytes())
    except OSError:
        return None
    return pair if pair is not None and pair.certificate.subject == common_name(_CA_NAME) else None


def _refuse_foreign_files(folder: Path, order: CertificateOrder, authority: Pair | None) -> None:
    expired = authority is None and (folder / "ca.crt").exists()
    for service in order.services:
        files = tls_files(folder, service)
        if not files.cert_file.exists() and not files.key_file.exists():
            continue
        if not expired and not _is_made_by(authority, files.cert_file):
            raise ConflictError(
                f"{files.cert_file} or its key was not made by the CA in {folder}; "
                "choose another folder, or replace it with --force"
            )


def _is_made_by(authority: Pair | None, certificate_file: Path) -> bool:
    if authority is None:
        return False
    try:
        certificate = x509.load_pem_x509_certificate(certificate_file.read_bytes())
        certificate.verify_directly_issued_by(authority.certificate)
    except (OSError, ValueError, TypeError, InvalidSignature):
        return False
    return True


def _write_pair(folder: Path, name: str, pair: Pair) -> None:
    _write(folder / f"{name}.key", pair.key_pem(), 0o600)
    _write(folder / f"{name}.crt", pair.certificate_pem(), 0o644)


def _write(path: Path, content: bytes, mode: int) -> None:
    """Whole or not at all, so that a process that follows the file never reads half of it."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(temporary).chmod(mode)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
