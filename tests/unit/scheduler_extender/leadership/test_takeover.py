"""Every start is a takeover: stamp all unbound managed pods first."""

import asyncio
from itertools import pairwise

import pytest

from gpuloom.errors import (
    ConflictError,
    GpuloomError,
    InvalidRequestError,
    NotAllowedError,
    NotFoundError,
    UnavailableError,
)
from gpuloom.runtime.clock import FakeClock, settle
from services.scheduler_extender.core.ledger.claims import ObservedPod
from services.scheduler_extender.core.objects.pods import observed_pod
from services.scheduler_extender.leadership import takeover
from services.scheduler_extender.leadership.takeover import (
    CONCURRENT_STAMPS,
    PODS_A_TURN,
    Patience,
    stamp_unbound,
)
from services.scheduler_extender.ports import Stamped
from tests.unit.scheduler_extender.builders import JsonObject, a_pod, a_ref, gpuloom_share
from tests.unit.scheduler_extender.kubernetes import ScriptedApi


class Guarded(ScriptedApi):
    """Somebody's webhook refuses to have these pods written."""

    def __init__(self, refused: set[str], error: GpuloomError) -> None:
        super().__init__()
        self.refused = refused
        self.error = error

    async def stamp(self, namespace: str, name: str, uid: str, epoch: str) -> None:
        if name in self.refused:
            raise self.error
        await super().stamp(namespace, name, uid, epoch)


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

    stamped = await stamp_unbound(pods, "epoch-1", api, FakeClock())

    assert stamped == Stamped(2)
    assert sorted(api.stamps) == [
        ("unbound", "uid-unbound", "epoch-1"),
        ("without-sense", "uid-without-sense", "epoch-1"),
    ]


async def test_a_stamp_that_fails_is_tried_until_it_is_there() -> None:
    api, clock = ScriptedApi(), FakeClock()
    api.marking_fails = [UnavailableError("down"), ConflictError("busy"), UnavailableError("down")]

    stamping = asyncio.create_task(stamp_unbound([a_pod(a_ref("pod"))], "epoch-1", api, clock))
    await clock.advance(30.0)

    assert await stamping == Stamped(1)
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


@pytest.mark.parametrize(
    ("error", "waits_s"),
    [
        (NotAllowedError("denied by a webhook"), 10.0),
        (InvalidRequestError("a policy wants another label"), 10.0),
        (UnavailableError("failed calling webhook"), 60.0),
    ],
)
async def test_a_pod_that_can_not_be_stamped_holds_a_takeover_up_for_so_long_and_is_named(
    error: GpuloomError, waits_s: float
) -> None:
    api, clock = Guarded({"guarded"}, error), FakeClock()
    pods = [a_pod(a_ref("guarded")), a_pod(a_ref("pod"))]
    patience = Patience(refused_s=10.0, failed_s=60.0)

    stamping = asyncio.create_task(stamp_unbound(pods, "epoch-1", api, clock, patience))
    await clock.advance(waits_s - 0.1)
    early = stamping.done()
    await clock.advance(5.0)

    assert not early
    assert await stamping == Stamped(1, (a_ref("guarded"),))
    assert [name for name, _, _ in api.stamps] == ["pod"]


async def test_pods_that_can_not_be_stamped_keep_no_other_waiting() -> None:
    names = {f"guarded-{number}" for number in range(2 * CONCURRENT_STAMPS)}
    api, clock = Guarded(names, NotAllowedError("denied")), FakeClock()
    pods = [a_pod(a_ref(name)) for name in (*sorted(names), "pod")]

    stamping = asyncio.create_task(stamp_unbound(pods, "epoch-1", api, clock))
    await settle(rounds=100)
    stamped = [name for name, _, _ in api.stamps]
    api.refused = set()
    await clock.advance(5.0)

    assert stamped == ["pod"]
    assert await stamping == Stamped(len(pods))


async def test_others_have_their_turn_while_many_pods_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    turns: list[int] = []

    def count(pod: JsonObject) -> ObservedPod | None:
        read.append(pod["metadata"]["name"])
        return observed_pod(pod)

    async def renew_the_lease() -> None:
        while True:
            turns.append(len(read))
            await asyncio.sleep(0)

    monkeypatch.setattr(takeover, "observed_pod", count)
    renewing = asyncio.create_task(renew_the_lease())
    pods = [a_pod(a_ref(f"pod-{number}")) for number in range(500)]

    await stamp_unbound(pods, "epoch-1", ScriptedApi(), FakeClock())
    renewing.cancel()

    pauses = [after - before for before, after in pairwise(turns)]
    assert len(read) == len(pods)
    assert max(pauses) <= PODS_A_TURN
