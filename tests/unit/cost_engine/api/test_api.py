"""What others are answered: OpenCost's shape behind a token, and files by the rules of FOCUS 1.2."""

import asyncio
import csv
import io
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from unittest.mock import AsyncMock

import aiohttp
import pytest

from gpuloom.clients.cost import query_costs
from gpuloom.clients.gpu_prices import GpuPrices
from gpuloom.errors import InvalidRequestError, UnavailableError
from gpuloom.kube.objects import JsonObject
from gpuloom.kube.resources import Resource
from gpuloom.kube.reviews import TokenReviews
from gpuloom.model.cost import CostQuestion
from gpuloom.model.gpu import Gpu
from gpuloom.model.money import nano_usd
from gpuloom.model.node import Delivery, NodeMode, NodeState
from gpuloom.model.snapshot import NodeFacts, NodePlace
from gpuloom.runtime.clock import FakeClock, SystemClock
from gpuloom.store.database import Database
from gpuloom.store.settings import StoreConfig, database_url
from gpuloom.v1 import cost_engine_pb2 as pb
from services.cost_engine.api.exports import Exports
from services.cost_engine.api.http import CostHttp
from services.cost_engine.api.queries import Queries, ns_of
from services.cost_engine.api.rules import TeamRules
from services.cost_engine.core.exports import FOCUS_COLUMNS, ExportContext, focus_row
from services.cost_engine.core.grouping import Amounts, CostFact
from services.cost_engine.core.intervals import (
    DAY_NS,
    HOUR_NS,
    UNITS_PER_GPU,
    Claim,
    NodeInterval,
    NodeTraits,
    PodIdentity,
    PodInterval,
)
from services.cost_engine.core.opencost import allocation_request
from services.cost_engine.core.prices import Price, Source
from services.cost_engine.core.tracking import Gap, NodeChange, PodChange
from services.cost_engine.ingest.consumer import now_ns
from services.cost_engine.server import CostEngineServer
from services.cost_engine.store.store import CostStore, FactChanges, StoreSettings
from tests.mesh.waiting import until

START = datetime(2026, 6, 20, 5, tzinfo=UTC)
HOURS = 30
HOSTILE = {"quote": "\"',;\n=cmd|' /C calc'!A0", "unicode": "日本"}


