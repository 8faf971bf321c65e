"""Who calls the metrics API and whether he may: as every extension API server asks Kubernetes.

A caller is either the API server's aggregator, which shows a certificate of the front-proxy authority and
names the user in headers, or whoever has a token that Kubernetes knows. It also says what he may do.
"""

import hashlib
import logging
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import orjson
from aiohttp import web

from gpuloom.errors import GpuloomError, NotReadyError
from gpuloom.kube.client import KubeClient
from gpuloom.kube.objects import JsonObject
from gpuloom.kube.resources import CONFIGMAPS, Resource
from gpuloom.runtime.clock import Clock

_log = logging.getLogger(__name__)

TOKEN_REVIEWS = Resource("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", namespaced=False)
ACCESS_REVIEWS = Resource(
    "authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", namespaced=False
)
CONFIGMAP = ("extension-apiserver-authentication", "kube-system")
AUTHENTICATED = "system:authenticated"
"""Headers don't name it, because everybody has it who is somebody; the right to discovery hangs on it."""
REMEMBERED_S = 10.0
MOST_REMEMBERED = 1024
MAX_TOKEN = 16_384
RENEWED_S = 60.0


@dataclass(frozen=True, slots=True)
class User:
    name: str
    groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FrontProxy:
    """What the API server says of its aggregator. No `names` means any certificate of that authority."""

    authority: str = ""
    names: tuple[str, ...] = ()
    user_headers: tuple[str, ...] = ("X-Remote-User",)
    group_headers: tuple[str, ...] = ("X-Remote-Group",)

    @classmethod
    def read(cls, config: JsonObject) -> "FrontProxy":
        data: Mapping[str, str] = config.get("data") or {}

        def listed(key: str) -> tuple[str, ...]:
            try:
                return tuple(str(one) for one in orjson.loads(data.get(key) or "[]"))
            except (orjson.JSONDecodeError, TypeError) as error:
                raise NotReadyError(f"{key} of {'/'.join(CONFIGMAP)} can't be read") from error

        return cls(
            data.get("requestheader-client-ca-file") or "",
            listed("requestheader-allowed-names"),
            listed("requestheader-username-headers"),
            listed("requestheader-group-headers"),
        )


@dataclass
class Delegation:
    client: KubeClient
    clock: Clock
    proxy: FrontProxy = field(default_factory=FrontProxy)
    _answers: dict[str, tuple[float, User | bool | None]] = field(default_factory=dict)

    async def renew(self) -> bool:
        """Read what the API server says of its aggregator; whether that is something else now."""
        name, namespace = CONFIGMAP
        found = FrontProxy.read(await self.client.get(CONFIGMAPS, name, namespace))
        changed, self.proxy = found != self.proxy, found
        return changed

    async def user_of(self, request: web.Request) -> User | None:
        """None: nobody that Kubernetes knows."""
        if self._is_proxy(request):
            name = next(
                (request.headers[one] for one in self.proxy.user_headers if one in request.headers), ""
            )
            groups = [
                value for header in self.proxy.group_headers for value in request.headers.getall(header, [])
            ]
            return User(name, (*groups, AUTHENTICATED)) if name else None
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip() or len(token) > MAX_TOKEN:
            return None
        return await self._of_token(token.strip())

    async def allows(self, user: User, attributes: JsonObject) -> bool:
        """`attributes`: resourceAttributes or nonResourceAttributes of a SubjectAccessReview."""
        spec: JsonObject = {"user": user.name, "groups": list(user.groups), **attributes}
        key = hashlib.sha256(orjson.dumps(spec, option=orjson.OPT_SORT_KEYS)).hexdigest()
        known = self._remembered(key)
        if isinstance(known, bool):
            return known
        review = {
            "apiVersion": ACCESS_REVIEWS.api_version,
            "kind": ACCESS_REVIEWS.kind,
            "metadata": {},
            "spec": spec,
        }
        answer = await self.client.create(ACCESS_REVIEWS, review)
        allowed = (answer.get("status") or {}).get("allowed") is True
        self._remember(key, allowed)
        return allowed

    def trust(self, context: ssl.SSLContext) -> None:
        """Let callers show a certificate of the front-proxy authority, and of no other."""
        if self.proxy.authority:
            context.load_verify_locations(cadata=self.proxy.authority)
            context.verify_mode = ssl.CERT_OPTIONAL

    async def run(self) -> None:
        """Follow the aggregator's authority as it is renewed."""
        while True:
            await self.clock.sleep(RENEWED_S)
            try:
                await self.renew()
            except GpuloomError as error:
                _log.warning("front proxy not read", extra={"reason": str(error)})

    def _is_proxy(self, request: web.Request) -> bool:
        certificate = request.transport.get_extra_info("peercert") if request.transport is not None else None
        if not certificate or not self.proxy.authority:
            return False
        names = _common_names(certificate.get("subject") or ())
        return not self.proxy.names or bool(set(names) & set(self.proxy.names))

    async def _of_token(self, token: str) -> User | None:
        key = hashlib.sha256(token.encode()).hexdigest()
        known = self._remembered(key)
        if isinstance(known, User):
            return known
        review = {
            "apiVersion": TOKEN_REVIEWS.api_version,
            "kind": TOKEN_REVIEWS.kind,
            "metadata": {},
            "spec": {"token": token},
        }
        answer = (await self.client.create(TOKEN_REVIEWS, review)).get("status") or {}
        if answer.get("authenticated") is not True:
            return None
        told = answer.get("user") or {}
        user = User(str(told.get("username") or ""), tuple(told.get("groups") or ()))
        self._remember(key, user)
        return user

    def _remembered(self, key: str) -> User | bool | None:
        until_s, answer = self._answers.get(key, (-1.0, None))
        return answer if until_s > self.clock.monotonic() else None

    def _remember(self, key: str, answer: User | bool) -> None:
        now_s = self.clock.monotonic()
        if len(self._answers) >= MOST_REMEMBERED:
            self._answers = {one: known for one, known in self._answers.items() if known[0] > now_s}
        if len(self._answers) < MOST_REMEMBERED:
            self._answers[key] = now_s + REMEMBERED_S, answer


def _common_names(subject: Sequence[Sequence[tuple[str, str]]]) -> list[str]:
    return [value for part in subject for name, value in part if name == "commonName"]
