"""Certificate authorities of a control plane, and the files that its processes and users show.

Decides what such certificates say: a user is its common name, its groups are organizations. They are good
for a day, because a control plane of a test is not.
"""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_LIFETIME = timedelta(days=1)
_CLOCK_SKEW = timedelta(minutes=5)


@dataclass(frozen=True)
class KeyPair:
    """Two PEM files."""

    certificate: Path
    key: Path


@dataclass(frozen=True)
class Identity:
    """Who a certificate is for. With `hosts` it can also prove a server."""

    user: str
    groups: Sequence[str] = ()
    hosts: Sequence[str] = ()


class Authority:
    """Signs certificates into its folder; `certificate` is the file that others trust."""

    def __init__(self, folder: Path, name: str, now: datetime) -> None:
        self._folder = folder
        self._now = now
        self._subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.certificate = folder / f"{name}.crt"
        folder.mkdir(parents=True, exist_ok=True)
        own = (
            self._draft(self._subject, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.certificate.write_bytes(own.public_bytes(serialization.Encoding.PEM))

    def issue(self, file_name: str, identity: Identity) -> KeyPair:
        """A new certificate, in files of that name."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name(
            [
                *(x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in identity.groups),
                x509.NameAttribute(NameOID.COMMON_NAME, identity.user),
            ]
        )
        purposes = [ExtendedKeyUsageOID.CLIENT_AUTH]
        draft = self._draft(subject, key.public_key()).add_extension(
            x509.BasicConstraints(ca=False, path_length=None), critical=True
        )
        if identity.hosts:
            purposes.append(ExtendedKeyUsageOID.SERVER_AUTH)
            names = x509.SubjectAlternativeName([_general_name(host) for host in identity.hosts])
            draft = draft.add_extension(names, critical=False)
        certificate = draft.add_extension(x509.ExtendedKeyUsage(purposes), critical=False).sign(
            self._key, hashes.SHA256()
        )
        pair = KeyPair(self._folder / f"{file_name}.crt", self._folder / f"{file_name}.key")
        pair.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        _write_key(pair.key, key)
        return pair

    def _draft(self, subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        issuer_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._subject)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._now - _CLOCK_SKEW)
            .not_valid_after(self._now + _LIFETIME)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(issuer_id, critical=False)
        )


def make_signing_key(folder: Path, name: str) -> KeyPair:
    """A key pair that signs service account tokens; its "certificate" is the bare public key."""
    key = ec.generate_private_key(ec.SECP256R1())
    pair = KeyPair(folder / f"{name}.pub", folder / f"{name}.key")
    pair.certificate.write_bytes(
        key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    _write_key(pair.key, key)
    return pair


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