@pytest.fixture
async def queries(tmp_path: Path) -> AsyncIterator[Queries]:
    """Two nodes, one of them spot, for 30 hours; 30 % of each price is not for GPUs."""
    config = StoreConfig(url=database_url(f"sqlite:///{tmp_path}/cost.db"), threads=2, timeout_s=10.0)
    clock = FakeClock(START)
    async with Database(config, SystemClock()) as database:
        store = CostStore(database, StoreSettings(gpu_permille=700))
        await store.open()
        start = now_ns(clock)
        await store.epoch_ns(start)
        prices = [
            Price("", "", "", "t", kind, rate, 0, None, Source.CUSTOM)
            for kind, rate in (("on-demand", 3_060_000_001), ("spot", 1_200_000_000), ("reserved", 7))
        ]
        await store.replace_prices(Source.CUSTOM, prices, start)
        nodes, pods = [], []
        for name, kind in (("a", "on-demand"), ("b", "spot")):
            traits = NodeTraits(name, 2, instance_type="t", capacity_type=kind, pool=f"pool-{kind}")
            nodes.append(NodeChange(NodeInterval(f"n-{name}", start, None, traits), (start, start)))
            claim = Claim(UNITS_PER_GPU // 4, 1, "share")
            interval = PodInterval(f"p-{name}", f"n-{name}", start, start + 7 * HOUR_NS + 13, claim)
            identity = PodIdentity(f"p-{name}", f"team-{name}", "web", HOSTILE)
            pods.append(PodChange(interval, identity, (start, start)))
        await store.save_facts(FactChanges(nodes, pods), start)
        await clock.advance(HOURS * 3600)
        await store.compute(await store.book(), now_ns(clock))
        yield Queries(store, TeamRules(None, clock), clock, 720)


async def test_an_answer_adds_up_and_filters_and_says_that_it_is_not_final(queries: Queries) -> None:
    asked = CostQuestion(START, START + timedelta(hours=HOURS), "day", ("namespace",))

    answer = await queries.costs(asked)

    total = sum(line.amounts.cost for line in answer.lines)
    assert total == answer.total.cost == HOURS * (3_060_000_001 + 1_200_000_000)
    assert {line.group[0] for line in answer.lines} == {"team-a", "team-b", "__idle__", "__host__"}
    assert not answer.reconciled
    only = await queries.costs(CostQuestion(asked.start, asked.end, "all", (), {"pool": ("pool-spot",)}))
    assert only.total.cost == HOURS * 1_200_000_000


async def test_a_team_that_is_filtered_by_has_its_part_once_however_it_is_grouped(
    queries: Queries, tmp_path: Path
) -> None:
    rules = tmp_path / "teams.toml"
    rules.write_text("[[rule]]\nnamespaces = ['team-a']\nteams = { vision = 60, language = 40 }\n")
    queries = Queries(queries._store, TeamRules(rules, queries._clock), queries._clock, 720)
    span = START, START + timedelta(hours=HOURS)
    whole = (await queries.costs(CostQuestion(*span, "all", (), {"namespace": ("team-a",)}))).total.cost

    answers = [
        await queries.costs(CostQuestion(*span, "all", by, {"team": ("vision",)}))
        for by in ((), ("team",), ("namespace", "team"), ("pod",))
    ]

    assert [answer.total for answer in answers] == [answers[0].total] * 4
    assert answers[0].total.cost == pytest.approx(0.6 * whole, rel=1e-6)
    assert [line.group for line in answers[1].lines] == [("vision",)]


async def test_savings_are_by_mechanism_and_add_up(queries: Queries) -> None:
    report = await queries.savings(START, START + timedelta(hours=HOURS))

    assert report.baseline - report.actual == sum(one.nano_usd for one in report.mechanisms)
    assert {one.mechanism for one in report.mechanisms} == {"spot", "sharing"}


async def test_a_summary_has_the_present_rate_for_a_month_that_it_names(queries: Queries) -> None:
    summary = await queries.summary(await queries._store.book())

    assert summary.nano_usd_per_hour == 4_260_000_001
    assert summary.nano_usd_per_month == 720 * summary.nano_usd_per_hour
    assert summary.total.cost == HOURS * 4_260_000_001


@pytest.mark.parametrize(
    "asked",
    [
        CostQuestion(group_by=("nothing",)),
        CostQuestion(filters={"label:": ("x",)}),
        CostQuestion(START, START),
        CostQuestion(START - timedelta(days=5000), START),
        CostQuestion(START - timedelta(days=100), START, "hour"),
        CostQuestion(datetime(2300, 1, 1, tzinfo=UTC), datetime(2300, 1, 2, tzinfo=UTC)),
        CostQuestion(datetime(9999, 12, 31, 23, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, tzinfo=UTC)),
        CostQuestion(datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14))), datetime(1, 1, 2, tzinfo=UTC)),
        CostQuestion(end=datetime(1, 1, 1, tzinfo=UTC)),
    ],
)
async def test_what_can_not_be_asked_is_refused(queries: Queries, asked: CostQuestion) -> None:
    with pytest.raises(InvalidRequestError):
        await queries.costs(asked)


class Direct:
    """A channel to the service without a network. `between` is done before every part but the first."""

    def __init__(self, queries: Queries, between: Callable[[], Awaitable[object]]) -> None:
        parts = None, queries._store, queries._clock
        self._server = CostEngineServer(queries, None, None, parts, lambda: False)  # type: ignore[arg-type]
        self._between = between

    def stub(self, _: object) -> "Direct":
        return self

    async def QueryCosts(self, request: pb.QueryCostsRequest, timeout: float) -> pb.QueryCostsResponse:
        if request.page_token:
            await self._between()
        return await self._server.QueryCosts(request, None)

    async def ListPrices(self, request: pb.ListPricesRequest, timeout: float) -> pb.ListPricesResponse:
        return await self._server.ListPrices(request, None)


