"""The simulated API server as a whole: puts the parts together, listens, keeps house, and ends cleanly."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from types import TracebackType
from typing import Any, Self

from aiohttp import web

from gpuloom.runtime.clock import Clock, SystemClock
from gpuloom.sim.kubeapi.admission.caller import WebhookCaller
from gpuloom.sim.kubeapi.admission.chain import AdmissionChain
from gpuloom.sim.kubeapi.endpoints.verbs import Verbs
from gpuloom.sim.kubeapi.endpoints.watch import WatchHub
from gpuloom.sim.kubeapi.faults import Faults
from gpuloom.sim.kubeapi.http import MAX_BODY_BYTES, Frontend
from gpuloom.sim.kubeapi.storage.collection import Object
from gpuloom.sim.kubeapi.storage.database import Change
from gpuloom.sim.kubeapi.storage.journal import Journal
from gpuloom.sim.kubeapi.verbs.deletion import expire_events
from gpuloom.sim.kubeapi.verbs.disruption import Disruptions
from gpuloom.sim.kubeapi.verbs.preinstalled import install
from gpuloom.sim.kubeapi.verbs.store import Store

_MAX_LINE_BYTES = 64 * 1024
_SHUTDOWN_TIMEOUT_S = 2.0
_BUDGET_INTERVAL_S = 0.5
_EVENT_SWEEP_INTERVAL_S = 60.0
_EVENT_LIFETIME_S = 3600.0
_MAX_EVENTS = 20_000

_log = logging.getLogger(__name__)


class SimKubeApi:
    """A Kubernetes API server in this process. Use it as an async context manager."""

    def __init__(  # noqa: PLR0913 (one server, its settings by name)
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        clock: Clock | None = None,
        token: str | None = None,
        bookmark_interval_s: float = 10.0,
        history: int = 5000,
        journal: Journal | None = None,
        changes: Iterable[Change] = (),
        preinstalled: Iterable[Object] = (),
    ) -> None:
        self._clock = clock or SystemClock()
        self._address = (host, port)
        self._journal = journal
        sink = journal.append if journal is not None else None
        self.store = Store(self._clock, history=history, changes=changes, sink=sink)
        install(self.store, preinstalled)
        self.faults = Faults(self._clock)
        self._hub = WatchHub(self.store, self._clock, bookmark_interval_s=bookmark_interval_s)
        self._disruptions = Disruptions(self.store)
        verbs = Verbs(self.store, self._disruptions, self._clock)
        self._caller = WebhookCaller(self._clock)
        admission = AdmissionChain(self.store, verbs, self._caller)
        self._frontend = Frontend(self.store, verbs, admission, self._hub, self.faults, self._clock)
        if token is not None:
            self._frontend.require_token(token)
        self._runner: web.AppRunner | None = None
        self._loops: list[asyncio.Task[None]] = []
        self._url = ""

    @property
    def url(self) -> str:
        return self._url

    @property
    def watches(self) -> int:
        """How many watches are open."""
        return len(self._hub)

    def expire_watches(self) -> None:
        """End all watches and forget history: a watch from any resourceVersion seen so far gets 410."""
        self.store.compact()
        self._hub.end_all()

    def disconnect_watches(self) -> None:
        """Cut the connections of all watches, without a proper end."""
        self._hub.cut_all()

    def snapshot(self) -> Sequence[Change]:
        """A backup of everything, to be restored later."""
        return tuple(self.store.database.snapshot())

    async def restore(self, snapshot: Sequence[Change]) -> None:
        """Go back to that backup, resourceVersions included, and break all watches."""
        self.store.database.rewind(snapshot)
        self._hub.cut_all()
        if self._journal is not None:
            await self._journal.compact(self.store.database.snapshot)

    async def run(self) -> None:
        """Return never; raise what ended one of the loops the server lives by."""
        await asyncio.gather(*self._loops)

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.router.add_route("*", "/{path:.*}", self._frontend.handle)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            shutdown_timeout=_SHUTDOWN_TIMEOUT_S,
            max_line_size=_MAX_LINE_BYTES,
            max_field_size=_MAX_LINE_BYTES,
        )
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, *self._address, backlog=1024).start()
        except OSError:
            await self._runner.cleanup()
            raise
        host, port = self._runner.addresses[0][:2]
        self._url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        self._start_loops()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        self._hub.end_all()
        if self._runner is not None:
            await self._runner.cleanup()
        await self._caller.close()
        if self._journal is not None:
            self._journal.close()

    def _start_loops(self) -> None:
        self._start(self._hub.run())
        self._start(self._every(_BUDGET_INTERVAL_S, self._disruptions.refresh))
        self._start(self._every(_EVENT_SWEEP_INTERVAL_S, self._sweep_events))
        if self._journal is not None:
            self._start(self._journal.run(self._clock, self.store.database.snapshot))

    def _start(self, loop: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(loop)
        task.add_done_callback(_report)
        self._loops.append(task)

    async def _every(self, interval_s: float, act: Callable[[], None]) -> None:
        while True:
            await self._clock.sleep(interval_s)
            try:
                act()
            except OSError as error:
                # The journal refused a change (a full disk, say): the next round may fare better.
                _log.error("housekeeping was put off", extra={"error": str(error)})

    def _sweep_events(self) -> None:
        expire_events(self.store.database, _EVENT_LIFETIME_S, _MAX_EVENTS)


def _report(task: asyncio.Task[None]) -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None:
        _log.error("a loop of the API server ended", exc_info=error)
