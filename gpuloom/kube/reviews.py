"""Asks Kubernetes whose token this is, and whether somebody may do something.

Decides how long an answer is believed. Of a token only its digest is kept; who is turned away is asked for
again each time, so that a token works as soon as Kubernetes accepts it.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from gpuloom.kube.objects import JsonObject
from gpuloom.kube.resources import Resource
from gpuloom.runtime.clock import Clock

TOKEN_REVIEWS = Resource("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", namespaced=False)
SUBJECT_ACCESS_REVIEWS = Resource(
    "authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", namespaced=False
)
BELIEVED_S = 60.0
"""So long an answer is believed without asking again."""
MAX_TOKENS = 1024
MAX_RIGHTS = 65_536
MAX_TOKEN_LENGTH = 16_384

K = TypeVar("K")
V = TypeVar("V")


class Reviewer(Protocol):
    """What is needed of Kubernetes' client."""

    async def create(self, resource: Resource, obj: JsonObject) -> JsonObject: ...


@dataclass(frozen=True, slots=True)
class User:
    """Whom Kubernetes takes somebody for. `extra` belongs to that in a later review."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False, compare=False)


@dataclass(frozen=True, slots=True)
class Right:
    """A verb on a resource; `namespace` empty: in every namespace."""

    verb: str
    resource: str
    group: str = ""
    namespace: str = ""


class TokenReviews:
    def __init__(self, client: Reviewer, clock: Clock) -> None:
        self._client = client
        self._known = _Believed[str, User](clock, MAX_TOKENS)

    async def accepts(self, token: str) -> bool:
        return await self.user_of(token) is not None

    async def user_of(self, token: str) -> User | None:
        """None if Kubernetes does not accept it. It raises what the request raises."""
        if not token or len(token) > MAX_TOKEN_LENGTH:
            return None
        digest = hashlib.sha256(token.encode(errors="surrogateescape")).hexdigest()
        known = self._known.get(digest)
        if known is not None:
            return known
        answer = await self._client.create(TOKEN_REVIEWS, _object(TOKEN_REVIEWS, {"token": token}))
        status = answer.get("status") or {}
        if status.get("authenticated") is not True:
            return None
        user = _user(status.get("user") or {})
        self._known.put(digest, user)
        return user


class AccessReviews:
    """Both answers are believed for a while: a page that shows many namespaces asks for each of them."""

    def __init__(self, client: Reviewer, clock: Clock) -> None:
        self._client = client
        self._known = _Believed[tuple[User, Right], bool](clock, MAX_RIGHTS)

    async def allows(self, user: User, right: Right) -> bool:
        """It raises what the request raises."""
        known = self._known.get((user, right))
        if known is not None:
            return known
        attributes = {"verb": right.verb, "group": right.group, "resource": right.resource}
        if right.namespace:
            attributes["namespace"] = right.namespace
        spec = {
            "user": user.name,
            "groups": list(user.groups),
            "uid": user.uid,
            "extra": {key: list(values) for key, values in user.extra.items()},
            "resourceAttributes": attributes,
        }
        answer = await self._client.create(SUBJECT_ACCESS_REVIEWS, _object(SUBJECT_ACCESS_REVIEWS, spec))
        allowed = (answer.get("status") or {}).get("allowed") is True
        self._known.put((user, right), allowed)
        return allowed


class _Believed(Generic[K, V]):
    """Bounded: when it is full, what is new is asked for each time."""

    def __init__(self, clock: Clock, most: int) -> None:
        self._clock = clock
        self._most = most
        self._entries: dict[K, tuple[float, V]] = {}

    def get(self, key: K) -> V | None:
        until_s, value = self._entries.get(key, (-1.0, None))
        return value if until_s > self._clock.monotonic() else None

    def put(self, key: K, value: V) -> None:
        now_s = self._clock.monotonic()
        if len(self._entries) >= self._most:
            self._entries = {each: entry for each, entry in self._entries.items() if entry[0] > now_s}
        if len(self._entries) < self._most:
            self._entries[key] = (now_s + BELIEVED_S, value)


def _object(resource: Resource, spec: Mapping[str, Any]) -> JsonObject:
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {}, "spec": dict(spec)}


def _user(told: Mapping[str, Any]) -> User:
    extra = told.get("extra") or {}
    return User(
        str(told.get("username") or ""),
        tuple(map(str, told.get("groups") or ())),
        str(told.get("uid") or ""),
        {str(key): tuple(map(str, values or ())) for key, values in extra.items()},
    )