async def test_others_reckon_with_what_a_node_is_billed(queries: Queries) -> None:
    """The operator's price before a lower one of the cloud; a part of the on-demand price for spot."""
    store, now = queries._store, now_ns(queries._clock)
    prices = [
        Price("", "", "", "t", "on-demand", 3_000_000_000, 0, None, Source.CUSTOM),
        Price("", "home", "", "t", "on-demand", 2_000_000_000, 0, None, Source.AWS),
    ]
    await store.replace_prices(Source.CUSTOM, prices[:1], now)
    await store.replace_prices(Source.AWS, prices[1:], now)
    known = GpuPrices(None)

    following = asyncio.create_task(known.follow(Direct(queries, AsyncMock()), queries._clock))  # type: ignore[arg-type]
    await until(lambda: bool(known._listed))
    following.cancel()

    def of(uid: str, kind: str) -> int | None:
        gpus = tuple(Gpu(f"GPU-{n}", n, "T4", "turing", 16_384) for n in range(2))
        state = NodeState(uid, uid, NodeMode.GPULOOM, Delivery.NRI, gpus)
        place = NodePlace(region="home", instance_type="t", capacity_type=kind)
        return known.nano_usd_per_gpu_hour(NodeFacts(state, place=place))

    assert (of("n-a", "on-demand"), of("n-b", "spot")) == (1_500_000_000, 600_000_000)
    assert (of("new", "on-demand"), of("new", "reserved"), of("new", "spot")) == (10**9, 10**9, None)


