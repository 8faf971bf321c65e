"""Certificates from files, for gRPC and for HTTPS, followed as they are replaced on disk.

Decides which pair of certificate and key is in use: the newest one that is whole and fits together. A pair
that is half-written or does not fit never replaces one that works. Never decides who may do what.
"""

import logging
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import grpc

from gpuloom.errors import GpuloomError
from gpuloom.rpc.metrics import ReloadOutcome

_log = logging.getLogger(__name__)

_Signature = tuple[tuple[int, int, int, int] | None, ...]


class TlsError(GpuloomError):
    """A certificate file is missing or can't be used; the text says which one and what to do."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Where a process finds its certificate (PEM, leaf first), its key, and the CA it trusts."""

    cert_file: Path
    key_file: Path
    ca_file: Path


@dataclass(frozen=True, slots=True)
class Certificates:
    """One usable set. The generation grows with every set that is taken into use."""

    generation: int
    certificate_chain: bytes
    private_key: bytes
    trusted_ca: bytes


class CertificateSource:
    """The certificates in use. Looks at the files on every call; safe to use from gRPC's own threads."""

    def __init__(self, files: TlsFiles, count_reload: Callable[[ReloadOutcome], None]) -> None:
        """Raise TlsError if there is no usable set to begin with."""
        self.files = files
        self._count_reload = count_reload
        self._lock = threading.Lock()
        self._seen = _signature(files)
        self._current = _read(files, generation=1)

    def current(self) -> Certificates:
        """The newest usable set; the one in use stays if the files can't be read or don't fit together."""
        with self._lock:
            signature = _signature(self.files)
            if signature != self._seen:
                # Remembered before reading: a file that changes meanwhile is looked at again next time,
                # and a bad pair is reported once, not at every connection.
                self._seen = signature
                self._renew()
            return self._current

    def _renew(self) -> None:
        try:
            self._current = _read(self.files, self._current.generation + 1)
        except TlsError as error:
            self._count_reload("rejected")
            _log.warning("certificate not reloaded, the old one stays in use", extra={"reason": str(error)})
            return
        self._count_reload("loaded")
        _log.info("certificate reloaded", extra={"file": str(self.files.cert_file)})


def server_credentials(source: CertificateSource) -> grpc.ServerCredentials:
    """Mutual TLS. gRPC asks for the certificate at every new connection."""
    offered = source.current()

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        nonlocal offered
        newest = source.current()
        if newest.generation == offered.generation:
            return None
        offered = newest
        return _server_configuration(newest)

    return grpc.dynamic_ssl_server_credentials(
        _server_configuration(offered),
        fetch,  # type: ignore[arg-type]  # None means "no change"; the stubs leave that out
        require_client_authentication=True,
    )


def channel_credentials(certificates: Certificates) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(
        root_certificates=certificates.trusted_ca,
        private_key=certificates.private_key,
        certificate_chain=certificates.certificate_chain,
    )


def server_ssl_context(
    source: CertificateSource,
    require_client_certificate: bool,
    *,
    ask_for_client_certificate: bool = False,
) -> ssl.SSLContext:
    """For an HTTPS server. Each handshake uses the newest files, without a restart.

    Who is asked for a certificate may show none, but not one of another authority.
    """
    asked = ssl.CERT_OPTIONAL if ask_for_client_certificate else ssl.CERT_NONE

    def load() -> ssl.SSLContext:
        context = _ssl_context(source.files, ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = ssl.CERT_REQUIRED if require_client_certificate else asked
        # Callers in Go don't resume sessions; tickets would be a third of what a handshake costs us.
        context.num_tickets = 0
        return context

    generation = source.current().generation
    newest = first = load()

    def renew(connection: ssl.SSLObject, _name: str | None, _first: ssl.SSLContext) -> None:
        nonlocal generation, newest
        current = source.current().generation
        if current != generation:
            try:
                newest, generation = load(), current
            except TlsError as error:
                # The files changed again between two looks at them; the next handshake looks again.
                _log.warning("certificate not reloaded for HTTPS", extra={"reason": str(error)})
        connection.context = newest

    # Python calls this for every ClientHello, with or without a server name in it.
    first.sni_callback = renew
    return first


def client_ssl_context(source: CertificateSource) -> ssl.SSLContext:
    """For an HTTPS client that shows its certificate. As of now: ask again for each new connection pool."""
    source.current()
    return _ssl_context(source.files, ssl.PROTOCOL_TLS_CLIENT)


def _server_configuration(certificates: Certificates) -> grpc.ServerCertificateConfiguration:
    pair = (certificates.private_key, certificates.certificate_chain)
    return grpc.ssl_server_certificate_configuration([pair], root_certificates=certificates.trusted_ca)


def _read(files: TlsFiles, generation: int) -> Certificates:
    before = _signature(files)
    contents = [_read_file(path) for path in (files.cert_file, files.key_file, files.ca_file)]
    _ssl_context(files, ssl.PROTOCOL_TLS_SERVER)
    if _signature(files) != before:
        raise TlsError(f"{files.cert_file} or its key is being replaced right now")
    return Certificates(generation, *contents)


def _ssl_context(files: TlsFiles, protocol: int) -> ssl.SSLContext:
    """Loads the files, which also proves that certificate and key belong together."""
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_verify_locations(cadata=_read_file(files.ca_file).decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise TlsError(f"{files.ca_file} holds no usable CA certificate: {_reason(error)}") from error
    try:
        # Without a password function OpenSSL would ask for one at the terminal.
        context.load_cert_chain(files.cert_file, files.key_file, password=lambda: b"")
    except (ssl.SSLError, ValueError) as error:
        raise TlsError(
            f"{files.cert_file} and {files.key_file} are no usable certificate and key: {_reason(error)}"
        ) from error
    except OSError as error:
        raise _unreadable(files.cert_file, error) from error
    return context


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.lower().replace("_", " ")
    return str(error)


def _read_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from error


def _signature(files: TlsFiles) -> _Signature:
    return tuple(_file_signature(path) for path in (files.cert_file, files.key_file, files.ca_file))


def _file_signature(path: Path) -> tuple[int, int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _unreadable(path: Path, error: OSError) -> TlsError:
    return TlsError(
        f"can't read {path}: {error.strerror or error}; make certificates with `gpuloom certs --out DIR`"
    )
