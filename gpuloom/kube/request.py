"""A request to the API server, and its bytes. Pure; what is the same for all requests is made once."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from urllib.parse import quote

import orjson

from gpuloom.kube.errors import Call, KubeAccessError
from gpuloom.kube.objects import JsonObject

# Anything else would end its header, or could not be sent at all.
_TOKEN = re.compile(r"[!-~]+")


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    """Encoded, without what the server's URL begins with."""
    call: Call
    query: Mapping[str, str] = field(default_factory=dict)
    """Names as they are sent; values are encoded."""
    body: JsonObject | list[JsonObject] | None = None
    content_type: str = "application/json"


class RequestWriter:
    """For one server, as its URL names it: `authority` for the Host header, `path` before every path."""

    def __init__(self, authority: str, path: str) -> None:
        self._path = path
        self._headers = (
            f" HTTP/1.1\r\nHost: {authority}\r\nUser-Agent: gpuloom/{_product_version()}\r\n"
            "Accept: application/json\r\nAccept-Encoding: gzip\r\n"
        )
        self._token: str | None = None
        self._headers_with_token = self._headers

    def bytes_of(self, request: Request, token: str | None) -> bytes:
        """Raise KubeAccessError if the token can't stand in a header."""
        if token != self._token:
            self._use(token)
        query = "&".join(f"{name}={quote(value, safe='')}" for name, value in request.query.items())
        target = f"{self._path}{request.path}?{query}" if query else self._path + request.path
        head = f"{request.method} {target}{self._headers_with_token}"
        if request.body is None:
            return f"{head}\r\n".encode()
        body = orjson.dumps(request.body)
        content = f"Content-Type: {request.content_type}\r\nContent-Length: {len(body)}\r\n\r\n"
        return f"{head}{content}".encode() + body

    def _use(self, token: str | None) -> None:
        if token and _TOKEN.fullmatch(token) is None:
            raise KubeAccessError("the token for the Kubernetes API is not one line of plain text")
        authorization = f"Authorization: Bearer {token}\r\n" if token else ""
        self._headers_with_token = self._headers + authorization
        self._token = token


def _product_version() -> str:
    try:
        return version("gpuloom")
    except PackageNotFoundError:
        return "unknown"
