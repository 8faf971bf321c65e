"""The connections to one API server: at most 128, kept while they are used again soon.

Decides when a connection is opened, used again and dropped. A connection is used by one request at a time,
and only with the certificates that are valid now. No proxy is ever asked.
"""

import asyncio
import socket
import ssl
from collections import deque
from dataclasses import dataclass
from typing import Self
from urllib.parse import quote, urlsplit

import aiohappyeyeballs

from gpuloom.kube.connection import Connection
from gpuloom.kube.errors import KubeAccessError
from gpuloom.runtime.clock import Clock

# A burst of writes waits its turn instead of opening hundreds of connections, each with its handshake.
MAX_CONNECTIONS = 128
# Below the 90 s after which an API server closes an idle connection.
_KEEP_IDLE_S = 60.0
# A name may have an address that nobody answers at; the next is tried before the deadline is spent on it.
_NEXT_ADDRESS_DELAY_S = 0.25
_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the API server is, as its URL says."""

    host: str
    port: int
    authority: str
    """For the Host header."""
    path: str
    """What every path begins with; mostly empty."""

    @classmethod
    def of(cls, server: str) -> Self:
        try:
            parts = urlsplit(server)
            host, port = parts.hostname or "", parts.port or _DEFAULT_PORTS[parts.scheme]
            named = host.encode("idna").decode()
        except (ValueError, KeyError):
            raise KubeAccessError(
                "the Kubernetes API's address is not a URL with a host and a port"
            ) from None
        if not host or parts.username is not None:
            raise KubeAccessError("the Kubernetes API's address must have a host, and no user")
        named = f"[{named}]" if ":" in named else named
        authority = named if port == _DEFAULT_PORTS[parts.scheme] else f"{named}:{port}"
        return cls(host, port, authority, quote(parts.path.rstrip("/"), safe="/%:@!$&'()*+,;=~"))


class ConnectionPool:
    def __init__(self, origin: Origin, server_name: str | None, clock: Clock) -> None:
        self._origin = origin
        self._server_name = server_name or origin.host
        self._clock = clock
        # Only uses are counted: a connection is opened only while none is idle, so all of them are no more.
        self._uses = asyncio.Semaphore(MAX_CONNECTIONS)
        self._idle: deque[Connection] = deque()
        """The one used last is at the end."""
        self._open: set[Connection] = set()
        self._closed = False

    async def take(self, context: ssl.SSLContext | None) -> Connection:
        """An idle connection or a new one, for the caller alone. Raise OSError if it can't be opened."""
        await self._uses.acquire()
        try:
            return self._idle_one(context) or await self._connect(context)
        except BaseException:
            self._uses.release()
            raise

    def give_back(self, connection: Connection) -> None:
        """A connection whose answer was not read to its end is closed."""
        self._uses.release()
        connection.end()
        if self._closed or not connection.reusable:
            connection.abort()
            return
        connection.idle_since_s = self._clock.monotonic()
        self._idle.append(connection)
        if self._is_old(self._idle[0]):
            self._idle.popleft().abort()

    async def close(self) -> None:
        """Requests that are under way break off."""
        self._closed = True
        open_ones = list(self._open)
        for connection in open_ones:
            connection.abort()
        if open_ones:
            await asyncio.wait([connection.lost for connection in open_ones])

    def _idle_one(self, context: ssl.SSLContext | None) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable and connection.context is context and not self._is_old(connection):
                return connection
            connection.abort()
        return None

    def _is_old(self, connection: Connection) -> bool:
        return self._clock.monotonic() - connection.idle_since_s >= _KEEP_IDLE_S

    async def _connect(self, context: ssl.SSLContext | None) -> Connection:
        loop = asyncio.get_running_loop()
        addresses = await loop.getaddrinfo(self._origin.host, self._origin.port, type=socket.SOCK_STREAM)
        opened = await aiohappyeyeballs.start_connection(
            addresses, happy_eyeballs_delay=_NEXT_ADDRESS_DELAY_S, interleave=1
        )
        try:
            _, connection = await loop.create_connection(
                lambda: Connection(self._forget),
                sock=opened,
                ssl=context,
                server_hostname=self._server_name if context is not None else None,
            )
        except BaseException:
            opened.close()
            raise
        connection.context = context
        if not connection.lost.done():
            self._open.add(connection)
        return connection

    def _forget(self, connection: Connection) -> None:
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
