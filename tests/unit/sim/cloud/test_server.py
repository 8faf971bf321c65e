"""The simulated cloud over HTTP, and its machines on disk."""

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from gpuloom.catalog import load_catalog
from gpuloom.errors import NotFoundError
from gpuloom.runtime.clock import FakeClock
from gpuloom.sim.cloud.client import CloudClient
from gpuloom.sim.cloud.machines import MachineRoom
from gpuloom.sim.cloud.model import (
    CapacityType,
    InstanceGroup,
    InternalCloudError,
    NoCapacityError,
    OfferingKey,
)
from gpuloom.sim.cloud.offerings import default_offerings
from gpuloom.sim.cloud.server import CloudServer
from gpuloom.sim.cloud.state import CloudSettings, CloudState, LaunchRequest
from gpuloom.sim.machines.machine import Machine, find_machines, machine_names

SPOT = OfferingKey("p5.48xlarge", "zone-b", CapacityType.SPOT)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def server(tmp_path: Path, clock: FakeClock) -> AsyncIterator[CloudServer]:
    settings = CloudSettings(boot_delay_s=(30.0, 30.0))
    state = CloudState(default_offerings(load_catalog()), settings)
    async with CloudServer(state, clock, MachineRoom(tmp_path, load_catalog())) as opened:
        yield opened


@pytest.fixture
async def client(server: CloudServer, clock: FakeClock) -> AsyncIterator[CloudClient]:
    async with CloudClient(server.url, clock) as opened:
        yield opened


async def test_an_instance_becomes_a_machine_when_it_has_booted_and_ends_as_one(
    server: CloudServer, client: CloudClient, clock: FakeClock, tmp_path: Path
) -> None:
    launched = await client.launch(LaunchRequest(SPOT))
    server.step()
    assert machine_names(tmp_path) == frozenset()

    await clock.advance(30.0)
    server.step()
    spec = Machine.open(tmp_path / launched.node).spec
    await client.terminate(launched.instance_id)
    await clock.advance(10.0)
    server.step()

    assert (spec.instance_type, spec.zone, spec.gpu_count) == ("p5.48xlarge", "zone-b", 8)
    assert spec.provider_id == launched.provider_id
    assert dict(spec.labels)["gpuloom.dev/capacity-type"] == "spot"
    assert machine_names(tmp_path) == frozenset()
    # What it recorded stays for the audit.
    assert find_machines(tmp_path, with_ended=True) == (tmp_path / launched.node,)


async def test_a_lost_answer_is_found_again_by_its_token(server: CloudServer, client: CloudClient) -> None:
    server.faults.lose_next_answers()
    request = LaunchRequest(SPOT, token="claim-1")

    with pytest.raises(InternalCloudError):
        await client.launch(request)
    found = await client.launch(request)

    assert await client.instances() == (found,)


async def test_a_failure_on_demand_has_its_own_error_and_does_nothing(
    server: CloudServer, client: CloudClient
) -> None:
    server.faults.fail_next("InsufficientInstanceCapacity")

    with pytest.raises(NoCapacityError):
        await client.launch(LaunchRequest(SPOT))
    with pytest.raises(NotFoundError):
        await client.launch(LaunchRequest(OfferingKey("none", "zone-a", CapacityType.SPOT)))

    assert await client.instances() == ()
    assert {one.key for one in await client.offerings()} > {SPOT}


async def test_a_group_and_a_spot_notice_are_seen_from_outside(
    server: CloudServer, client: CloudClient
) -> None:
    group = await client.put_group(InstanceGroup("pool", SPOT, desired=1))
    server.step()
    (instance,) = await client.instances()
    url = f"{server.url}/metadata/{instance.node}/latest/meta-data/spot/instance-action"

    async with aiohttp.ClientSession() as session:
        async with session.get(url) as before:
            assert before.status == 404
        await session.post(f"{server.url}/instances/{instance.instance_id}/interrupt")
        async with session.get(url) as after:
            notice = await after.json()

    assert await client.groups() == (group,)
    assert notice == {"action": "terminate", "time": "2026-01-01T00:02:00Z"}
