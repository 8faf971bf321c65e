"""The questions to each cloud, asked of servers that speak its wire format."""

from datetime import UTC, datetime

import pytest
from aiohttp import web

from gpuloom.model.spot import SpotNotice, SpotNoticeKind
from gpuloom.runtime.clock import FakeClock
from services.node_agent.spot.aws import AwsNotices
from services.node_agent.spot.azure import AzureNotices
from services.node_agent.spot.core.problem import MetadataError, Problem
from services.node_agent.spot.gcp import GcpNotices
from tests.unit.node_agent.spot.builders import (
    AzureMachine,
    ComputeEngine,
    Ec2,
    a_raw_service,
    a_service,
    an_azure_event,
    as_time_passes,
    metadata_at,
)

ACTION = '{"action": "terminate", "time": "2026-09-18T08:22:00Z"}'
HINT = '{"noticeTime": "2026-09-18T08:00:00Z"}'
TERMINATE = SpotNotice(
    SpotNoticeKind.INTERRUPTION, datetime(2026, 9, 18, 8, 22, tzinfo=UTC), "aws", "terminate"
)
HOUR_S = 3600.0


async def test_aws_without_a_notice_says_none() -> None:
    ec2 = Ec2()
    async with a_service(ec2.handle) as url:
        assert await AwsNotices(metadata_at(url), ec2.clock).read() is None


async def test_an_interruption_outranks_a_rebalance_recommendation() -> None:
    ec2 = Ec2(hint=HINT)
    async with a_service(ec2.handle) as url:
        notices = AwsNotices(metadata_at(url), ec2.clock)
        hint = await notices.read()
        ec2.action = ACTION
        interruption = await notices.read()

    assert hint is not None
    assert hint.kind is SpotNoticeKind.REBALANCE
    assert interruption == TERMINATE


async def test_one_token_serves_until_shortly_before_its_end() -> None:
    ec2 = Ec2(action=ACTION)
    given = []
    async with a_service(ec2.handle) as url:
        notices = AwsNotices(metadata_at(url), ec2.clock)
        for advance_s in (0.0, 5.8 * HOUR_S, 0.15 * HOUR_S, 5.8 * HOUR_S):
            await ec2.clock.advance(advance_s)
            assert await notices.read() == TERMINATE
            given.append(ec2.given)

    assert given == [1, 1, 2, 2]


async def test_a_token_that_ended_early_is_replaced_at_once() -> None:
    ec2 = Ec2(action=ACTION)
    async with a_service(ec2.handle) as url:
        notices = AwsNotices(metadata_at(url), ec2.clock)
        await notices.read()
        ec2.tokens.clear()
        notice = await notices.read()

    assert (notice, ec2.given) == (TERMINATE, 2)


async def test_a_service_that_takes_no_token_is_a_refusal_and_asked_no_further() -> None:
    asked: list[str] = []

    async def handler(request: web.Request) -> web.Response:
        asked.append(request.method)
        return web.Response(text="token") if request.method == "PUT" else web.Response(status=401)

    async with a_service(handler) as url:
        with pytest.raises(MetadataError, match="401") as raised:
            await AwsNotices(metadata_at(url), FakeClock()).read()

    assert raised.value.problem is Problem.REFUSED
    assert asked == ["PUT", "GET", "PUT", "GET"]


@pytest.mark.parametrize("status", [403, 404, 405, 200])
async def test_without_a_token_nothing_is_asked(status: int) -> None:
    asked: list[str] = []

    async def handler(request: web.Request) -> web.Response:
        asked.append(request.method)
        return web.Response(status=status, text="" if status == 200 else "no")

    async with a_service(handler) as url:
        with pytest.raises(MetadataError):
            await AwsNotices(metadata_at(url), FakeClock()).read()

    assert asked == ["PUT"]


async def test_a_token_that_never_comes_is_explained_by_the_hop_limit() -> None:
    clock = FakeClock()
    async with a_raw_service(None) as url:
        with pytest.raises(MetadataError, match=r"HttpPutResponseHopLimit to 2 or .* hostNetwork") as raised:
            await as_time_passes(clock, AwsNotices(metadata_at(url, clock), clock).read())

    assert raised.value.problem is Problem.SLOW


@pytest.mark.parametrize(("preempted", "expected"), [("TRUE", True), ("FALSE", False)])
async def test_gcp_says_whether_the_machine_is_preempted(preempted: str, expected: bool) -> None:
    async with a_service(ComputeEngine(preempted).handle) as url:
        notice = await GcpNotices(metadata_at(url)).read()

    assert (notice is not None) is expected


@pytest.mark.parametrize("flavor", ["", "google", "Other"])
async def test_an_answer_without_googles_mark_is_not_believed(flavor: str) -> None:
    async with a_service(ComputeEngine("TRUE", flavor).handle) as url:
        with pytest.raises(MetadataError, match="does not come from Google") as raised:
            await GcpNotices(metadata_at(url)).read()

    assert raised.value.problem is Problem.MALFORMED


async def test_azure_tells_only_of_this_machine() -> None:
    machine = AzureMachine(
        events=[an_azure_event("Preempt", "aks-gpu-1234-vmss_8"), an_azure_event("Freeze")]
    )
    async with a_service(machine.handle) as url:
        notices = AzureNotices(metadata_at(url))
        foreign = await notices.read()
        machine.events.append(an_azure_event("Preempt", "aks-gpu-1234-vmss_7"))
        ours = await notices.read()
        machine.events.clear()
        cancelled = await notices.read()

    assert (foreign, cancelled) == (None, None)
    assert ours is not None
    assert (ours.kind, ours.action) == (SpotNoticeKind.INTERRUPTION, "preempt")


async def test_until_azure_tells_the_machines_name_no_event_is_believed() -> None:
    machine = AzureMachine(name="", events=[an_azure_event()])
    async with a_service(machine.handle) as url:
        notices = AzureNotices(metadata_at(url))
        with pytest.raises(MetadataError):
            await notices.read()
        machine.name = "aks-gpu-1234-vmss_7"
        notice = await notices.read()

    assert notice is not None


async def test_azures_slow_first_answer_is_waited_for_in_short_questions() -> None:
    machine, clock, slow = AzureMachine(events=[an_azure_event()]), FakeClock(), True

    async def handler(request: web.Request) -> web.Response:
        if slow and "scheduledevents" in request.path:
            await clock.sleep(5.0)
        return await machine.handle(request)

    async with a_service(handler) as url:
        notices = AzureNotices(metadata_at(url, clock))
        with pytest.raises(MetadataError, match="the first answer may take two minutes") as raised:
            await as_time_passes(clock, notices.read())
        await clock.advance(5.0)
        slow = False
        notice = await notices.read()

    assert raised.value.problem is Problem.SLOW
    assert notice is not None
