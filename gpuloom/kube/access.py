"""Where the Kubernetes API is and as whom to call it: a kubeconfig, or the pod's service account.

Decides from files and the environment; opens no connection. What it can't follow (proxies, impersonation)
it refuses, because ignoring it would call another server, or call it as somebody else.
"""

import base64
import binascii
import os
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gpuloom.kube.credentials import (
    ClientCertificate,
    ConfiguredCredential,
    Credential,
    CredentialSource,
    ExecCredential,
    ExecPlugin,
    FileText,
    InlineText,
    TextSource,
)
from gpuloom.kube.errors import KubeAccessError
from gpuloom.runtime.clock import Clock, SystemClock

SERVICE_ACCOUNT_DIRECTORY = Path("/var/run/secrets/kubernetes.io/serviceaccount")

_EXEC_API_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
_UNSUPPORTED_USER_FIELDS = (
    "auth-provider",
    "username",
    "password",
    "as",
    "as-uid",
    "as-groups",
    "as-user-extra",
)


@dataclass(frozen=True, slots=True)
class ServerTrust:
    """How the server proves itself."""

    authority: TextSource | None = None
    """PEM of the certificate authority; None: the system's."""
    skip_verification: bool = False
    server_name: str | None = None
    """The name expected in the server's certificate, if not the one in the URL."""


class KubeAccess:
    """A server's address with the credentials for it. `KubeAccess(url)` is enough for a plain HTTP server."""

    def __init__(
        self,
        server: str,
        credential: CredentialSource | None = None,
        trust: ServerTrust | None = None,
        namespace: str = "default",
    ) -> None:
        self.server = server.rstrip("/")
        self.namespace = namespace
        """The namespace of the context or of the service account."""
        self._credential = credential or ConfiguredCredential()
        self._trust = trust or ServerTrust()
        self._context: ssl.SSLContext | None = None
        self._context_for: tuple[str | None, ClientCertificate | None] | None = None

    @classmethod
    def with_token(cls, server: str, token: str) -> "KubeAccess":
        return cls(server, ConfiguredCredential(InlineText(token)))

    @property
    def server_name(self) -> str | None:
        return self._trust.server_name

    async def credential(self) -> Credential:
        return await self._credential.current()

    def invalidate(self) -> None:
        """Called after a 401, so that a rotated token is not tried twice."""
        self._credential.invalidate()

    def ssl_context(self, certificate: ClientCertificate | None) -> ssl.SSLContext | None:
        """None for plain HTTP. The same context as long as neither authority nor certificate changed."""
        if not self.server.startswith("https:"):
            return None
        authority = self._trust.authority.read() if self._trust.authority is not None else None
        wanted = (authority, certificate)
        if self._context is None or self._context_for != wanted:
            self._context = _build_context(authority, certificate, self._trust.skip_verification)
            self._context_for = wanted
        return self._context


def load_access(
    kubeconfig: Path | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    context: str | None = None,
    clock: Clock | None = None,
) -> KubeAccess:
    """The explicit kubeconfig, else $KUBECONFIG, else the pod's service account, else ~/.kube/config."""
    environ = os.environ if environ is None else environ
    clock = clock or SystemClock()
    if kubeconfig is not None:
        return access_from_kubeconfig([kubeconfig], context, clock)
    listed = [Path(part) for part in environ.get("KUBECONFIG", "").split(os.pathsep) if part]
    if listed:
        # As with kubectl, files of a list may be missing as long as one is there.
        return access_from_kubeconfig([path for path in listed if path.exists()] or listed, context, clock)
    if environ.get("KUBERNETES_SERVICE_HOST") and context is None:
        return access_in_cluster(environ, clock)
    home = Path(environ.get("HOME") or Path.home()) / ".kube" / "config"
    if not home.exists():
        raise KubeAccessError(
            f"no Kubernetes API to talk to: no kubeconfig was given, KUBECONFIG is not set,"
            f" this is not a pod, and {home} does not exist"
        )
    return access_from_kubeconfig([home], context, clock)


def access_in_cluster(
    environ: Mapping[str, str], clock: Clock, directory: Path = SERVICE_ACCOUNT_DIRECTORY
) -> KubeAccess:
    host = environ.get("KUBERNETES_SERVICE_HOST", "")
    port = environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not port.isdecimal():
        raise KubeAccessError("KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT don't name an API server")
    token = FileText(directory / "token", clock)
    authority = FileText(directory / "ca.crt", clock)
    token.read()
    authority.read()
    namespace = directory / "namespace"
    return KubeAccess(
        f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        ConfiguredCredential(token),
        ServerTrust(authority),
        namespace.read_text(encoding="utf-8").strip() if namespace.exists() else "default",
    )


def access_from_kubeconfig(paths: list[Path], context: str | None, clock: Clock) -> KubeAccess:
    """Several files are merged as kubectl does it: for every name the first file that has it wins."""
    files = [_KubeconfigFile.read(path, clock) for path in paths]
    name = context or next((file.current_context for file in files if file.current_context), "")
    if not name:
        raise KubeAccessError(f"kubeconfig {paths[0]}: no current-context; name a context")
    _, chosen = _find(files, "context", name)
    cluster_file, cluster = _find(files, "cluster", str(chosen.get("cluster") or ""))
    server = cluster.get("server")
    if not isinstance(server, str) or not server.startswith(("http://", "https://")):
        raise KubeAccessError(
            f"kubeconfig {cluster_file.path}: cluster {chosen.get('cluster')} has no server URL"
        )
    if cluster.get("proxy-url"):
        raise KubeAccessError(f"kubeconfig {cluster_file.path}: proxy-url is not supported")
    trust = ServerTrust(
        cluster_file.text(cluster, "certificate-authority"),
        cluster.get("insecure-skip-tls-verify") is True,
        cluster.get("tls-server-name") or None,
    )
    credential: CredentialSource | None = None
    if chosen.get("user"):
        user_file, user = _find(files, "user", str(chosen["user"]))
        credential = user_file.credential(user, cluster)
    return KubeAccess(server, credential, trust, chosen.get("namespace") or "default")


