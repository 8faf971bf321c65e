"""Reads from Kubernetes what the checks judge. A part that can't be read says why; judges nothing."""

import asyncio
import base64
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from typing import TypeVar

import aiohttp
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.hashes import SHA256

from gpuloom.cli.doctor.observed import Certificate, Objects, Right, RunProcess, Unread, labels_of
from gpuloom.errors import GpuloomError, InvalidRequestError, NotFoundError
from gpuloom.kube.client import KubeClient
from gpuloom.kube.listing import EVERYTHING, Selection
from gpuloom.kube.objects import JsonObject, key_of, metadata_of, without_managed_fields
from gpuloom.kube.resources import (
    ADMISSION_POLICIES,
    ADMISSION_POLICY_BINDINGS,
    DEPLOYMENTS,
    LEASES,
    MUTATING_WEBHOOKS,
    NAMESPACES,
    NODES,
    PODS,
    SECRETS,
    VALIDATING_WEBHOOKS,
    Resource,
)

Value = TypeVar("Value")

OURS = "app.kubernetes.io/part-of=gpuloom"
DEFINITIONS = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
)
PRIORITY_CLASSES = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False)
ACCESS_REVIEWS = Resource(
    "authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", namespaced=False
)
SELF_REVIEWS = Resource(
    "authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview", namespaced=False
)
NEEDED_RIGHTS: dict[str, tuple[str, ...]] = {
    "node-agent": ("list pods", "list nodes"),
    "discovery": ("watch nodes", "watch pods", "patch nodes/status"),
    "scheduler-extender": (
        "watch pods",
        "watch nodes",
        "patch pods",
        "create pods/binding",
        "create gpuholds.gpuloom.dev",
    ),
    "cost-engine": ("watch pods", "watch nodes"),
    "optimizer": ("watch pods",),
    "mig-controller": ("watch pods", "watch gpunodeconfigs.gpu-autoscaler.io"),
    "autoscaler": ("watch pods", "create pods/eviction", "create gpunodeclaims.gpuloom.dev"),
    "controller": ("watch gpuworkloads.gpu.warp.dev", "create jobs.batch"),
    "webhook": ("watch namespaces", "watch gpusharingpolicies.gpu-autoscaler.io"),
    "console": ("create tokenreviews.authentication.k8s.io",),
}
"""What each service does first and can't do without: verb and resource, as kubectl writes them."""


class ClusterReader:
    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def version(self) -> tuple[int, int] | Unread:
        return await _or_why(self._version)

    async def server_time(self) -> datetime | Unread:
        """From an object that the server makes and does not keep."""
        return await _or_why(self._server_time)

    async def definitions(self) -> Objects:
        return await self._list(DEFINITIONS)

    async def priority_classes(self) -> Objects:
        return await self._list(PRIORITY_CLASSES)

    async def pods(self) -> Objects:
        return await self._list(PODS, Selection(label_selector=OURS, keep=without_managed_fields))

    async def deployments(self) -> Objects:
        return await self._list(DEPLOYMENTS, Selection(label_selector=OURS, keep=without_managed_fields))

    async def nodes(self) -> Objects:
        return await self._list(NODES, Selection(keep=without_managed_fields))

    async def node_leases(self) -> Objects:
        return await self._list(LEASES, Selection(namespace="kube-node-lease"))

    async def namespaces(self) -> Objects:
        return await self._list(NAMESPACES)

    async def webhooks(self) -> Objects:
        found: list[JsonObject] = []
        for resource in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS):
            part = await self._list(resource, Selection(label_selector=OURS))
            if isinstance(part, Unread):
                return part
            found.extend({**item, "kind": resource.kind} for item in part)
        return tuple(found)

    async def admission_policies(self) -> Objects:
        return await self._list(ADMISSION_POLICIES)

    async def admission_bindings(self) -> Objects:
        return await self._list(ADMISSION_POLICY_BINDINGS)

    async def certificates(self, pods: Objects) -> tuple[Certificate, ...] | Unread:
        """Those of the Secrets that the services' pods mount."""
        if isinstance(pods, Unread):
            return pods
        found: list[Certificate] = []
        for namespace, name, service in sorted(set(_mounted_secrets(pods))):
            try:
                secret = await self._client.get(SECRETS, name, namespace)
            except NotFoundError:
                found.append(_no_certificate(f"{namespace}/{name}", "is not there"))
            except GpuloomError as error:
                return Unread(str(error))
            else:
                found.append(_certificate_of(secret, service))
        return tuple(found)

    async def rights(self, pods: Objects) -> tuple[Right, ...] | Unread:
        if isinstance(pods, Unread):
            return pods
        questions = [
            (service, account, wanted)
            for service, account in sorted(set(_accounts(pods)))
            for wanted in NEEDED_RIGHTS.get(service, ())
        ]
        answers = await _or_why(lambda: asyncio.gather(*(self._right(*question) for question in questions)))
        return answers if isinstance(answers, Unread) else tuple(answers)

    async def _right(self, service: str, account: str, wanted: str) -> Right:
        verb, _, named = wanted.partition(" ")
        named, _, subresource = named.partition("/")
        plural, _, group = named.partition(".")
        attributes = {"verb": verb, "resource": plural, "group": group, "subresource": subresource}
        review = {"metadata": {}, "spec": {"user": account, "resourceAttributes": attributes}}
        answer = await self._client.create(ACCESS_REVIEWS, review)
        allowed = bool((answer.get("status") or {}).get("allowed"))
        return Right(service, account, verb, wanted.partition(" ")[2], allowed)

    async def _version(self) -> tuple[int, int]:
        said = await self._client.version()
        try:
            return int(said["major"]), int(str(said["minor"]).rstrip("+"))
        except (KeyError, ValueError):
            raise InvalidRequestError(f"the API server's version can't be read: {said!r:.100}") from None

    async def _server_time(self) -> datetime:
        review = await self._client.create(SELF_REVIEWS, {"metadata": {}})
        made = metadata_of(review).get("creationTimestamp")
        if not made:
            raise NotFoundError("the API server does not tell its time")
        return datetime.fromisoformat(made)

    async def _list(self, resource: Resource, selection: Selection = EVERYTHING) -> Objects:
        listing = await _or_why(lambda: self._client.list(resource, selection))
        return listing if isinstance(listing, Unread) else listing.items


