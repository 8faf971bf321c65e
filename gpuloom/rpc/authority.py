"""A certificate authority, and what the certificates of our services say. Values in, values out.

Decides names, lifetimes and purposes. Where keys are kept is others' to say.
"""

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gpuloom.errors import InvalidRequestError
from gpuloom.rpc.identity import identity_uri, server_name

AUTHORITY_LIFETIME = timedelta(days=3650)
_CLOCK_SKEW = timedelta(minutes=5)
_DNS_NAME = re.compile(r"(\*\.)?([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)*[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate with its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    def certificate_pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def key_pem(self) -> bytes:
        return self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )


@dataclass(frozen=True, slots=True)
class Lifetime:
    start: datetime
    end: datetime


def read_pair(certificate_pem: bytes, key_pem: bytes) -> Pair | None:
    """None if that is no certificate with its key."""
    try:
        certificate = x509.load_pem_x509_certificate(certificate_pem)
        key = serialization.load_pem_private_key(key_pem, password=None)
    except (ValueError, TypeError):
        return None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or certificate.public_key() != key.public_key():
        return None
    return Pair(certificate, key)


def common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def new_authority(name: str, now: datetime) -> Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    lifetime = Lifetime(now - _CLOCK_SKEW, now + AUTHORITY_LIFETIME)
    certificate = (
        _draft(common_name(name), common_name(name), key, lifetime)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    return Pair(certificate, key)


def issue(authority: Pair, service: str, now: datetime, days: int, hosts: Sequence[str] = ()) -> Pair:
    """A certificate of a service, which ends no later than its authority. `hosts` are further names."""
    key = ec.generate_private_key(ec.SECP256R1())
    end = min(now + timedelta(days=days), authority.certificate.not_valid_after_utc)
    names: list[x509.GeneralName] = [
        x509.UniformResourceIdentifier(identity_uri(service)),
        x509.DNSName(server_name(service)),
        *(host_name(host) for host in dict.fromkeys(hosts)),
    ]
    purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    issuer_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    certificate = (
        _draft(common_name(service), authority.certificate.subject, key, Lifetime(now - _CLOCK_SKEW, end))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        .add_extension(issuer_id, critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(authority.key, hashes.SHA256())
    )
    return Pair(certificate, key)


def host_name(host: str) -> x509.GeneralName:
    """Raise InvalidRequestError if it is neither a DNS name nor an address, or one of our own names."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not _DNS_NAME.fullmatch(host):
        raise InvalidRequestError(f"{host!r} is neither a DNS name nor an address")
    if host.endswith(".gpuloom"):
        raise InvalidRequestError(f"{host!r} would make every service look like that one")
    return x509.DNSName(host)


def _draft(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, lifetime: Lifetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(lifetime.start)
        .not_valid_after(lifetime.end)
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
