"""Reads and writes what the setup of a cluster consists of. Decides nothing: `certificates.py` does.

Every step can be repeated: a run that was cut off is completed by the next.
"""

import base64
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace

from gpuloom.catalog.manifests import definitions
from gpuloom.errors import ConflictError, NotFoundError
from gpuloom.kube.client import KubeClient
from gpuloom.kube.objects import JsonObject, ObjectKey
from gpuloom.kube.resources import SECRETS, Resource
from gpuloom.setup.certificates import Content, Order, renew

_DEFINITIONS = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
)
_FIELD_MANAGER = "gpuloom-setup"
_TIMEOUT_S = 30.0
_LABELS = {"app.kubernetes.io/part-of": "gpuloom", "app.kubernetes.io/managed-by": "gpuloom-setup"}

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Secrets:
    """Where certificates are kept: the authority's Secret, and one for each identity."""

    authority: ObjectKey
    services: Mapping[str, ObjectKey]


async def write_certificates(client: KubeClient, secrets: Secrets, order: Order) -> None:
    """Raise ConflictError if another run made one at the same time; then this one is to be repeated."""
    authority = await _read(client, secrets.authority)
    held = {identity: await _read(client, key) for identity, key in secrets.services.items()}
    hosts = {identity: service_hosts(key) for identity, key in secrets.services.items()}
    renewal = renew(authority, held, replace(order, hosts=hosts))
    # The authority first: what it signed is of no use if it is lost.
    if renewal.authority is not None:
        await _write(client, secrets.authority, renewal.authority, bool(authority))
    for identity, content in renewal.services.items():
        await _write(client, secrets.services[identity], content, bool(held[identity]))
    fields = {"authority": renewal.authority is not None, "renewed": sorted(renewal.services)}
    _log.info("certificates are as they should be", extra=fields)


def service_hosts(secret: ObjectKey) -> tuple[str, ...]:
    """Names of the Service whose certificate is in this Secret: the charts name both alike."""
    namespace, name = secret
    return (f"{name.removesuffix('-tls')}.{namespace}.svc",)


async def apply_definitions(client: KubeClient) -> None:
    """Those of this version, by server-side apply; fields of other managers are taken over."""
    for definition in definitions():
        await client.apply(_DEFINITIONS, definition, _FIELD_MANAGER, force=True, timeout_s=_TIMEOUT_S)
        _log.info("definition applied", extra={"definition": definition["metadata"]["name"]})


async def _read(client: KubeClient, key: ObjectKey) -> Content:
    namespace, name = key
    try:
        secret = await client.get(SECRETS, name, namespace, timeout_s=_TIMEOUT_S)
    except NotFoundError:
        return {}
    data = secret.get("data") or {}
    return {entry: base64.b64decode(value) for entry, value in data.items()}


async def _write(client: KubeClient, key: ObjectKey, content: Content, exists: bool) -> None:
    namespace, name = key
    data = {entry: base64.b64encode(value).decode() for entry, value in content.items()}
    if exists:
        # A merge: what is gone has to be named. The successor of an authority is, once it signs.
        gone = {entry: None for entry in ("next.crt", "next.key") if entry not in data}
        await client.patch(SECRETS, name, namespace, {"data": data | gone}, timeout_s=_TIMEOUT_S)
        return
    secret: JsonObject = {
        "metadata": {"namespace": namespace, "name": name, "labels": _LABELS},
        "type": "kubernetes.io/tls",
        "data": data,
    }
    try:
        await client.create(SECRETS, secret, timeout_s=_TIMEOUT_S)
    except ConflictError as error:
        raise ConflictError(f"Secret {namespace}/{name} was made by somebody else meanwhile") from error
