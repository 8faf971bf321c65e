"""Who may look, and at what.

On loopback everybody who asks by a name of this machine sees everything. Elsewhere Kubernetes says whose
token it is, or a proxy that has shown the certificate of its own names the user; headers of anybody else mean
nothing. Where namespaces are asked for, Kubernetes says in which this user may list pods.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from aiohttp import web

from gpuloom.kube.reviews import AccessReviews, Right, TokenReviews, User
from gpuloom.rpc.identity import UnauthenticatedError, identity_from_peer_certificate
from services.console.core.credentials import is_loopback_host, proxied_user, token_of
from services.console.core.sight import EVERYTHING, Sight

PROXY_IDENTITY = "oidc_proxy"
MOST_NAMESPACES = 1000
REVIEWS_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Viewer:
    """`name` is shown to themselves; empty on loopback."""

    name: str
    sight: Sight


class Gate(Protocol):
    @property
    def has_login(self) -> bool:
        """Whether somebody who is turned away can show a token."""

    async def viewer(self, request: web.Request) -> Viewer | None:
        """None: turned away. It raises what Kubernetes' client raises."""

    async def accepts(self, token: str) -> bool: ...


class LoopbackGate:
    has_login = False

    async def viewer(self, request: web.Request) -> Viewer | None:
        return Viewer("", EVERYTHING) if is_loopback_host(request.headers.get("Host", "")) else None

    async def accepts(self, token: str) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class ProxyHeaders:
    user: str
    groups: str


class TokenGate:
    """`rights` None: whoever is let in sees everything. `proxy` None: no headers are believed."""

    has_login = True

    def __init__(
        self,
        tokens: TokenReviews,
        rights: AccessReviews | None,
        proxy: ProxyHeaders | None,
        namespaces: Callable[[], frozenset[str]],
    ) -> None:
        self._tokens = tokens
        self._rights = rights
        self._proxy = proxy
        self._namespaces = namespaces

    async def viewer(self, request: web.Request) -> Viewer | None:
        user = self._proxied(request) or await self._tokens.user_of(
            token_of(request.headers.get("Authorization", ""), request.headers.get("Cookie", ""))
        )
        return None if user is None else Viewer(user.name, await self._sight(user))

    async def accepts(self, token: str) -> bool:
        return await self._tokens.accepts(token)

    def _proxied(self, request: web.Request) -> User | None:
        if self._proxy is None or peer_identity(request) != PROXY_IDENTITY:
            return None
        return proxied_user(request.headers, self._proxy.user, self._proxy.groups)

    async def _sight(self, user: User) -> Sight:
        rights = self._rights
        if rights is None or await rights.allows(user, Right("list", "pods")):
            return EVERYTHING
        few = asyncio.Semaphore(REVIEWS_AT_ONCE)

        async def sees(namespace: str) -> bool:
            async with few:
                return await rights.allows(user, Right("list", "pods", namespace=namespace))

        asked = sorted(self._namespaces())[:MOST_NAMESPACES]
        answers = await asyncio.gather(*map(sees, asked))
        return Sight(frozenset(name for name, seen in zip(asked, answers, strict=True) if seen))


def peer_identity(request: web.Request) -> str:
    """Of the certificate that the other side has proved to have; empty if it showed none of ours."""
    transport = request.transport
    connection = None if transport is None else transport.get_extra_info("ssl_object")
    shown = None if connection is None else connection.getpeercert()
    if not shown:
        return ""
    try:
        return identity_from_peer_certificate(shown)
    except UnauthenticatedError:
        return ""
