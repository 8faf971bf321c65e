"""Leader election and events, as services use them."""

import asyncio

import pytest

from gpuloom.kube.client import KubeClient
from gpuloom.kube.events import EventRecorder, EventSettings
from gpuloom.kube.leader import LeaderElector
from gpuloom.kube.lease import record_from
from gpuloom.kube.listing import Selection
from gpuloom.kube.resources import EVENTS, LEASES, PODS
from gpuloom.runtime.clock import FakeClock, SystemClock, settle
from tests.contract.kube.builders import NAMESPACE, a_pod, ensure_namespace


@pytest.fixture(autouse=True)
async def namespace(client: KubeClient) -> None:
    await ensure_namespace(client)


async def pass_time_until(client: KubeClient, clock: FakeClock, happened: asyncio.Event) -> float:
    """Fake time in small steps; requests between them give the candidates' sockets their turn."""
    started_s = clock.monotonic()
    while not happened.is_set() and clock.monotonic() - started_s < 20.0:
        await clock.advance(0.25)
        for _ in range(3):
            await client.list(LEASES, Selection(NAMESPACE))
            await settle()
    return clock.monotonic() - started_s


async def test_a_released_lease_and_a_silent_one_pass_to_the_next(client: KubeClient) -> None:
    clock = FakeClock()
    started = {name: asyncio.Event() for name in ("first", "second", "third")}
    tasks = {}

    def lead(name: str) -> None:
        async def work() -> None:
            started[name].set()
            await asyncio.Event().wait()

        # The first one's time stands still once it leads: as if its process were frozen.
        own_clock = FakeClock() if name == "first" else clock
        tasks[name] = asyncio.create_task(LeaderElector(client, NAMESPACE, "lead", name, own_clock).run(work))

    lead("first")
    await started["first"].wait()
    lead("second")
    waited_s = await pass_time_until(client, clock, started["second"])
    lead("third")
    await settle()
    tasks["second"].cancel()
    handover_s = await pass_time_until(client, clock, started["third"])
    record = record_from(await client.get(LEASES, "lead", NAMESPACE))
    for task in tasks.values():
        task.cancel()
    await asyncio.wait(tasks.values())

    assert 6.0 <= waited_s < 10.0
    assert handover_s < 3.0
    assert (record.holder, record.transitions) == ("third", 2)
    assert record_from(await client.get(LEASES, "lead", NAMESPACE)).holder == ""


async def test_repeated_events_are_one_object_that_counts(client: KubeClient) -> None:
    pod = await client.create(PODS, a_pod("p"))
    settings = EventSettings(interval_s=0.0)
    recorder = EventRecorder(client, "contract", "contract-0", SystemClock(), settings)

    for _ in range(3):
        recorder.warning(pod, "NoRoom", "no GPU free")
        await recorder.write_due()
    recorder.normal(pod, "Placed", "on node n")
    await recorder.write_due()

    chosen = Selection(NAMESPACE, field_selector="involvedObject.name=p,reason=NoRoom")
    (event,) = (await client.list(EVENTS, chosen)).items
    assert (event["count"], event["type"], event["message"]) == (3, "Warning", "no GPU free")
    assert len((await client.list(EVENTS, Selection(NAMESPACE))).items) == 2
    assert recorder.dropped == 0
