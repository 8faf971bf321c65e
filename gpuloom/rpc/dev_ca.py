"""A certificate authority for development: one CA and one certificate per service, as files.

Decides what such certificates say. It is no way to run a production mesh: the CA's key lies beside what it
signed.
"""

import ipaddress
import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gpuloom.errors import ConflictError, InvalidRequestError
from gpuloom.roster import ROSTER
from gpuloom.rpc.identity import checked_service_name, identity_uri, server_name
from gpuloom.rpc.tls import TlsFiles
from gpuloom.runtime.clock import Clock

_CA_NAME = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "GPULoom development CA")])
_CA_LIFETIME = timedelta(days=3650)
_CLOCK_SKEW = timedelta(minutes=5)
_DNS_NAME = re.compile(r"(\*\.)?([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)*[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class CertificateOrder:
    """What to make. `hosts` are further DNS names or addresses that the certificates shall be good for."""

    services: Sequence[str] = ROSTER.identities
    days: int = 30
    hosts: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class _Authority:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


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
        authority = _new_authority(now)
        _write_pair(folder, "ca", authority.certificate, authority.key)
    for service in order.services:
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _issue(authority, key, service, _validity(now, order, authority), order.hosts)
        _write_pair(folder, service, certificate, key)
    return {service: tls_files(folder, service) for service in order.services}


def _check(order: CertificateOrder) -> None:
    if order.days < 1:
        raise InvalidRequestError(f"certificates must be good for at least 1 day, not {order.days}")
    for service in order.services:
        if checked_service_name(service) == "ca":
            raise InvalidRequestError("no service can be called ca: the authority's files have that name")
    for host in order.hosts:
        _host_name(host)


def _existing_authority(folder: Path, now: datetime, force: bool) -> _Authority | None:
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


def _load_authority(certificate_file: Path, key_file: Path) -> _Authority | None:
    try:
        certificate = x509.load_pem_x509_certificate(certificate_file.read_bytes())
        key = serialization.load_pem_private_key(key_file.read_bytes(), password=None)
    except (OSError, ValueError, TypeError):
        return None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or certificate.public_key() != key.public_key():
        return None
    return _Authority(certificate, key) if certificate.subject == _CA_NAME else None


def _refuse_foreign_files(folder: Path, order: CertificateOrder, authority: _Authority | None) -> None:
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


def _is_made_by(authority: _Authority | None, certificate_file: Path) -> bool:
    if authority is None:
        return False
    try:
        certificate = x509.load_pem_x509_certificate(certificate_file.read_bytes())
        certificate.verify_directly_issued_by(authority.certificate)
    except (OSError, ValueError, TypeError, InvalidSignature):
        return False
    return True


def _new_authority(now: datetime) -> _Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        _draft(_CA_NAME, _CA_NAME, key, (now - _CLOCK_SKEW, now + _CA_LIFETIME))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    return _Authority(certificate, key)


def _validity(now: datetime, order: CertificateOrder, authority: _Authority) -> tuple[datetime, datetime]:
    end = now + timedelta(days=order.days)
    return now - _CLOCK_SKEW, min(end, authority.certificate.not_valid_after_utc)


def _issue(
    authority: _Authority,
    key: ec.EllipticCurvePrivateKey,
    service: str,
    validity: tuple[datetime, datetime],
    hosts: Sequence[str],
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, service)])
    names: list[x509.GeneralName] = [
        x509.UniformResourceIdentifier(identity_uri(service)),
        x509.DNSName(server_name(service)),
        *(_host_name(host) for host in dict.fromkeys((*_LOCAL_HOSTS, *hosts))),
    ]
    purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    issuer_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    return (
        _draft(subject, authority.certificate.subject, key, validity)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        .add_extension(issuer_id, critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(authority.key, hashes.SHA256())
    )


def _draft(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    validity: tuple[datetime, datetime],
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(validity[0])
        .not_valid_after(validity[1])
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _key_usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _host_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not _DNS_NAME.fullmatch(host):
        raise InvalidRequestError(f"{host!r} is neither a DNS name nor an address")
    if host.endswith(".gpuloom"):
        raise InvalidRequestError(f"{host!r} would make every service look like that one")
    return x509.DNSName(host)


def _write_pair(
    folder: Path, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey
) -> None:
    key_bytes = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    _write(folder / f"{name}.key", key_bytes, 0o600)
    _write(folder / f"{name}.crt", certificate.public_bytes(serialization.Encoding.PEM), 0o644)


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
