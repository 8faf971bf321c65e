"""The engine's gRPC service with certificates: costs in parts, who may ask, and verdicts that stop pods."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest
from prometheus_client import CollectorRegistry

from gpuloom.clients import cost as client
from gpuloom.errors import NotAllowedError, NotReadyError
from gpuloom.model.cost import BudgetReport, BudgetVerdict, CostQuestion, PodMatcher
from gpuloom.rpc.channel import RpcChannel
from gpuloom.rpc.dev_ca import CertificateOrder, issue_development_certificates, tls_files
from gpuloom.rpc.environment import RpcEnvironment
from gpuloom.rpc.server import RpcServer, ServerOptions
from gpuloom.runtime.clock import FakeClock, SystemClock
from gpuloom.store.database import Database
from gpuloom.store.settings import StoreConfig, database_url
from gpuloom.v1.cost_engine_pb2_grpc import add_CostEngineServiceServicer_to_server
from services.cost_engine.api.exports import Exports
from services.cost_engine.api.queries import Queries
from services.cost_engine.api.rules import TeamRules
from services.cost_engine.core.intervals import (
    UNITS_PER_GPU,
    Claim,
    NodeInterval,
    NodeTraits,
    PodIdentity,
    PodInterval,
)
from services.cost_engine.core.tracking import NodeChange, PodChange
from services.cost_engine.ingest.consumer import now_ns
from services.cost_engine.metrics import CostMetrics
from services.cost_engine.prices.refresher import Prices
from services.cost_engine.server import ALLOWED_CALLERS, SERVICE, CostEngineServer
from services.cost_engine.store.store import CostStore, FactChanges
from services.scheduler_extender.adapters.budgets import (
    INTERVAL_S,
    WAITING_INTERVAL_S,
    prefetch_verdicts,
    watch_waiting,
)
from services.scheduler_extender.core.verbs.budgets import BEHIND, PATIENCE, BudgetGate
from tests.mesh.waiting import running, until
from tests.unit.scheduler_extender.builders import a_pod, a_ref, gpuloom_share
from tests.unit.scheduler_extender.verbs.test_verbs import Desk

CLOCK = SystemClock()
PODS = 40
VERDICT = BudgetVerdict("lab", "block", "budget lab is used up", (PodMatcher(("team-*",)),))


class Standing:
    """Budgets as they stand."""

    def __init__(self) -> None:
        self.stopping: list[BudgetVerdict] = [VERDICT]

    def reports(self) -> list[BudgetReport]:
        now = datetime.now(UTC)
        return [BudgetReport("lab", "day", now, now, 10, 20, 30, 25, 35, "Exceeded", "block", ("hard",))]

    def verdicts(self) -> list[BudgetVerdict]:
        return self.stopping


class Mesh:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.budgets = Standing()
        self.leads = True
        self.port = 0

    def environment(self, identity: str) -> RpcEnvironment:
        return RpcEnvironment(tls_files(self.folder / "certificates", identity), CollectorRegistry(), CLOCK)

    @asynccontextmanager
    async def channel(self, identity: str) -> AsyncIterator[RpcChannel]:
        address = f"127.0.0.1:{self.port}"
        async with RpcChannel(self.environment(identity), address, "cost_engine") as channel:
            yield channel


@pytest.fixture
async def mesh(tmp_path: Path) -> AsyncIterator[Mesh]:
    found = Mesh(tmp_path)
    order = CertificateOrder(("cost_engine", "scheduler_extender", "discovery", "cli"))
    issue_development_certificates(tmp_path / "certificates", order, CLOCK)
    config = StoreConfig(url=database_url(f"sqlite:///{tmp_path}/cost.db"), threads=2, timeout_s=10.0)
    async with Database(config, CLOCK) as database:
        store = CostStore(database)
        await store.open()
        prices = Prices(store, (), None, CLOCK, CostMetrics(CollectorRegistry()))
        await prices.start()
        await fill(store)
        await store.compute(prices.book, now_ns(CLOCK))
        queries = Queries(store, TeamRules(None, CLOCK), CLOCK, 720)
        parts: Any = (prices, store, CLOCK)
        exports, budgets = Exports(queries, "cluster"), found.budgets
        servicer = CostEngineServer(queries, exports, budgets, parts, lambda: found.leads)  # type: ignore[arg-type]
        server = RpcServer(found.environment("cost_engine"), "127.0.0.1", 0, ServerOptions())
        server.add(servicer, add_CostEngineServiceServicer_to_server, SERVICE, ALLOWED_CALLERS)
        async with server:
            found.port = server.port
            yield found


async def fill(store: CostStore) -> None:
    now = now_ns(CLOCK)
    start = now - 7_200_000_000_000
    await store.epoch_ns(start)
    traits = NodeTraits("n", 8, provider="aws", region="us-east-1", instance_type="p5.48xlarge")
    pods = [
        PodChange(
            PodInterval(f"p{number}", "n1", start, None, Claim(UNITS_PER_GPU // 10, 1, "share")),
            PodIdentity(f"p{number}", "team-a", f"pod-{number}"),
            (start, now),
        )
        for number in range(PODS)
    ]
    await store.save_facts(
        FactChanges([NodeChange(NodeInterval("n1", start, None, traits), (start, now))], pods), now
    )


async def test_an_answer_in_parts_adds_up_to_its_total(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.cost_engine.server.MAX_PAGE", 7)
    async with mesh.channel("cli") as channel:
        answer = await client.query_costs(channel, CostQuestion(group_by=("pod",)))
        summary = await client.cost_summary(channel)
        listed = await client.list_prices(channel, provider="aws", instance_types=("p5.48xlarge",))
        pieces = [piece async for piece in client.export_costs(channel, CostQuestion(step="hour"), "csv")]
        reports = await client.list_budgets(channel)
        saved = await client.savings(channel, datetime.now(UTC) - timedelta(days=1), None)

    assert len(answer.lines) == PODS + 1
    assert sum(line.amounts.cost for line in answer.lines) == answer.total.cost > 0
    assert (summary.priced_nodes, summary.unpriced_nodes) == (1, 0)
    assert summary.nano_usd_per_hour == listed.prices[0].nano_usd_per_hour
    assert b"team-a" in b"".join(pieces)
    assert reports[0].state == "Exceeded"
    assert saved.baseline > saved.actual


async def test_only_those_who_may_ask_are_answered(mesh: Mesh) -> None:
    async with mesh.channel("discovery") as channel:
        with pytest.raises(NotAllowedError):
            await client.cost_summary(channel)
    async with mesh.channel("scheduler_extender") as channel:
        with pytest.raises(NotAllowedError):
            await client.cost_summary(channel)
        assert await client.list_verdicts(channel) == (VERDICT,)
        mesh.leads = False
        with pytest.raises(NotReadyError):
            await client.list_verdicts(channel)


async def test_a_blocked_pod_is_refused_with_the_reason_and_nobody_is_when_the_engine_is_gone() -> None:
    desk = Desk()
    desk._verbs._budgets.verdicts = (VERDICT,)
    pod = a_pod(a_ref("pod"), gpuloom_share(500))
    pod["metadata"]["namespace"] = "team-a"

    refused = await desk.answer("filter", Pod=pod, NodeNames=["n1", "n2"])
    desk._verbs._budgets.verdicts = ()
    passed = await desk.answer("filter", Pod=pod, NodeNames=["n1", "n2"])

    assert refused["FailedNodes"] == dict.fromkeys(("n1", "n2"), VERDICT.reason)
    assert passed["NodeNames"], orjson.dumps(passed)


async def test_a_throttled_pod_waits_while_another_one_waits_that_no_budget_stops() -> None:
    desk, clock = Desk(), FakeClock()
    gate = desk._verbs._budgets
    gate.verdicts = (replace(VERDICT, action="throttle"),)
    throttled, other, gated, old = (
        a_pod(a_ref(name), gpuloom_share(500)) for name in ("mine", "other", "gated", "old")
    )
    throttled["metadata"]["namespace"] = "team-a"
    gated["spec"]["schedulingGates"] = [{"name": "later"}]
    old["metadata"]["creationTimestamp"] = (clock.now() - PATIENCE).isoformat()
    waiting = [throttled, gated, old, other]

    async def filtered() -> dict[str, Any]:
        await clock.advance(WAITING_INTERVAL_S)
        return dict(await desk.answer("filter", Pod=throttled, NodeNames=["n1", "n2"]))

    async with running(lambda: watch_waiting(gate, lambda: waiting, clock)):
        await until(lambda: gate.others_wait)
        refused = await filtered()
        passing = await desk.answer("filter", Pod=other, NodeNames=["n1", "n2"])
        waiting.remove(other)
        await clock.advance(WAITING_INTERVAL_S)
        await until(lambda: not gate.others_wait)
        passed = await filtered()

    assert refused["FailedNodes"] == dict.fromkeys(("n1", "n2"), f"{VERDICT.reason}; {BEHIND}")
    assert passing["NodeNames"]
    assert passed["NodeNames"]


async def test_verdicts_are_dropped_as_soon_as_the_engine_does_not_answer(mesh: Mesh) -> None:
    gate, clock = BudgetGate(), FakeClock()
    async with (
        mesh.channel("scheduler_extender") as channel,
        running(lambda: prefetch_verdicts(channel, gate, clock)),
    ):
        await until(lambda: gate.verdicts)
        mesh.leads = False
        await clock.advance(INTERVAL_S)
        await until(lambda: not gate.verdicts)

    assert gate.refusal({"metadata": {"namespace": "team-a"}}) == ""
