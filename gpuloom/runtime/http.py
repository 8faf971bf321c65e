"""The plain HTTP endpoint of every service: /metrics, /healthz and /readyz.

It decides how checks and metrics are answered. It never holds a check of its own, serves nothing that
changes anything, and carries no secrets, so it needs no TLS.
"""

import logging
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

import orjson
from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

# None means fine; a text says why not.
Check = Callable[[], str | None]

# How long open requests may keep the endpoint from closing.
CLOSE_TIMEOUT_S = 0.5

log = logging.getLogger(__name__)


class StatusServer:
    """A context in which the endpoint is served; checks may be added to the mappings at any time."""

    def __init__(
        self,
        host: str,
        port: int,
        registry: CollectorRegistry,
        liveness: Mapping[str, Check],
        readiness: Mapping[str, Check],
    ) -> None:
        self._host = host
        self._registry = registry
        self._liveness = liveness
        self._readiness = readiness
        self._runner: web.AppRunner | None = None
        # Asked for until the start, then the one that is really bound (they differ for 0).
        self.port = port

    async def __aenter__(self) -> Self:
        application = web.Application()
        # add_get answers HEAD too, and every other method gets 405.
        application.router.add_get("/metrics", self._metrics)
        application.router.add_get("/healthz", self._healthz)
        application.router.add_get("/readyz", self._readyz)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=CLOSE_TIMEOUT_S)
        await runner.setup()
        try:
            await web.TCPSite(runner, self._host, self.port).start()
        except BaseException:
            await runner.cleanup()
            raise
        self._runner = runner
        self.port = runner.addresses[0][1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _metrics(self, request: web.Request) -> web.Response:
        accepted = ",".join(request.headers.getall("Accept", []))
        try:
            encode, content_type = choose_encoder(accepted)
        except (TypeError, ValueError):
            # A version in the header that is no number; the plain format is always right.
            encode, content_type = choose_encoder("")
        return web.Response(body=encode(self._registry), headers={"Content-Type": content_type})

    async def _healthz(self, _: web.Request) -> web.Response:
        return _answer(self._liveness)

    async def _readyz(self, _: web.Request) -> web.Response:
        return _answer(self._readiness)


def _answer(checks: Mapping[str, Check]) -> web.Response:
    reasons = {name: _run(name, check) for name, check in checks.items()}
    healthy = not any(reasons.values())
    body = {
        "status": "ok" if healthy else "failing",
        "checks": {
            name: {"ok": False, "reason": reason} if reason else {"ok": True}
            for name, reason in reasons.items()
        },
    }
    return web.Response(
        status=200 if healthy else 503,
        body=orjson.dumps(body) + b"\n",
        headers={"Content-Type": "application/json", "Cache-Control": "no-store"},
    )


def _run(name: str, check: Check) -> str | None:
    try:
        return check()
    except Exception as error:
        # Not knowing is not being well; what went wrong is for the log, not for the caller.
        log.exception("health check failed", extra={"check": name})
        return f"the check itself failed with {type(error).__name__}"