async def read_run(targets: Mapping[str, Sequence[str]], timeout_s: float) -> tuple[RunProcess, ...]:
    """What every process of a run says of itself, in the order of `targets`: places by service.

    A place that knows nothing of readiness is another port of a process, such as that of the GPU metrics.
    """

    async def ask(session: aiohttp.ClientSession, service: str, place: str) -> RunProcess | None:
        try:
            async with session.get(f"http://{place}/readyz") as answer:
                if answer.status == HTTPStatus.NOT_FOUND:
                    return None
                said = (await answer.text()).strip()
                return RunProcess(service, place, "" if answer.ok else said or f"answers {answer.status}")
        except (aiohttp.ClientError, TimeoutError) as error:
            return RunProcess(service, place, f"does not answer: {str(error) or 'too slow'}")

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=timeout_s)) as session:
        asked = [ask(session, service, place) for service, places in targets.items() for place in places]
        return tuple(process for process in await asyncio.gather(*asked) if process is not None)


async def _or_why(read: Callable[[], Awaitable[Value]]) -> Value | Unread:
    try:
        return await read()
    except GpuloomError as error:
        return Unread(str(error))


def _mounted_secrets(pods: Iterable[JsonObject]) -> Iterator[tuple[str, str, str]]:
    for pod in pods:
        for volume in (pod.get("spec") or {}).get("volumes") or ():
            name = (volume.get("secret") or {}).get("secretName", "")
            if name.endswith("-tls"):
                yield key_of(pod)[0], name, labels_of(pod).get("app.kubernetes.io/name", "")


def _accounts(pods: Iterable[JsonObject]) -> Iterator[tuple[str, str]]:
    for pod in pods:
        service = labels_of(pod).get("app.kubernetes.io/name", "")
        account = (pod.get("spec") or {}).get("serviceAccountName") or "default"
        yield service, f"system:serviceaccount:{key_of(pod)[0]}:{account}"


def _certificate_of(secret: JsonObject, service: str) -> Certificate:
    data, name = secret.get("data") or {}, "/".join(key_of(secret))
    try:
        leaf = x509.load_pem_x509_certificate(base64.b64decode(data["tls.crt"]))
        authorities = x509.load_pem_x509_certificates(base64.b64decode(data["ca.crt"]))
    except (KeyError, ValueError):
        return _no_certificate(name, "can't be read")
    signers = [authority for authority in authorities if _signed(leaf, authority)]
    last = max((signer.not_valid_after_utc for signer in signers), default=leaf.not_valid_after_utc)
    prints = frozenset(signer.fingerprint(SHA256()).hex() for signer in signers)
    return Certificate(name, min(leaf.not_valid_after_utc, last), bool(signers), service, prints)


def _no_certificate(secret: str, problem: str) -> Certificate:
    return Certificate(secret, datetime.fromtimestamp(0, UTC), signed=False, problem=problem)


def _signed(leaf: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        leaf.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True
