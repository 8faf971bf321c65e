"""When HTTP/2 is offered to kube-scheduler."""

import logging

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from gpuloom.kube.access import KubeAccess
from gpuloom.kube.client import KubeClient
from gpuloom.kube.objects import JsonObject
from gpuloom.runtime.clock import SystemClock
from gpuloom.runtime.config import ConfigError, load_config
from services.scheduler_extender.adapters.http2 import offers_http2, version_of
from services.scheduler_extender.config import ExtenderConfig, Http2


async def _offered(setting: Http2, version: JsonObject | None) -> bool:
    """With an API server of this version, or one that does not tell."""

    async def answer(request: web.Request) -> web.Response:
        assert request.path == "/version"
        return web.Response(status=403) if version is None else web.json_response(version)

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(application) as server:
        access = KubeAccess.with_token(f"http://{server.host}:{server.port}", "secret")
        async with KubeClient(access, SystemClock()) as client:
            return await offers_http2(setting, client, timeout_s=5.0)


@pytest.mark.parametrize(
    ("major", "minor", "offered"),
    [
        ("1", "33", False),
        ("1", "33+", False),
        ("1", "34", True),
        ("1", "34+", True),
        ("1", "36", True),
        ("2", "0", True),
    ],
)
async def test_by_itself_it_is_offered_to_those_that_leave_a_hanging_connection(
    major: str, minor: str, offered: bool
) -> None:
    assert await _offered(Http2.AUTO, {"major": major, "minor": minor}) is offered


@pytest.mark.parametrize("version", [None, {}, {"major": "", "minor": ""}, {"major": "1", "minor": "x"}])
async def test_it_is_not_offered_where_the_version_is_not_known(
    version: JsonObject | None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        offered = await _offered(Http2.AUTO, version)

    assert not offered
    assert sum("HTTP/2 is not offered" in record.message for record in caplog.records) == 1


async def test_an_api_server_that_can_not_be_reached_does_not_stop_the_start() -> None:
    async with KubeClient(KubeAccess("http://127.0.0.1:1"), SystemClock()) as client:
        assert not await offers_http2(Http2.AUTO, client, timeout_s=0.05)


@pytest.mark.parametrize(("setting", "offered"), [(Http2.ON, True), (Http2.OFF, False)])
async def test_who_decides_is_not_second_guessed(setting: Http2, offered: bool) -> None:
    assert await _offered(setting, None) is offered


@pytest.mark.parametrize("answer", [{"major": 1, "minor": 34}, {"major": "1", "minor": "34-gke.5"}])
def test_a_version_is_read_however_it_is_written(answer: JsonObject) -> None:
    assert version_of(answer) == (1, 34)


def test_the_setting_is_one_of_three_words() -> None:
    needed = {"GPULOOM_DISCOVERY_ADDRESS": "discovery:50053", "GPULOOM_TLS_INSECURE": "true"}

    assert load_config(ExtenderConfig, needed).http2 is Http2.AUTO
    assert load_config(ExtenderConfig, needed | {"GPULOOM_EXTENDER_HTTP2": "off"}).http2 is Http2.OFF
    with pytest.raises(ConfigError, match="GPULOOM_EXTENDER_HTTP2 must be one of auto, on, off"):
        load_config(ExtenderConfig, needed | {"GPULOOM_EXTENDER_HTTP2": "yes"})
