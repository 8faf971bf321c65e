"""The extender's HTTPS port on loopback, in front of a desk that binds."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry

from gpuloom.placement.score import ScoreWeights
from gpuloom.rpc.dev_ca import tls_files
from gpuloom.rpc.tls import CertificateSource, server_ssl_context
from gpuloom.runtime.clock import Clock, SystemClock
from services.scheduler_extender.core.verbs.evaluator import Evaluator
from services.scheduler_extender.core.verbs.filtering import Preferences
from services.scheduler_extender.metrics import ExtenderMetrics
from services.scheduler_extender.verbs.https import ExtenderHttp, HttpsOptions
from services.scheduler_extender.verbs.verbs import Verbs
from tests.mesh.rpc.builders import issue
from tests.mesh.scheduler_extender.desk import Desk, a_desk


class HeldVerbs(Verbs):
    """A bind ends when it is let go."""

    begun = 0
    _go: asyncio.Event | None = None

    @property
    def go(self) -> asyncio.Event:
        self._go = self._go or asyncio.Event()
        return self._go

    async def bind(self, body: bytes) -> bytes:
        self.begun += 1
        await self.go.wait()
        return b'{"Error":""}'


@dataclass(frozen=True)
class PortOptions:
    """`verbs` is made of what the real ones are made of."""

    number: int = 0
    client_certificate: bool = True
    clock: Clock | None = None
    verbs: type[Verbs] = Verbs


AS_IN_PRODUCTION = PortOptions()
"""But for the number of the port, which is any that is free."""


class Port:
    """`unready` is what the extender still lacks."""

    def __init__(self, folder: Path, desk: Desk, options: PortOptions) -> None:
        self.unready = ""
        self.registry = CollectorRegistry()
        source = CertificateSource(tls_files(folder, "scheduler_extender"), lambda outcome: None)
        tls = server_ssl_context(source, options.client_certificate)
        https = HttpsOptions("127.0.0.1", options.number, tls, check_identity=options.client_certificate)
        self.verbs = options.verbs(desk.context, desk.bindings, Preferences(8, Evaluator(ScoreWeights())))
        metrics = ExtenderMetrics(self.registry)
        clock = options.clock or SystemClock()
        self.http = ExtenderHttp(self.verbs, lambda: self.unready, https, clock, metrics)

    @property
    def number(self) -> int:
        return self.http.port

    @property
    def connections(self) -> int:
        return self.http.connections

    @property
    def waits(self) -> int:
        """How many calls wait for their caller, to send its body or to take the answer before."""
        return len(self.http._calls._deadlines._waits)

    def counted(self, verb: str, outcome: str) -> float | None:
        labels = {"verb": verb, "outcome": outcome}
        return self.registry.get_sample_value("gpuloom_scheduler_extender_calls_total", labels)

    def timed(self, verb: str) -> float | None:
        """How many calls of this verb have a duration."""
        name = "gpuloom_scheduler_extender_call_duration_seconds_count"
        return self.registry.get_sample_value(name, {"verb": verb})


def held(port: Port) -> HeldVerbs:
    assert isinstance(port.verbs, HeldVerbs)
    return port.verbs


@asynccontextmanager
async def a_port(folder: Path, options: PortOptions = AS_IN_PRODUCTION) -> AsyncIterator[Port]:
    """With one node, n1, that has one free GPU."""
    async with a_closed_port(folder, options) as port, port.http:
        yield port


@asynccontextmanager
async def a_closed_port(folder: Path, options: PortOptions = AS_IN_PRODUCTION) -> AsyncIterator[Port]:
    """The same; whoever uses it opens and closes it."""
    issue(folder, "scheduler_extender", "kube_scheduler", "discovery")
    async with a_desk() as desk:
        await desk.add_node("n1")
        yield Port(folder, desk, options)
