"""Kubeconfig files of a control plane: for whoever shows a certificate, and for whoever shows a token."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.cluster.certificates import KeyPair


@dataclass(frozen=True)
class Server:
    url: str
    authority: Path


def certificate_user(pair: KeyPair) -> dict[str, str]:
    return {"client-certificate": str(pair.certificate), "client-key": str(pair.key)}


def token_user(token_file: Path) -> dict[str, str]:
    return {"tokenFile": str(token_file)}


def write_kubeconfig(path: Path, server: Server, user: Mapping[str, str]) -> Path:
    name = "loopback"
    cluster = {"server": server.url, "certificate-authority": str(server.authority)}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": cluster}],
        "users": [{"name": name, "user": dict(user)}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return path