async def test_parts_are_of_one_answer_however_costs_change_while_they_are_read(
    queries: Queries, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.cost_engine.server.MAX_PAGE", 2)
    store, now, start = queries._store, now_ns(queries._clock), ns_of(START)
    await store.save_facts(FactChanges(gaps=[Gap("n-a", "p-a", start, start + HOUR_NS, "lost")]), now)
    changes = 0

    async def somebody_new() -> None:
        nonlocal changes
        if changes == 2:
            return
        changes += 1
        claim = Claim(UNITS_PER_GPU // 8, 1, "share")
        interval = PodInterval(f"new-{changes}", "n-a", start, start + HOUR_NS, claim)
        identity = PodIdentity(f"new-{changes}", f"a{changes}", "web")
        change = PodChange(interval, identity, (start, start + HOUR_NS))
        await store.save_facts(FactChanges(pods=[change]), now)
        await store.compute(await store.book(), now)

    asked = CostQuestion(START, START + timedelta(hours=HOURS), "all", ("namespace",))
    answer = await query_costs(Direct(queries, somebody_new), asked)  # type: ignore[arg-type]

    names = [line.group[0] for line in answer.lines]
    assert sorted(set(names)) == names == ["__host__", "__idle__", "a1", "a2", "team-a", "team-b"]
    assert sum(line.amounts.cost for line in answer.lines) == answer.total.cost
    assert [gap.reason for gap in answer.gaps] == ["lost"]


async def test_where_hours_are_dropped_whole_days_are_told_and_never_half_of_one(queries: Queries) -> None:
    """In an installation that keeps hours for 32 days, 40 days later."""
    store, clock = queries._store, queries._clock
    kept = replace(store.settings, hourly_retention_ns=32 * DAY_NS)
    store.settings = kept
    await clock.advance(40 * 86_400)  # type: ignore[attr-defined]
    await store.compute(await store.book(), now_ns(clock))
    whole = (await queries.costs(CostQuestion(START, clock.now(), "day"))).total.cost
    await store.expire(now_ns(clock))

    asked = CostQuestion(START + timedelta(hours=3), clock.now())
    answer, summary = await queries.costs(asked), await queries.summary(await store.book())
    early = await queries.costs(CostQuestion(START + timedelta(hours=3), START + timedelta(hours=5)))

    assert answer.total.cost == summary.total.cost == whole
    assert early.window.end_ns - early.window.start_ns == DAY_NS
    assert early.total.cost == 19 * 4_260_000_001
    with pytest.raises(InvalidRequestError, match="kept for 32 days"):
        await queries.costs(CostQuestion(START, START + timedelta(hours=3), "hour"))


@pytest.mark.parametrize("token", ["x", "-1", "1" * 10, "٣.x", "2." + "0" * 17])
async def test_a_token_that_is_none_is_refused(queries: Queries, token: str) -> None:
    server = Direct(queries, AsyncMock())

    with pytest.raises(InvalidRequestError):
        await server.QueryCosts(pb.QueryCostsRequest(page_token=token), 1.0)


async def exported(queries: Queries, form: str) -> str:
    asked = CostQuestion(START, START + timedelta(hours=HOURS), "day")
    return "".join([piece async for piece in Exports(queries, "cluster").pieces(asked, form)])


_MANDATORY = [
    "BilledCost",
    "BillingAccountId",
    "BillingAccountName",
    "BillingCurrency",
    "BillingPeriodStart",
    "BillingPeriodEnd",
    "ChargeCategory",
    "ChargeDescription",
    "ChargePeriodStart",
    "ChargePeriodEnd",
    "ContractedCost",
    "EffectiveCost",
    "InvoiceIssuerName",
    "ListCost",
    "PricingQuantity",
    "PricingUnit",
    "ProviderName",
    "PublisherName",
    "ServiceCategory",
    "ServiceName",
]
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
_ALLOWED = {
    "ChargeCategory": {"Usage", "Purchase", "Tax", "Credit", "Adjustment"},
    "ChargeClass": {"", "Correction"},
    "ChargeFrequency": {"One-Time", "Recurring", "Usage-Based"},
    "PricingCategory": {"Standard", "Dynamic", "Committed", "Other"},
    "ServiceCategory": {"Compute"},
    "ServiceSubcategory": {"Containers", "Virtual Machines", "Serverless Compute", "Other (Compute)"},
    "BillingCurrency": {"USD"},
}


async def test_a_focus_file_keeps_the_rules_of_the_specification(queries: Queries) -> None:
    rows = list(csv.DictReader(io.StringIO(await exported(queries, "focus"))))

    assert tuple(rows[0]) == FOCUS_COLUMNS
    assert len(set(FOCUS_COLUMNS)) == len(FOCUS_COLUMNS)
    for row in rows:
        assert all(row[name] for name in _MANDATORY)
        assert all(row[name] in allowed for name, allowed in _ALLOWED.items())
        times = [row[name] for name in row if name.endswith(("PeriodStart", "PeriodEnd"))]
        assert all(_TIME.fullmatch(time) for time in times)
        assert row["BillingPeriodStart"] <= row["ChargePeriodStart"] < row["ChargePeriodEnd"]
        assert row["ChargePeriodEnd"] <= row["BillingPeriodEnd"]
        assert bool(row["ConsumedQuantity"]) == bool(row["ConsumedUnit"])
        assert bool(row["SkuId"]) == bool(row["SkuPriceId"])
        assert all(isinstance(value, str) for value in json.loads(row["Tags"]).values())
        for price, cost in (("ListUnitPrice", "ListCost"), ("ContractedUnitPrice", "ContractedCost")):
            product = Decimal(row[price]) * Decimal(row["PricingQuantity"])
            assert abs(product - Decimal(row[cost])) < Decimal("0.0000000005")
        committed = row["PricingCategory"] == "Committed"
        assert {bool(row[name]) for name in row if name.startswith("CommitmentDiscount")} == {committed}
    assert sum(nano_usd(row["BilledCost"]) for row in rows) == HOURS * 4_260_000_001
    dynamic = [row for row in rows if row["PricingCategory"] == "Dynamic"]
    assert sum(nano_usd(row["BilledCost"]) for row in dynamic) == HOURS * 1_200_000_000


def test_a_reserved_node_is_a_commitment_that_is_used_and_a_missing_price_is_called_so() -> None:
    context = ExportContext(HOUR_NS, 2**62)
    for hours, kind, quality in ((720 * 8, "reserved", "exact"), (1, "on-demand", ""), (0, "reserved", "")):
        amounts = Amounts(
            cost=10**15 + 7, unit_ms=hours * 3_600_000 * UNITS_PER_GPU // 7, on_demand=10**15 + 7
        )
        fact = CostFact(0, "p", amounts, node="n", instance_type="t", capacity_type=kind, quality=quality)

        row = dict(zip(FOCUS_COLUMNS, focus_row(fact, context), strict=True))

        product = Decimal(row["ListUnitPrice"]) * Decimal(row["PricingQuantity"])
        assert abs(product - Decimal(row["ListCost"])) < Decimal("0.0000000005")
        assert row["CommitmentDiscountStatus"] == ("Used" if kind == "reserved" else "")
        assert json.loads(row["Tags"])["gpuloom/priceQuality"] == (quality or "missing")


async def test_other_files_add_up_too_and_labels_come_back_as_they_were(queries: Queries) -> None:
    plain = list(csv.DictReader(io.StringIO(await exported(queries, "csv"))))
    lines = [json.loads(line) for line in (await exported(queries, "json")).splitlines()]

    assert plain == lines
    assert sum(nano_usd(row["cost_usd"]) for row in plain) == HOURS * 4_260_000_001
    assert json.loads(next(row["labels"] for row in plain if row["pod"])) == HOSTILE


class Reviews:
    """Kubernetes, which knows one token."""

    def __init__(self) -> None:
        self.asked = 0
        self.away = False

    async def create(self, resource: Resource, obj: JsonObject) -> JsonObject:
        if self.away:
            raise UnavailableError("no answer")
        self.asked += 1
        return {"status": {"authenticated": obj["spec"]["token"] == "good"}}


def asked_for(**query: str) -> CostQuestion:
    return allocation_request(query, datetime(2026, 3, 5, 7, tzinfo=UTC)).question


def test_opencosts_clients_are_understood_as_it_understands_them() -> None:
    assert asked_for(window="7d").step == "all"
    assert asked_for(window="2d", step="24h").step == "day"
    assert asked_for(window="60m", step="1h").step == "all"
    assert asked_for(window="2h", step="60m").step == "hour"
    assert asked_for(window="2h", step="1h", accumulate="true").step == "all"
    assert asked_for(filterNamespaces="a, b,").filters == {"namespace": ("a", "b")}
    february = asked_for(window="lastmonth")
    assert (february.start, february.end) == (
        datetime(2026, 2, 1, tzinfo=UTC),
        datetime(2026, 3, 1, tzinfo=UTC),
    )
    assert asked_for(window="1769904000,1772323200") == february
    with pytest.raises(ValueError, match="step must be"):
        asked_for(window="9d", step="3d")
    assert asked_for(window="9d", includeIdle="true", filter="").filters == {}
    for other in ("filter", "filterLabels", "filterNodes"):
        with pytest.raises(ValueError, match=f"{other} is not understood"):
            asked_for(window="9d", **{other: 'namespace:"a"'})


async def test_opencosts_clients_are_answered_in_its_shape_if_kubernetes_accepts_their_token(
    queries: Queries,
) -> None:
    reviews, clock = Reviews(), queries._clock
    tokens = TokenReviews(reviews, clock)
    http = CostHttp(queries, Exports(queries, "cluster"), tokens, ("127.0.0.1", 0, None), clock)
    good = {"Authorization": "Bearer good"}
    async with http, aiohttp.ClientSession(f"http://127.0.0.1:{http.port}") as session:

        async def get(path: str, headers: dict[str, str] | None = None) -> tuple[int, str]:
            async with session.get(path, headers=headers or good) as answer:
                return answer.status, await answer.text()

        status, body = await get("/allocation?window=30h&aggregate=namespace&accumulate=true")
        (found,) = json.loads(body)["data"]
        assert (status, set(found)) == (200, {"team-a", "team-b", "__idle__", "__host__"})
        assert sum(each["totalCost"] for each in found.values()) == pytest.approx(HOURS * 4.260000001)
        assert {"name", "properties", "window", "start", "end", "minutes", "gpuHours", "gpuCost"} <= set(
            found["team-a"]
        )
        assert len(json.loads((await get("/allocation/compute?window=30h&step=1h"))[1])["data"]) == HOURS
        assert (await get("/export/focus.csv?window=2d"))[1].startswith("AvailabilityZone,BilledCost")
        assert [(await get(path))[0] for path in ("/allocation?window=x", "/allocation?aggregate=x")] == [
            400,
            400,
        ]
        assert (await get("/export/other"))[0] == 404
        assert reviews.asked == 1
        bad = ({"Authorization": "Bearer bad"}, {"Authorization": "Basic good"}, {"Authorization": ""})
        assert [(await get("/allocation", headers))[0] for headers in bad] == [401, 401, 401]
        assert (await get("/healthz", {"Authorization": ""}))[0] == 200
        reviews.away = True
        assert (await get("/allocation", {"Authorization": "Bearer other"}))[0] == 503


async def test_an_export_that_breaks_off_is_never_taken_for_a_whole_one(queries: Queries) -> None:
    """With HTTP/1.0, as many proxies speak it, a quiet end of the connection is the end of the file."""

    class Breaking(Exports):
        async def pieces(self, question: CostQuestion, form: str) -> AsyncIterator[str]:
            yield "start,end\n"
            raise UnavailableError("the database is away")

    http = CostHttp(queries, Breaking(queries, "cluster"), None, ("127.0.0.1", 0, None), queries._clock)
    async with http, aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientPayloadError):
            async with session.get(f"http://127.0.0.1:{http.port}/export/costs.csv") as answer:
                await answer.read()
        reader, writer = await asyncio.open_connection("127.0.0.1", http.port)
        writer.write(b"GET /export/costs.csv HTTP/1.0\r\n\r\n")
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()
