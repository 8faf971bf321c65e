import asyncio

from prometheus_client import CollectorRegistry

from gpuloom.runtime.clock import FakeClock, settle
from gpuloom.runtime.heartbeat import Heartbeat


class BlockableClock(FakeClock):
    """A clock whose time can pass without anybody getting to run, as when the loop is blocked."""

    def block(self, blocked_s: float) -> None:
        self._elapsed_s += blocked_s


async def test_a_loop_that_runs_on_time_is_alive() -> None:
    clock, registry = FakeClock(), CollectorRegistry()

    async with Heartbeat("discovery", clock, registry) as heartbeat:
        await clock.advance(60)
        verdict = heartbeat.check()

    assert verdict is None
    assert registry.get_sample_value("gpuloom_discovery_event_loop_lag_seconds_count") == 60
    assert registry.get_sample_value("gpuloom_discovery_event_loop_lag_seconds_sum") == 0


async def test_a_blocked_loop_is_seen_by_the_next_probe_and_forgiven_later() -> None:
    clock, registry = BlockableClock(), CollectorRegistry()

    async with Heartbeat("discovery", clock, registry) as heartbeat:
        await settle()
        clock.block(12.5)
        while_blocked = heartbeat.check()
        await clock.advance(1)
        just_after = heartbeat.check()
        await clock.advance(10)
        later = heartbeat.check()

    assert while_blocked == "no heartbeat of the event loop for 11.5 s"
    assert just_after == "the event loop was blocked for 11.5 s"
    assert later is None
    assert registry.get_sample_value("gpuloom_discovery_event_loop_lag_seconds_bucket", {"le": "10.0"}) == 11


async def test_a_short_delay_is_measured_but_harmless() -> None:
    clock, registry = BlockableClock(), CollectorRegistry()

    async with Heartbeat("discovery", clock, registry) as heartbeat:
        await settle()
        clock.block(3)
        await clock.advance(0)
        verdict = heartbeat.check()

    assert verdict is None
    assert registry.get_sample_value("gpuloom_discovery_event_loop_lag_seconds_sum") == 2


async def test_a_heartbeat_that_died_is_noticed() -> None:
    clock = FakeClock()
    heartbeat = Heartbeat("discovery", clock, CollectorRegistry())

    async with heartbeat:
        pass
    await clock.advance(12)

    assert heartbeat.check() == "no heartbeat of the event loop for 11.0 s"
    assert len(asyncio.all_tasks()) == 1
