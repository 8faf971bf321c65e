"""The HTTP endpoint of the GPU metrics: /metrics and /healthz, nothing else.

It decides how a scrape is answered; what is in the answer is the exporter's. It carries no secrets and
changes nothing, so it needs no TLS.
"""

import asyncio
import logging
from types import TracebackType
from typing import Self

from aiohttp import web

from gpuloom.runtime.backoff import Backoff
from gpuloom.runtime.clock import Clock
from services.node_agent.exporter.core.exposition import CONTENT_TYPE
from services.node_agent.exporter.exporter import Exporter
from services.node_agent.exporter.metrics import ExporterMetrics

_log = logging.getLogger(__name__)

_CLOSE_TIMEOUT_S = 0.5
_KEEP_ALIVE_S = 60.0
# A scrape's request line and each of its headers are far shorter.
_MAX_LINE_BYTES = 4096
_FIRST_RETRY_S = 1.0
_RETRY_CAP_S = 30.0


class ExporterServer:
    """A context in which the endpoint is served. Raise OSError if the port can't be had."""

    def __init__(self, exporter: Exporter, host: str, port: int, metrics: ExporterMetrics) -> None:
        self._exporter = exporter
        self._host = host
        self._asked_port = port
        self._metrics = metrics
        self._runner: web.AppRunner | None = None
        self.port = 0
        """The one that is really bound, 0 while none is."""

    async def __aenter__(self) -> Self:
        application = web.Application()
        # add_get answers HEAD too; every other method gets 405, every other path 404.
        application.router.add_get("/metrics", self._answer_metrics)
        application.router.add_get("/healthz", self._answer_health)
        runner = web.AppRunner(
            application,
            access_log=None,
            shutdown_timeout=_CLOSE_TIMEOUT_S,
            keepalive_timeout=_KEEP_ALIVE_S,
            max_line_size=_MAX_LINE_BYTES,
            max_field_size=_MAX_LINE_BYTES,
        )
        await runner.setup()
        try:
            await web.TCPSite(runner, self._host, self._asked_port).start()
        except BaseException:
            await runner.cleanup()
            raise
        self._runner = runner
        self.port = runner.addresses[0][1]
        self._metrics.listening.set(1)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.port = 0
        self._metrics.listening.set(0)
        if self._runner is not None:
            await self._runner.cleanup()

    async def serve(self, clock: Clock) -> None:
        """Serve until cancelled. A port that somebody else has costs the exporter, never the agent."""
        backoff, told = Backoff(_FIRST_RETRY_S, _RETRY_CAP_S), False
        while True:
            try:
                async with self:
                    _log.info("GPU metrics are served", extra={"host": self._host, "port": self.port})
                    await asyncio.Event().wait()
            except OSError as error:
                if not told:
                    fields = {"host": self._host, "port": self._asked_port, "reason": error.strerror}
                    _log.warning("GPU metrics can't be served", extra=fields)
                told = True
                await clock.sleep(backoff.next_delay_s())

    async def _answer_metrics(self, request: web.Request) -> web.Response:
        self._metrics.scrapes.inc()
        headers = {"Content-Type": CONTENT_TYPE, "Vary": "Accept-Encoding"}
        if not _takes_gzip(request.headers.getall("Accept-Encoding", [])):
            return web.Response(body=self._exporter.text(), headers=headers)
        headers["Content-Encoding"] = "gzip"
        return web.Response(body=self._exporter.compressed_text(), headers=headers)

    async def _answer_health(self, _: web.Request) -> web.Response:
        stale = self._exporter.stale_reason()
        return web.Response(status=200 if stale is None else 503, text=f"{stale or 'ok'}\n")


def _takes_gzip(accepted: list[str]) -> bool:
    for part in ",".join(accepted).split(","):
        name, _, quality = part.partition(";")
        if name.strip().lower() == "gzip":
            return quality.replace(" ", "").lower().rstrip("0") not in ("q=", "q=0.")
    return False
