"""Every start is a takeover: stamp all unbound managed pods first."""

import asyncio

from gpuloom.errors import ConflictError, NotFoundError, UnavailableError
from gpuloom.runtime.clock import FakeClock
from services.scheduler_extender.takeover import CONCURRENT_STAMPS, stamp_unbound
from tests.unit.scheduler_extender.builders import a_pod, a_ref, gpuloom_share
from tests.unit.scheduler_extender.kubernetes import ScriptedApi


async def test_all_unbound_managed_pods_are_stamped_and_no_others() -> None:
    api = ScriptedApi()
    pods = [
        a_pod(a_ref("unbound")),
        a_pod(a_ref("without-sense"), gpuloom_share(1500)),
        a_pod(a_ref("bound"), node="node"),
        a_pod(a_ref("ended"), phase="Failed"),
        a_pod(a_ref("no-gpu"), {"cpu": "1"}),
        {"metadata": {"name": "nameless"}, "spec": {}},
    ]

    count = await stamp_unbound(pods, "epoch-1", api, FakeClock())

    assert count == 2
    assert sorted(api.stamps) == [
        ("unbound", "uid-unbound", "epoch-1"),
        ("without-sense", "uid-without-sense", "epoch-1"),
    ]


async def test_a_stamp_that_fails_is_tried_until_it_is_there() -> None:
    api, clock = ScriptedApi(), FakeClock()
    api.marking_fails = [UnavailableError("down"), ConflictError("busy"), UnavailableError("down")]

    stamping = asyncio.create_task(stamp_unbound([a_pod(a_ref("pod"))], "epoch-1", api, clock))
    await clock.advance(30.0)

    assert await stamping == 1
    assert api.stamps == [("pod", "uid-pod", "epoch-1")]


async def test_a_pod_that_is_gone_or_replaced_needs_no_stamp() -> None:
    api = ScriptedApi()
    api.marking_fails = [NotFoundError("replaced")]

    await stamp_unbound([a_pod(a_ref("gone")), a_pod(a_ref("there"))], "epoch-1", api, FakeClock())

    assert [name for name, _, _ in api.stamps] == ["there"]


async def test_only_so_many_stamps_are_under_way_at_once() -> None:
    running, most = 0, 0

    class Slow(ScriptedApi):
        async def stamp(self, namespace: str, name: str, uid: str, epoch: str) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            running -= 1

    pods = [a_pod(a_ref(f"pod-{number}")) for number in range(3 * CONCURRENT_STAMPS)]

    await stamp_unbound(pods, "epoch-1", Slow(), FakeClock())

    assert most == CONCURRENT_STAMPS