@dataclass(frozen=True, slots=True)
class _KubeconfigFile:
    path: Path
    content: dict[str, Any]
    clock: Clock

    @classmethod
    def read(cls, path: Path, clock: Clock) -> "_KubeconfigFile":
        try:
            content = yaml.safe_load(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise KubeAccessError(f"kubeconfig {path}: no such file") from None
        except (OSError, UnicodeDecodeError) as error:
            raise KubeAccessError(f"kubeconfig {path}: can't be read ({type(error).__name__})") from None
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            where = f" at line {mark.line + 1}" if mark is not None else ""
            raise KubeAccessError(f"kubeconfig {path}: not valid YAML{where}") from None
        if not isinstance(content, dict):
            raise KubeAccessError(f"kubeconfig {path}: not a kubeconfig (a mapping is expected)")
        return cls(path, content, clock)

    @property
    def current_context(self) -> str:
        return str(self.content.get("current-context") or "")

    def entry(self, kind: str, name: str) -> dict[str, Any] | None:
        for item in self.content.get(f"{kind}s") or ():
            if isinstance(item, dict) and item.get("name") == name:
                entry = item.get(kind)
                return entry if isinstance(entry, dict) else {}
        return None

    def text(self, entry: dict[str, Any], field: str) -> TextSource | None:
        """Inline data wins over a file, whose path is relative to the kubeconfig's folder."""
        if data := entry.get(f"{field}-data"):
            return InlineText(self._decode(field, data))
        if path := entry.get(field):
            source = FileText(self.path.parent / str(path), self.clock)
            source.read()
            return source
        return None

    def credential(self, user: dict[str, Any], cluster: dict[str, Any]) -> CredentialSource:
        unsupported = [field for field in _UNSUPPORTED_USER_FIELDS if user.get(field)]
        if unsupported:
            raise KubeAccessError(f"kubeconfig {self.path}: {unsupported[0]} of a user is not supported")
        if user.get("exec"):
            return ExecCredential(self._exec_plugin(user["exec"], cluster), self.clock)
        token: TextSource | None = InlineText(str(user["token"])) if user.get("token") else None
        if user.get("tokenFile"):
            token = FileText(self.path.parent / str(user["tokenFile"]), self.clock)
            token.read()
        certificate, key = self.text(user, "client-certificate"), self.text(user, "client-key")
        if (certificate is None) != (key is None):
            raise KubeAccessError(f"kubeconfig {self.path}: client-certificate and client-key go together")
        return ConfiguredCredential(token, certificate, key)

    def _exec_plugin(self, spec: Any, cluster: dict[str, Any]) -> ExecPlugin:
        if not isinstance(spec, dict) or not spec.get("command"):
            raise KubeAccessError(f"kubeconfig {self.path}: exec without a command")
        if spec.get("apiVersion") not in _EXEC_API_VERSIONS:
            raise KubeAccessError(f"kubeconfig {self.path}: exec needs apiVersion {_EXEC_API_VERSIONS[0]}")
        command = str(spec["command"])
        # As in kubectl: a bare name is looked up in PATH, anything with a slash is relative to the file.
        if "/" in command:
            command = str(self.path.parent / command)
        told = {"server": cluster["server"], "tls-server-name": cluster.get("tls-server-name")}
        authority = self.text(cluster, "certificate-authority")
        if authority is not None:
            told["certificate-authority-data"] = base64.b64encode(authority.read().encode()).decode()
        told["insecure-skip-tls-verify"] = cluster.get("insecure-skip-tls-verify")
        return ExecPlugin(
            command,
            tuple(str(argument) for argument in spec.get("args") or ()),
            {str(item["name"]): str(item["value"]) for item in spec.get("env") or ()},
            {name: value for name, value in told.items() if value}
            if spec.get("provideClusterInfo")
            else None,
            str(spec.get("installHint") or ""),
            str(spec["apiVersion"]),
        )

    def _decode(self, field: str, data: Any) -> str:
        try:
            return base64.b64decode(str(data), validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            raise KubeAccessError(f"kubeconfig {self.path}: {field}-data is not valid base64 text") from None


def _find(files: list[_KubeconfigFile], kind: str, name: str) -> tuple[_KubeconfigFile, dict[str, Any]]:
    for file in files:
        entry = file.entry(kind, name)
        if entry is not None:
            return file, entry
    raise KubeAccessError(f"kubeconfig {files[0].path}: no {kind} named {name!r}")


def _build_context(
    authority: str | None, certificate: ClientCertificate | None, skip_verification: bool
) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cadata=authority)
        # Python 3.13 refuses certificates without an authority key identifier; many clusters have such, and
        # every other client of Kubernetes accepts them.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if skip_verification:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if certificate is not None:
            _load_certificate(context, certificate)
    except (ssl.SSLError, ValueError) as error:
        said = getattr(error, "reason", None) or "unreadable PEM"
        raise KubeAccessError(f"the certificates for the Kubernetes API can't be used: {said}") from None
    return context


def _load_certificate(context: ssl.SSLContext, certificate: ClientCertificate) -> None:
    # The ssl module takes files only; this folder is readable by us alone and gone right after.
    with tempfile.TemporaryDirectory() as directory:
        pem = Path(directory) / "client.pem"
        pem.touch(mode=0o600)
        pem.write_text(f"{certificate.certificate_pem}\n{certificate.key_pem}\n", encoding="utf-8")
        context.load_cert_chain(pem)
