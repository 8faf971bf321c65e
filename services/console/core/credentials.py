"""What a request shows of who asks: a token, or headers of a proxy that has proved itself. Pure."""

import re
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie

from gpuloom.kube.reviews import User

COOKIE = "__Host-gpuloom-console"
"""The prefix makes browsers refuse it unless it is Secure, for this host alone, and for all paths."""
LONGEST_COOKIE = 3900
"""Browsers keep at most 4096 bytes with the name and the attributes."""
MOST_GROUPS = 200

_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+")
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]", "::1"})


def is_loopback_host(host_header: str) -> bool:
    """Whether the page was asked for by a name of this machine.

    Without this a page of anybody's, whose name is made to point here, could read ours.
    """
    name, colon, port = host_header.rpartition(":")
    bare = name if colon and port.isdigit() else host_header
    return bare.lower() in _LOOPBACK


def token_of(authorization: str, cookies: str) -> str:
    """Empty if there is none that could be one."""
    scheme, _, bearer = authorization.partition(" ")
    found = bearer.strip() if scheme.lower() == "bearer" else _cookie(cookies)
    return found if _TOKEN.fullmatch(found) else ""


def session_cookie(token: str) -> str:
    """Set-Cookie for this token; raise ValueError if no browser would keep it, or it is no token."""
    if not _TOKEN.fullmatch(token):
        raise ValueError("this is not a token")
    if len(token) > LONGEST_COOKIE:
        raise ValueError("this token is too long for a cookie; ask for one with fewer claims")
    return f"{COOKIE}={token}; Path=/; Secure; HttpOnly; SameSite=Strict"


def ended_cookie() -> str:
    return f"{COOKIE}=; Path=/; Max-Age=0; Secure; HttpOnly; SameSite=Strict"


def proxied_user(headers: Mapping[str, str], user_header: str, groups_header: str) -> User | None:
    """Whom the proxy names. Ask only if it has shown its certificate."""
    name = headers.get(user_header, "").strip()
    if not name:
        return None
    groups = [group.strip() for group in headers.get(groups_header, "").split(",")]
    return User(name, tuple(group for group in groups if group)[:MOST_GROUPS])


def _cookie(cookies: str) -> str:
    try:
        found = SimpleCookie(cookies).get(COOKIE)
    except CookieError:
        return ""
    return "" if found is None else found.value
