"""Who we are to the API server: tokens and client certificates, kept fresh.

Files are read again when they change; a credential plugin is run again when what it gave expires.
Never writes a secret anywhere and never puts one into an error.
"""

import asyncio
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Protocol

import orjson

from gpuloom.kube.errors import KubeAccessError
from gpuloom.runtime.clock import Clock, deadline

_LOOK_AFTER_S = 1.0
_REREAD_AFTER_S = 60.0
_PLUGIN_TIMEOUT_S = 30.0
# A credential that expires while its request is on the way is refused, so it is renewed this much earlier.
_EXPIRY_SLACK = timedelta(seconds=10)


@dataclass(frozen=True, slots=True)
class ClientCertificate:
    certificate_pem: str
    key_pem: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Credential:
    token: str | None = field(default=None, repr=False)
    certificate: ClientCertificate | None = None


class CredentialSource(Protocol):
    async def current(self) -> Credential:
        """What to present now. Raise KubeAccessError if there is nothing valid to present."""

    def invalidate(self) -> None:
        """The server refused the last one: don't hand out a remembered one again."""


class TextSource(Protocol):
    def read(self) -> str:
        """The text as it is now. Raise KubeAccessError if it was never readable."""

    def forget(self) -> None:
        """Read anew next time."""


@dataclass(frozen=True, slots=True)
class InlineText:
    text: str = field(repr=False)

    def read(self) -> str:
        return self.text

    def forget(self) -> None:
        """There is nothing else to read."""


class FileText:
    """A file's text; looked at every second, and read again when it changed, at the latest every 60 s."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._text: str | None = None
        self._signature: tuple[int, int, int] | None = None
        self._looked_at_s = -math.inf
        self._read_at_s = 0.0

    def read(self) -> str:
        now_s = self._clock.monotonic()
        if self._text is not None and now_s - self._looked_at_s < _LOOK_AFTER_S:
            return self._text
        self._looked_at_s = now_s
        try:
            status = self._path.stat()
            signature = (status.st_mtime_ns, status.st_ino, status.st_size)
            age_s = now_s - self._read_at_s
            if self._text is None or signature != self._signature or age_s >= _REREAD_AFTER_S:
                self._text = self._path.read_text(encoding="utf-8").strip()
                self._signature = signature
                self._read_at_s = now_s
        except (OSError, UnicodeDecodeError) as error:
            # While the file is being swapped, the one read before is most likely still good.
            if self._text is None:
                raise KubeAccessError(f"can't read {self._path}: {_reason(error)}") from None
        return self._text

    def forget(self) -> None:
        self._signature = None
        self._looked_at_s = -math.inf


@dataclass(frozen=True, slots=True)
class ConfiguredCredential:
    """A token, a client certificate, both, or neither."""

    token: TextSource | None = None
    certificate: TextSource | None = None
    key: TextSource | None = None

    async def current(self) -> Credential:
        certificate = None
        if self.certificate is not None and self.key is not None:
            certificate = ClientCertificate(self.certificate.read(), self.key.read())
        return Credential(self.token.read() if self.token is not None else None, certificate)

    def invalidate(self) -> None:
        for source in (self.token, self.certificate, self.key):
            if source is not None:
                source.forget()


@dataclass(frozen=True, slots=True)
class ExecPlugin:
    command: str
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    cluster: Mapping[str, object] | None = None
    """Told to the plugin when the kubeconfig says provideClusterInfo."""
    install_hint: str = ""
    api_version: str = "client.authentication.k8s.io/v1"


class ExecCredential:
    """Runs a credential plugin and keeps what it gave until that expires."""

    def __init__(self, plugin: ExecPlugin, clock: Clock) -> None:
        self._plugin = plugin
        self._clock = clock
        self._credential: Credential | None = None
        self._expires: datetime | None = None
        self._running = asyncio.Lock()

    async def current(self) -> Credential:
        # One run serves all callers that found the credential expired.
        async with self._running:
            if self._credential is None or self._is_expiring():
                self._credential, self._expires = _parse_exec_answer(
                    self._plugin.command, await self._run_plugin()
                )
            return self._credential

    def invalidate(self) -> None:
        self._credential = None

    def _is_expiring(self) -> bool:
        return self._expires is not None and self._clock.now() >= self._expires - _EXPIRY_SLACK

    async def _run_plugin(self) -> bytes:
        plugin = self._plugin
        try:
            process = await asyncio.create_subprocess_exec(
                plugin.command,
                *plugin.arguments,
                env={**os.environ, **plugin.environment, "KUBERNETES_EXEC_INFO": _exec_info(plugin)},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            hint = f" ({plugin.install_hint.splitlines()[0]})" if plugin.install_hint.strip() else ""
            text = f"can't run credential plugin {plugin.command}: {_reason(error)}{hint}"
            raise KubeAccessError(text) from None
        try:
            async with deadline(self._clock, _PLUGIN_TIMEOUT_S):
                output, _ = await process.communicate()
        except TimeoutError:
            text = f"credential plugin {plugin.command} gave no answer within {_PLUGIN_TIMEOUT_S:g} s"
            raise KubeAccessError(text) from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode != 0:
            raise KubeAccessError(f"credential plugin {plugin.command} failed with exit {process.returncode}")
        return output


def _exec_info(plugin: ExecPlugin) -> str:
    spec: dict[str, object] = {"interactive": False}
    if plugin.cluster is not None:
        spec["cluster"] = dict(plugin.cluster)
    info = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec}
    return orjson.dumps(info).decode()


def _parse_exec_answer(command: str, output: bytes) -> tuple[Credential, datetime | None]:
    try:
        status = orjson.loads(output)["status"]
        token, pem, key = (status.get(name) for name in ("token", "clientCertificateData", "clientKeyData"))
        expires = status.get("expirationTimestamp")
        until = datetime.fromisoformat(expires) if expires else None
    except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError, ValueError):
        text = f"credential plugin {command} did not print an ExecCredential with a status"
        raise KubeAccessError(text) from None
    certificate = ClientCertificate(pem, key) if pem and key else None
    if not token and certificate is None:
        raise KubeAccessError(f"credential plugin {command} gave neither a token nor a certificate")
    if until is not None and until.tzinfo is None:
        raise KubeAccessError(f"credential plugin {command} gave an expiry without a time zone")
    return Credential(token or None, certificate), until


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
