"""Who a certificate belongs to, and what it must say.

A caller is the one URI `spiffe://gpuloom/<service>` of its certificate; a server proves itself by the DNS
name `<service>.gpuloom`, whatever address it was reached by. Decides nothing about trust in the issuer:
TLS has done that before anything here runs.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Protocol

from gpuloom.errors import InvalidRequestError, NotAllowedError

_URI_PREFIX = "spiffe://gpuloom/"
_SERVICE_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")


class UnauthenticatedError(NotAllowedError):
    """The caller's certificate does not say who the caller is."""


def identity_uri(service: str) -> str:
    """The URI by which a caller's certificate names its service."""
    return _URI_PREFIX + checked_service_name(service)


def server_name(service: str) -> str:
    """The DNS name a server's certificate must hold. DNS labels have no underscores."""
    return checked_service_name(service).replace("_", "-") + ".gpuloom"


def checked_service_name(service: str) -> str:
    if not _SERVICE_NAME.fullmatch(service):
        raise InvalidRequestError(
            f"{service!r} is no service name: use lower-case letters, digits and underscores, a letter first"
        )
    return service


def identity_from_auth_context(auth_context: Mapping[str, Iterable[bytes]]) -> str:
    """The caller of an RPC. Only real URI names count: a DNS name that reads like one proves nothing."""
    return identity_from_uris(uri.decode(errors="replace") for uri in auth_context.get("peer_uri", ()))


class AuthContext(Protocol):
    """What gRPC gives a handler of the connection."""

    def auth_context(self) -> Mapping[str, Iterable[bytes]]: ...


def caller_of(context: AuthContext) -> str:
    """Who calls this RPC, which was admitted already; empty where there is no TLS."""
    names = context.auth_context()
    return identity_from_auth_context(names) if names.get("peer_uri") else ""


def identity_from_peer_certificate(certificate: Mapping[str, object]) -> str:
    """The caller of an HTTPS request, from `ssl_object.getpeercert()`."""
    names = certificate.get("subjectAltName", ())
    if not isinstance(names, tuple):
        raise UnauthenticatedError("the certificate has no readable names")
    return identity_from_uris(str(value) for kind, value in names if kind == "URI")


def identity_from_uris(uris: Iterable[str]) -> str:
    ours = [uri.removeprefix(_URI_PREFIX) for uri in uris if uri.startswith(_URI_PREFIX)]
    if len(ours) != 1 or not _SERVICE_NAME.fullmatch(ours[0]):
        raise UnauthenticatedError(f"the certificate must hold exactly one URI {_URI_PREFIX}<service>")
    return ours[0]


READER, READS_AS = "client", "cli"
"""Programs of users: one certificate, which may read whatever the command line may, and change nothing."""


def authorized_as(caller: str, *, reads: bool) -> str:
    """In whose name a caller is let in."""
    return READS_AS if caller == READER and reads else caller


def authorize(caller: str, allowed: frozenset[str] | None, method: str) -> None:
    """Raise NotAllowedError unless the caller is listed. None lists every authenticated caller."""
    if allowed is not None and caller not in allowed:
        raise NotAllowedError(f"{caller} may not call {method}")
