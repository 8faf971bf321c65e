"""Which certificates are made anew, and from which authority. Pure: contents of Secrets in, contents out.

A certificate is renewed when a third of its time is left. An authority is replaced in two steps, so that
nobody ever meets a certificate that it can't check: first everybody is told to trust its successor as well,
and only a later run, when all have heard, lets the successor sign. A Secret that holds something else is
made anew.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import Encoding

from gpuloom.rpc.authority import Pair, issue, new_authority, read_pair
from gpuloom.rpc.identity import identity_uri

CERTIFICATE, KEY, TRUSTED = "tls.crt", "tls.key", "ca.crt"
NEXT_CERTIFICATE, NEXT_KEY = "next.crt", "next.key"
AUTHORITY_NAME = "GPULoom CA"
HEARD_BY_ALL = timedelta(hours=1)
"""A kubelet shows a changed Secret to its pods within two minutes."""
_LEFT_AT_RENEWAL = 1 / 3

Content = Mapping[str, bytes]
"""Of a Secret."""


@dataclass(frozen=True, slots=True)
class Order:
    """`rotate` replaces the authority although it has time left.

    `hosts`: DNS names by identity, for callers that know a service by its address alone, as the API server.
    """

    now: datetime
    days: int
    rotate: bool = False
    hosts: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Renewal:
    """What the Secrets shall hold; those that stay as they are are not named."""

    authority: Content | None
    services: Mapping[str, Content]


@dataclass(frozen=True, slots=True)
class _Authority:
    current: Pair
    successor: Pair | None
    trusted: tuple[x509.Certificate, ...]

    def content(self) -> Content:
        content = {CERTIFICATE: self.current.certificate_pem(), KEY: self.current.key_pem()}
        if self.successor is not None:
            content |= {
                NEXT_CERTIFICATE: self.successor.certificate_pem(),
                NEXT_KEY: self.successor.key_pem(),
            }
        return content | {TRUSTED: self.bundle()}

    def bundle(self) -> bytes:
        return b"".join(_pem(certificate) for certificate in self.trusted)


def renew(authority: Content, services: Mapping[str, Content], order: Order) -> Renewal:
    """`services` are the Secrets by identity; an empty one is not there yet."""
    kept = _read_authority(authority, order.now)
    used = _advanced(kept, order) if kept is not None else _first(order.now)
    written = {
        identity: content
        for identity, held in services.items()
        if (content := _service_content(identity, held, used, order)) != dict(held)
    }
    content = used.content()
    return Renewal(None if content == dict(authority) else content, written)


def _first(now: datetime) -> _Authority:
    pair = new_authority(AUTHORITY_NAME, now)
    return _Authority(pair, None, (pair.certificate,))


def _read_authority(content: Content, now: datetime) -> _Authority | None:
    """None: there is none, or it is over."""
    current = read_pair(content.get(CERTIFICATE, b""), content.get(KEY, b""))
    if current is None or current.certificate.not_valid_after_utc <= now:
        return None
    successor = read_pair(content.get(NEXT_CERTIFICATE, b""), content.get(NEXT_KEY, b""))
    listed = _certificates(content.get(TRUSTED, b""))
    told = dict.fromkeys((current.certificate, *((successor.certificate,) if successor else ()), *listed))
    return _Authority(current, successor, tuple(one for one in told if one.not_valid_after_utc > now))


def _advanced(authority: _Authority, order: Order) -> _Authority:
    """The next step of a replacement, if one is due."""
    successor = authority.successor
    if successor is not None:
        if successor.certificate.not_valid_before_utc + HEARD_BY_ALL > order.now:
            return authority
        return _Authority(successor, None, authority.trusted)
    if not order.rotate and not _is_due(authority.current.certificate, order.now):
        return authority
    successor = new_authority(AUTHORITY_NAME, order.now)
    return _Authority(authority.current, successor, (*authority.trusted, successor.certificate))


def _service_content(identity: str, held: Content, authority: _Authority, order: Order) -> Content:
    pair = read_pair(held.get(CERTIFICATE, b""), held.get(KEY, b""))
    if pair is None or not _is_good(pair.certificate, identity, authority, order):
        hosts = order.hosts.get(identity, ())
        pair = issue(authority.current, identity, order.now, order.days, hosts)
    return {
        CERTIFICATE: pair.certificate_pem(),
        KEY: pair.key_pem(),
        TRUSTED: authority.bundle(),
    }


def _is_good(certificate: x509.Certificate, identity: str, authority: _Authority, order: Order) -> bool:
    if _is_due(certificate, order.now):
        return False
    try:
        certificate.verify_directly_issued_by(authority.current.certificate)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
        return False
    is_named = identity_uri(identity) in names.get_values_for_type(x509.UniformResourceIdentifier)
    return is_named and set(order.hosts.get(identity, ())) <= set(names.get_values_for_type(x509.DNSName))


def _is_due(certificate: x509.Certificate, now: datetime) -> bool:
    start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return end - now < (end - start) * _LEFT_AT_RENEWAL


def _certificates(pem: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError:
        return []


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.PEM)
