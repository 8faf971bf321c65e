"""The certificates of everybody who speaks gRPC."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gpuloom.rpc.tls import TlsFiles
from gpuloom.runtime.config import setting
from gpuloom.runtime.parsers import boolean, existing_file


@dataclass(frozen=True)
class TlsConfig:
    """Where the certificates are. All three files, or an explicit wish to go without."""

    cert_file: Path | None = setting(
        "GPULOOM_TLS_CERT_FILE",
        default=None,
        parse=existing_file,
        help="Certificate of this service (PEM); `gpuloom certs` makes one for development",
    )
    key_file: Path | None = setting(
        "GPULOOM_TLS_KEY_FILE", default=None, parse=existing_file, help="Its private key (PEM)"
    )
    ca_file: Path | None = setting(
        "GPULOOM_TLS_CA_FILE",
        default=None,
        parse=existing_file,
        help="Certificates of the authority that signs all services (PEM)",
    )
    insecure: bool = setting(
        "GPULOOM_TLS_INSECURE",
        default=False,
        parse=boolean,
        help="Go without TLS and let every caller call everything; for tests only",
    )

    def problems(self) -> Iterable[str]:
        names = ("GPULOOM_TLS_CERT_FILE", "GPULOOM_TLS_KEY_FILE", "GPULOOM_TLS_CA_FILE")
        given = (self.cert_file, self.key_file, self.ca_file)
        missing = [name for name, path in zip(names, given, strict=True) if path is None]
        if missing and not self.insecure:
            yield f"{', '.join(missing)} must be set: make certificates with `gpuloom certs --out DIR`"
        if self.insecure and len(missing) < len(names):
            yield "GPULOOM_TLS_INSECURE is set together with certificates: decide for one"

    def files(self) -> TlsFiles | None:
        if self.cert_file is None or self.key_file is None or self.ca_file is None:
            return None
        return TlsFiles(self.cert_file, self.key_file, self.ca_file)
