"""Calls an extender over HTTP(S) with a timeout per verb, as kube-scheduler does. Decides nothing."""

import os
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import aiohttp

from gpuloom.errors import InvalidRequestError
from gpuloom.kube.objects import JsonObject
from gpuloom.model.node import PodRef
from gpuloom.runtime.clock import Clock, deadline
from gpuloom.sim.scheduler.wire import (
    ExtenderError,
    FilterAnswer,
    bind_answer,
    bind_request,
    filter_answer,
    filter_request,
    prioritize_answer,
)

MAX_BINDS_AT_ONCE = 256


class Extender(Protocol):
    """Every call raises ExtenderError if the extender refuses, fails, or does not answer in time."""

    async def filter(self, pod: JsonObject, nodes: Sequence[str]) -> FilterAnswer: ...

    async def prioritize(self, pod: JsonObject, nodes: Sequence[str]) -> dict[str, int]: ...

    async def bind(self, pod: PodRef, node: str) -> None: ...


@dataclass(frozen=True, slots=True)
class ExtenderSettings:
    url: str
    filter_timeout_s: float = 1.0
    bind_timeout_s: float = 5.0
    tls: ssl.SSLContext | None = None


class HttpExtender:
    """Use as an async context manager."""

    def __init__(self, settings: ExtenderSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(limit=MAX_BINDS_AT_ONCE, ssl=self._settings.tls or True)
        # The timeout is ours, by the injected clock.
        self._session = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def filter(self, pod: JsonObject, nodes: Sequence[str]) -> FilterAnswer:
        body = await self._post("filter", filter_request(pod, nodes), self._settings.filter_timeout_s)
        return filter_answer(body, nodes)

    async def prioritize(self, pod: JsonObject, nodes: Sequence[str]) -> dict[str, int]:
        body = await self._post("prioritize", filter_request(pod, nodes), self._settings.filter_timeout_s)
        return prioritize_answer(body)

    async def bind(self, pod: PodRef, node: str) -> None:
        bind_answer(await self._post("bind", bind_request(pod, node), self._settings.bind_timeout_s))

    async def _post(self, verb: str, body: bytes, timeout_s: float) -> bytes:
        if self._session is None:
            raise RuntimeError("HttpExtender is used outside its context")
        url = f"{self._settings.url}/{verb}"
        headers = {"Content-Type": "application/json"}
        try:
            async with (
                deadline(self._clock, timeout_s),
                self._session.post(url, data=body, headers=headers) as response,
            ):
                answer = await response.read()
                if response.status != 200:
                    raise ExtenderError(f"failed {verb} with extender: status {response.status}")
                return answer
        except TimeoutError:
            raise ExtenderError(f"failed {verb} with extender: no answer within {timeout_s:g} s") from None
        except aiohttp.ClientError as error:
            raise ExtenderError(f"failed {verb} with extender: {_in_words(error)}") from None


def _in_words(error: aiohttp.ClientError) -> str:
    """What a client library calls its errors says nothing to whoever reads a pod's event."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientSSLError):
        return "TLS handshake failed"
    if isinstance(error, aiohttp.ClientConnectorError):
        why = os.strerror(error.errno).lower() if error.errno else "no connection"
        return f"can't reach {error.host}:{error.port}: {why}"
    if isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError):
        return "the connection broke off"
    return "the answer is not HTTP"


def client_tls(ca: Path | None, certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """None if nothing is given. Raise InvalidRequestError if a file is missing or unusable."""
    if ca is None and certificate is None and key is None:
        return None
    if (certificate is None) != (key is None):
        raise InvalidRequestError("a client certificate needs its key, and a key its certificate")
    try:
        context = ssl.create_default_context(cafile=ca)
        if certificate is not None:
            context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise InvalidRequestError(f"can't use the certificates given: {error}") from None
    return context
