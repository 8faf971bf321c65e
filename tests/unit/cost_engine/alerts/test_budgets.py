"""Budgets: each crossing is told once, whoever leads; grace; forecasts; who is stopped."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from gpuloom.codec.cost import verdict_to_proto, verdicts_from_proto
from gpuloom.codec.custom.budget import cost_budget
from gpuloom.errors import ConflictError, UnavailableError
from gpuloom.kube.access import KubeAccess
from gpuloom.kube.client import KubeClient
from gpuloom.kube.events import EventRecorder
from gpuloom.kube.objects import JsonObject
from gpuloom.kube.resources import COST_BUDGETS
from gpuloom.model.budget import AlertChannel as ChannelSpec
from gpuloom.model.budget import (
    AlertSeverity,
    BudgetAlert,
    BudgetPeriod,
    BudgetState,
    ChannelType,
    CostBudgetStatus,
)
from gpuloom.runtime.clock import FakeClock, SystemClock
from gpuloom.runtime.config import load_config
from gpuloom.sim.kubeapi import SimKubeApi
from gpuloom.store.database import Database
from gpuloom.store.settings import StoreConfig, database_url
from gpuloom.v1 import cost_engine_pb2 as pb
from services.cost_engine.alerts.budgets import MAX_SENDS, SEND_S, Budgets, BudgetWriter
from services.cost_engine.alerts.channels import (
    ConfiguredChannels,
    WebhookChannel,
    alertmanager_body,
    json_body,
    slack_body,
)
from services.cost_engine.api.rules import TeamRules
from services.cost_engine.config import AlertsConfig
from services.cost_engine.core.budgets import Crossing, Period, Spent, forecast, period_at
from services.cost_engine.core.grouping import CostFact
from services.cost_engine.core.intervals import (
    HOUR_NS,
    UNITS_PER_GPU,
    Claim,
    NodeInterval,
    NodeTraits,
    PodIdentity,
    PodInterval,
)
from services.cost_engine.core.prices import Price, Source
from services.cost_engine.core.tracking import NodeChange, PodChange
from services.cost_engine.ingest.consumer import now_ns
from services.cost_engine.metrics import CostMetrics
from services.cost_engine.store import costs
from services.cost_engine.store.store import CostStore, FactChanges
from tests.contract.crds.manifests import DEFINITIONS
from tests.mesh.waiting import until

START = datetime(2026, 6, 20, tzinfo=UTC)


def a_budget(limit: float, *, action: str = "alert", grace: int = 0, **scope: object) -> JsonObject:
    enforcement = {"action": action, "gracePeriodMinutes": grace}
    return {
        "apiVersion": "gpu-autoscaler.io/v1alpha1",
        "kind": "CostBudget",
        "metadata": {"name": "lab", "uid": "b1", "resourceVersion": "1"},
        "spec": {"monthlyLimit": limit, "period": "day", "scope": scope, "enforcement": enforcement},
    }


class Observed:
    def __init__(self, *budgets: JsonObject) -> None:
        self.budgets = list(budgets)

    def objects(self) -> list[JsonObject]:
        return self.budgets


class Recorded:
    """Everybody who is told, and the status that is written."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.sent: list[str] = []
        self.status: CostBudgetStatus | None = None
        self.broken = False
        self.readonly = False
        self.hanging = 0

    def tell(self, obj: JsonObject, crossing: Crossing) -> None:
        self.events.append(crossing.alert.name)

    async def write_status(self, obj: JsonObject, status: CostBudgetStatus) -> None:
        if self.readonly:
            raise ConflictError("somebody else wrote it")
        self.status = status

    def of(self, crossing: Crossing) -> Sequence["Receiver"]:
        return [Receiver(f"recorded:{crossing.budget}", self)]


@dataclass(frozen=True)
class Receiver:
    name: str
    outside: Recorded

    async def send(self, crossing: Crossing) -> None:
        if self.outside.broken:
            raise UnavailableError("no answer")
        if crossing.budget.startswith("slow"):
            self.outside.hanging += 1
            await asyncio.Event().wait()
        self.outside.sent.append(crossing.alert.name)


