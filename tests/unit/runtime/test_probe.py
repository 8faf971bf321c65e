"""The health check of containers."""

import asyncio

import pytest

from gpuloom.runtime import probe
from gpuloom.runtime.http import Check, StatusServer
from gpuloom.runtime.metrics import new_registry


@pytest.mark.parametrize(("reason", "code"), [(None, 0), ("not synced", 1)])
async def test_a_container_is_healthy_when_its_service_is_ready(
    reason: str | None, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    checks: dict[str, Check] = {"cache": lambda: reason}
    async with StatusServer("127.0.0.1", 0, new_registry("probed"), {}, checks) as server:
        by_itself = await asyncio.to_thread(probe.main, [], {"GPULOOM_HTTP_PORT": str(server.port)})
        by_url = await asyncio.to_thread(probe.main, [f"http://127.0.0.1:{server.port}/readyz"], {})

    assert (by_itself, by_url) == (code, code)
    assert (reason or "ok") in capsys.readouterr().out


def test_nobody_there_is_not_healthy(capsys: pytest.CaptureFixture[str]) -> None:
    assert probe.main(["http://127.0.0.1:1/readyz"], {}) == 1
    assert "refused" in capsys.readouterr().out