class Stage:
    """A node for 10 USD an hour, half of it held by namespace `lab`, in a database that outlives engines."""

    def __init__(self, store: CostStore, clock: FakeClock) -> None:
        self.store = store
        self.clock = clock
        self.outside = Recorded()

    async def prepare(self) -> None:
        start = now_ns(self.clock)
        traits = NodeTraits("n", 2, instance_type="t")
        claim = Claim(UNITS_PER_GPU, 1)
        node = NodeChange(NodeInterval("n1", start, None, traits), (start, start + 1))
        identity = PodIdentity("p1", "lab", "p", {"gpu-project": "x"})
        pod = PodChange(PodInterval("p1", "n1", start, None, claim), identity, (start, start + 1))
        await self.store.replace_prices(
            Source.CUSTOM, [Price("", "", "", "t", "on-demand", 10 * 10**9, 0, None, Source.CUSTOM)], start
        )
        await self.store.save_facts(FactChanges([node], [pod]), start)

    def an_engine(self, *budgets: JsonObject, rules: Path | None = None) -> Budgets:
        """Another leader, with nothing in its memory."""
        return Budgets(
            self.store,
            Observed(*budgets),  # type: ignore[arg-type]
            TeamRules(rules, self.clock),
            (self.outside, self.outside),  # type: ignore[arg-type]
            self.clock,
            CostMetrics(CollectorRegistry()),
        )

    async def after(self, hours: float, engine: Budgets) -> None:
        await self.clock.advance(hours * 3600)
        await self.store.compute(await self.store.book(), now_ns(self.clock))
        await engine.look()


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    config = StoreConfig(url=database_url(f"sqlite:///{tmp_path}/cost.db"), threads=2, timeout_s=10.0)
    async with Database(config, SystemClock()) as database:
        store = CostStore(database)
        await store.open()
        found = Stage(store, FakeClock(START))
        await found.prepare()
        yield found


async def test_each_crossing_is_told_once_also_by_the_next_leader(stage: Stage) -> None:
    budget = a_budget(10.0, namespaces=["lab"])
    first = stage.an_engine(budget)
    await stage.after(1, first)
    assert (stage.outside.events, stage.outside.sent) == ([], [])

    await stage.after(0.7, first)
    await stage.after(0.01, stage.an_engine(budget))
    assert (stage.outside.events, stage.outside.sent) == (["soft"], ["soft"])

    await stage.after(1, stage.an_engine(budget))
    await stage.after(1, stage.an_engine(budget))

    assert (stage.outside.events, stage.outside.sent) == (["soft", "hard"], ["soft", "hard"])
    assert stage.outside.status is not None
    assert stage.outside.status.state == "Exceeded"


async def test_a_receiver_that_was_away_is_told_later_and_the_others_not_again(stage: Stage) -> None:
    engine, stage.outside.broken = stage.an_engine(a_budget(1.0)), True
    await stage.after(1, engine)
    assert (stage.outside.events, stage.outside.sent) == (["soft", "hard"], [])

    stage.outside.broken = False
    await stage.after(0.1, engine)
    await stage.after(0.1, engine)

    assert (stage.outside.events, stage.outside.sent) == (["soft", "hard"], ["soft", "hard"])


async def test_receivers_that_hang_hold_up_neither_the_others_nor_what_is_stopped(stage: Stage) -> None:
    budgets = [a_budget(1.0, action="block") for _ in range(MAX_SENDS)]
    for number, budget in enumerate(budgets):
        budget["metadata"] |= {"name": f"slow-{number:02}" if number else "zebra", "uid": f"u{number}"}
    await stage.clock.advance(3600)
    await stage.store.compute(await stage.store.book(), now_ns(stage.clock))
    engine = stage.an_engine(*budgets[1:], budgets[0])

    looked = asyncio.create_task(engine.look())
    await until(lambda: stage.outside.hanging == MAX_SENDS)
    assert len(engine.verdicts()) == len(budgets)
    await stage.clock.advance(SEND_S)
    await looked
    again = asyncio.create_task(engine.look())
    await until(lambda: stage.outside.sent == ["soft", "hard"])
    await stage.clock.advance(SEND_S)
    await again


async def test_a_status_that_can_not_be_written_or_a_database_that_is_away_lets_nobody_through(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.outside.readonly = True
    budget = a_budget(1.0, action="block")
    engine = stage.an_engine(budget)
    await stage.after(1, engine)
    assert len(engine.verdicts()) == 1

    monkeypatch.setattr(stage.store, "facts", unavailable)
    await engine.look()

    assert len(engine.verdicts()) == 1
    budget["spec"]["monthlyLimit"] = 100.0
    await engine.look()
    assert engine.verdicts() == []


async def unavailable(*_: object) -> list[CostFact]:
    raise UnavailableError("the database is away")


async def test_an_alert_called_limit_does_not_hide_that_the_limit_is_reached(stage: Stage) -> None:
    budget = a_budget(10.0, action="block")
    budget["spec"]["alerts"] = [{"name": "limit", "thresholdPercent": 50}]
    engine = stage.an_engine(budget)
    await stage.after(0.6, engine)
    assert engine.verdicts() == []

    await stage.after(0.6, engine)

    assert len(engine.verdicts()) == 1


async def test_a_limit_that_is_raised_is_a_new_one_to_be_told_of_and_has_a_grace_of_its_own(
    stage: Stage,
) -> None:
    low, high = (a_budget(limit, action="block", grace=30) for limit in (10.0, 40.0))
    await stage.after(1, stage.an_engine(low))
    assert sorted(stage.outside.sent) == ["hard", "soft"]

    engine = stage.an_engine(high)
    await stage.after(1, engine)
    assert sorted(stage.outside.sent) == ["hard", "soft"]
    await stage.after(2, engine)

    assert sorted(stage.outside.sent) == sorted(stage.outside.events) == ["hard", "hard", "soft", "soft"]
    assert engine.verdicts() == []
    await stage.after(0.6, engine)
    assert len(engine.verdicts()) == 1
    # Lower again: it was told of, and is exceeded since then.
    engine = stage.an_engine(a_budget(20.0, action="block", grace=30))
    await stage.after(0.1, engine)
    assert (len(engine.verdicts()), len(stage.outside.sent)) == (1, 4)


async def test_a_threshold_that_is_moved_to_the_limit_hides_from_nobody_that_it_is_reached(
    stage: Stage,
) -> None:
    budget = a_budget(10.0, action="block")
    budget["spec"]["alerts"] = [{"name": "only", "thresholdPercent": 50}]
    await stage.after(0.6, stage.an_engine(budget))
    budget["spec"]["alerts"] = [{"name": "only", "thresholdPercent": 100}]
    engine = stage.an_engine(budget)

    await stage.after(0.6, engine)

    assert len(engine.verdicts()) == 1
    assert stage.outside.sent == ["only", "only"]


@pytest.mark.parametrize("action", ["block", "throttle"])
async def test_new_pods_are_stopped_after_the_grace_and_only_those_of_the_scope(
    stage: Stage, action: str
) -> None:
    budget = a_budget(5.0, action=action, grace=30, namespaces=["lab"], labels={"gpu-project": "x"})
    await stage.after(1.1, stage.an_engine(budget))
    engine = stage.an_engine(budget)
    await stage.after(0.1, engine)
    assert engine.verdicts() == []

    await stage.after(0.5, engine)

    (verdict,) = engine.verdicts()
    assert "budget lab is used up" in verdict.reason
    assert verdict.action == action
    assert verdict.stops("lab", {"gpu-project": "x"})
    assert not verdict.stops("lab", {})
    assert not verdict.stops("other", {"gpu-project": "x"})


async def test_a_budget_that_only_alerts_stops_nobody_and_a_new_day_begins_anew(stage: Stage) -> None:
    engine = stage.an_engine(a_budget(1.0))
    await stage.after(2, engine)
    assert (engine.verdicts(), engine.reports()[0].state) == ([], "Exceeded")

    await stage.after(22.01, engine)

    report = engine.reports()[0]
    assert (report.state, report.period_start) == ("OK", datetime(2026, 6, 21, tzinfo=UTC))


async def test_a_team_pays_its_part(stage: Stage, tmp_path: Path) -> None:
    rules = tmp_path / "teams.toml"
    rules.write_text('[[rule]]\nnamespaces = ["l*"]\nteams = { a = 60, b = 40 }\n')
    engine = stage.an_engine(a_budget(100.0, teams=["a"]), rules=rules)

    await stage.after(2, engine)

    assert engine.reports()[0].spend == 6 * 10**9


async def test_a_month_of_many_pods_is_read_by_day_and_today_by_hour_and_adds_up_exactly(
    stage: Stage, tmp_path: Path
) -> None:
    """Also when hours are dropped sooner; and its forecast goes by the hour in which spending began."""
    rules = tmp_path / "teams.toml"
    rules.write_text('[[rule]]\nlabels = { gpu-project = "y" }\nteams = { a = 1 }\n')
    scopes: dict[str, dict[str, Any]] = {
        "all": {},
        "late": {"namespaces": ["late"]},
        "x": {"labels": {"gpu-project": "x"}},
    }
    budgets = [a_budget(1e6, **scope) for scope in (*scopes.values(), {"teams": ["a"]})]
    for name, budget in zip((*scopes, "a"), budgets, strict=True):
        budget["metadata"]["name"] = budget["metadata"]["uid"] = name
        budget["spec"]["period"] = "month"
    engine = stage.an_engine(*budgets, rules=rules)
    await stage.clock.advance(18 * 3600)
    start = now_ns(stage.clock)
    pods = [
        PodChange(
            PodInterval(f"late-{number}", "n1", start, None, Claim(UNITS_PER_GPU // 10, 1)),
            PodIdentity(f"late-{number}", "late", "p", {"gpu-project": "y", "own": str(number)}),
            (start, start + 1),
        )
        for number in range(10)
    ]
    await stage.store.save_facts(FactChanges([], pods), start)

    await stage.after(57.5, engine)

    first_ns = int(START.timestamp()) * 10**9
    facts = await stage.store.spending(first_ns, now_ns(stage.clock), frozenset({"gpu-project"}))
    found = {report.name: report for report in engine.reports()}
    spent = {name: report.spend / 10**9 for name, report in found.items()}
    assert spent == {"all": 755.0, "late": 287.5, "x": 377.5, "a": 287.5}
    assert found["late"].forecast == found["a"].forecast == 5 * (11 * 24 - 18) * 10**9
    assert len(facts) <= 3 * (3 + 4)
    await stage.store.write(lambda session: costs.drop_hours_before(session, first_ns + 48 * HOUR_NS))
    await engine.look()
    assert {report.name: report.spend / 10**9 for report in engine.reports()} == spent


async def test_pods_that_another_team_pays_for_are_not_stopped(stage: Stage, tmp_path: Path) -> None:
    """As costs are told: the first rule that matches decides."""
    rules = tmp_path / "teams.toml"
    rules.write_text(
        '[[rule]]\nnamespaces = ["far"]\nteams = { c = 1 }\n'
        '[[rule]]\npools = ["own"]\nteams = { c = 1 }\n'
        '[[rule]]\nlabels = { gpu-project = "s*" }\nteams = { b = 1 }\n'
        '[[rule]]\nnamespaces = ["lab-b"]\nteams = { b = 1, a = 1 }\n'
        '[[rule]]\nnamespaces = ["lab*"]\nteams = { a = 1 }\n'
    )
    engine = stage.an_engine(a_budget(1.0, action="block", teams=["a"]), rules=rules)
    other = a_budget(1.0, action="block", teams=["b"], labels={"gpu-project": "x"})
    await stage.after(2, engine)

    told = pb.ListBudgetVerdictsResponse(verdicts=map(verdict_to_proto, engine.verdicts()))
    (verdict,) = verdicts_from_proto(told)

    assert verdict.stops("lab", {})
    assert verdict.stops("lab", {"gpu-project": "x"})
    assert not verdict.stops("lab", {"gpu-project": "search"})
    assert verdict.stops("lab-b", {})
    assert not verdict.stops("lab-b", {"gpu-project": "search"})
    assert [len(matcher.unless) for matcher in verdict.matchers] == [1, 1]
    elsewhere = stage.an_engine(other, rules=rules)
    await stage.after(0.1, elsewhere)
    assert elsewhere.verdicts() == []


@pytest.mark.parametrize(
    ("rule", "action", "told"),
    [
        ('pools = ["own"]', "block", "block stops no pods: the rules of its teams name node pools"),
        ('namespaces = ["far"]', "throttle", "throttle stops no pods: no team rule gives its teams pods"),
        ('namespaces = ["l*"]', "block", None),
        ('pools = ["own"]', "alert", None),
    ],
)
async def test_the_owner_of_a_budget_is_told_what_its_action_can_not_stop(
    stage: Stage, tmp_path: Path, rule: str, action: str, told: str | None
) -> None:
    rules = tmp_path / "teams.toml"
    rules.write_text(f"[[rule]]\n{rule}\nteams = {{ a = 1 }}\n")
    budget = a_budget(100.0, action=action, teams=["a"], namespaces=["lab"])

    await stage.an_engine(budget, rules=rules).look()

    status = stage.outside.status
    assert status is not None
    assert (status.message or "")[: len(told or "")] == (told or "")
    assert (status.message is None) == (told is None)


async def test_what_can_be_done_again_is_no_longer_told_in_a_budgets_status() -> None:
    told = [
        CostBudgetStatus(10**9, 2 * 10**9, BudgetState.OK, "block stops no pods"),
        CostBudgetStatus(10**9, 2 * 10**9, BudgetState.OK),
    ]
    budget = a_budget(1.0, action="block", teams=["a"])
    del budget["metadata"]["resourceVersion"]
    async with (
        SimKubeApi(preinstalled=DEFINITIONS.values()) as api,
        KubeClient(KubeAccess(api.url), SystemClock()) as client,
    ):
        await client.create(COST_BUDGETS, budget)
        writer, found = BudgetWriter(client, EventRecorder(client, "test", "test", SystemClock())), []
        for status in told:
            await writer.write_status(await client.get(COST_BUDGETS, "lab"), status)
            found.append(cost_budget(await client.get(COST_BUDGETS, "lab")).status)

    assert found == told


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=48), st.integers(1, 400))
def test_a_forecast_is_never_below_what_was_spent_and_within_its_band(hours: list[int], left: int) -> None:
    start = 495_000 * HOUR_NS
    stretches = [Spent(start + place * HOUR_NS, HOUR_NS, amount) for place, amount in enumerate(hours)]
    now = start + len(hours) * HOUR_NS

    found = forecast(stretches, Period(start, now + left * HOUR_NS), now)

    assert sum(hours) <= found.low <= found.expected <= found.high


@pytest.mark.parametrize(
    ("kind", "first", "last"),
    [
        (BudgetPeriod.DAY, datetime(2026, 12, 31, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC)),
        (BudgetPeriod.WEEK, datetime(2026, 12, 28, tzinfo=UTC), datetime(2027, 1, 4, tzinfo=UTC)),
        (BudgetPeriod.MONTH, datetime(2026, 12, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC)),
    ],
)
def test_periods_are_the_calendars(kind: BudgetPeriod, first: datetime, last: datetime) -> None:
    found = period_at(kind, int(datetime(2026, 12, 31, 23, 59, tzinfo=UTC).timestamp()) * 10**9)

    assert (found.start_ns, found.end_ns) == (int(first.timestamp()) * 10**9, int(last.timestamp()) * 10**9)


SETTINGS = load_config(AlertsConfig, {"GPULOOM_COST_SMTP_TLS": "false"})


class MailServer:
    """Speaks as much SMTP as a sender needs; keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.refuses = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._say(writer, "220 mail.example.com ESMTP")
        while line := (await reader.readline()).decode().rstrip("\r\n"):
            self.told.append(line)
            word = line.split(" ")[0].upper()
            if word == "EHLO":
                await self._say(writer, "250-mail.example.com\r\n250 AUTH PLAIN")
            elif word == "AUTH":
                await self._say(writer, "235 welcome")
            elif word == "RCPT" and self.refuses:
                await self._say(writer, "550 nobody of that name")
            elif word == "DATA":
                await self._say(writer, "354 go on")
                self.told += (await reader.readuntil(b"\r\n.\r\n")).decode().splitlines()
                await self._say(writer, "250 taken")
            else:
                await self._say(writer, "221 bye" if word == "QUIT" else "250 fine")
        writer.close()

    @staticmethod
    async def _say(writer: asyncio.StreamWriter, text: str) -> None:
        writer.write(f"{text}\r\n".encode())
        await writer.drain()


async def test_a_mail_goes_to_those_whom_the_alert_names_and_a_refusal_counts_as_not_sent() -> None:
    postman = MailServer()
    server = await asyncio.start_server(postman.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    config = replace(
        SETTINGS,
        smtp_address=f"127.0.0.1:{port}",
        smtp_username="gpuloom",
        smtp_password="secret",
        smtp_from="gpus@example.com",
        smtp_to=("finops@example.com",),
    )
    named = ChannelSpec(ChannelType.EMAIL, {"to": "lab@example.com, boss@example.com"})
    soft = Crossing("b1", "lab", 0, BudgetAlert("soft", 80, channels=(named,)), 9, 10)
    forged = ChannelSpec(ChannelType.EMAIL, {"to": "lab@example.com\r\nBcc: x@example.com"})
    hard = Crossing("b1", "lab", 0, BudgetAlert("hard", 100), 10, 10)
    channels = ConfiguredChannels(config)

    (mail,) = channels.of(hard)
    await mail.send(hard)
    told = list(postman.told)
    postman.refuses = True
    (other,) = channels.of(soft)
    (hostile,) = channels.of(replace(soft, alert=BudgetAlert("soft", 80, channels=(forged,))))
    for channel in (other, hostile):
        with pytest.raises(UnavailableError):
            await channel.send(soft)
    server.close()
    await server.wait_closed()

    # Newer versions of Python write "to" in small letters.
    assert [line.lower() for line in told if line.lower().startswith("rcpt")] == [
        "rcpt to:<finops@example.com>"
    ]
    assert "Subject: [warning] GPU budget lab" in told
    assert any(line.startswith("AUTH PLAIN") for line in told)
    assert other.name == "email:lab@example.com,boss@example.com"


_HOOKS = (ChannelType.SLACK, ChannelType.WEBHOOK)


async def test_alertmanager_and_slack_are_told_as_the_installation_says() -> None:
    config = replace(
        SETTINGS, alertmanager_url="http://alertmanager:9093/", slack_url="https://hooks.example.com/x"
    )
    crossing = Crossing("b1", "lab", 0, BudgetAlert("hard", 100, AlertSeverity.CRITICAL), 10, 10)

    names = [channel.name for channel in ConfiguredChannels(config).of(crossing)]

    assert names == ["alertmanager", "slack:"]
    own = [ChannelSpec(kind, {"url": "https://hooks.example.com/secret"}) for kind in _HOOKS]
    other = [ChannelSpec(kind, {"url": "https://hooks.example.com/other"}) for kind in _HOOKS]
    named = replace(crossing, alert=BudgetAlert("hard", 100, channels=(*own, *other)))
    # Names are logged and kept: they tell addresses apart, and show none.
    names = [channel.name for channel in ConfiguredChannels(config).of(named)]
    assert len(set(names)) == 5
    assert not any("example" in name for name in names)
    assert alertmanager_body(crossing) == [
        {
            "labels": {
                "alertname": "GpuBudgetReached",
                "budget": "lab",
                "alert": "hard",
                "severity": "critical",
            },
            "annotations": {"summary": crossing.text},
        }
    ]


async def test_a_webhook_gets_the_message_of_slack_or_json_and_an_error_counts_as_not_sent() -> None:
    got: list[dict[str, object]] = []

    async def answer(request: web.Request) -> web.Response:
        got.append(await request.json())
        return web.Response(status=200 if len(got) < 3 else 500)

    app = web.Application()
    app.router.add_post("/", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
    crossing = Crossing("b1", "lab", 0, BudgetAlert("soft", 80), 9 * 10**9, 10**10)
    await WebhookChannel("slack", url, slack_body).send(crossing)
    await WebhookChannel("json", url, json_body).send(crossing)
    with pytest.raises(UnavailableError, match="500"):
        await WebhookChannel("json", url, json_body).send(crossing)
    await runner.cleanup()
    assert got[0] == {"text": crossing.text}
    assert (got[1]["id"], got[1]["spendUsd"]) == ("b1-0-soft-80-10000000000", "9.000000000")
