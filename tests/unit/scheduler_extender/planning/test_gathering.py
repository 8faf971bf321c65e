"""A gang that single pods keep passing is kept what it needs, for a time that ends."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuloom.kube.objects import uid_of
from gpuloom.model.ledger import GANG_OWNER
from gpuloom.runtime.clock import FakeClock
from services.scheduler_extender.core.gangs.phases import Phase
from services.scheduler_extender.planning.gathering import AFTER_S, REASON
from tests.effort import examples
from tests.unit.scheduler_extender.planning.desk import Kubernetes, Leader

STEP_S = 31.0
"""So long until what left has surely left its node."""
FOR_EVER_S = 1e9


@dataclass
class Stream:
    """Single pods of which there is always another one: whatever card becomes free one of them takes."""

    kubernetes: Kubernetes
    clock: FakeClock
    lasts_s: float
    """How long each runs."""
    priority: int = 0
    made: int = 0
    ends_s: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.leader = Leader(self.kubernetes, self.clock)

    async def step(self, *gang: str, keeps: bool = True) -> None:
        for name in [name for name, at_s in self.ends_s.items() if at_s <= self.clock.monotonic()]:
            self.kubernetes.delete(name)
            del self.ends_s[name]
        await self.leader.released()
        await self.leader.holding.tidy()
        await self.leader.gangs.turn()
        if keeps:
            await self.leader.gathering.turn()
        await self.fill()
        await self.leader.schedule(*(name for name in gang if name not in self.kubernetes.bound()))

    async def fill(self, lasts_s: float | None = None) -> None:
        while True:
            name = f"single-{self.made}"
            self.made += 1
            self.kubernetes.create(name, priority=self.priority)
            if await self.leader.schedule(name) != {name: ""}:
                self.kubernetes.delete(name)
                return
            self.kubernetes.run(name, since=f"{self.clock.now():%Y-%m-%dT%H:%M:%SZ}")
            self.ends_s[name] = self.clock.monotonic() + (lasts_s or self.lasts_s)

    async def steps_until_bound(self, gang: list[str], most: int, *, keeps: bool = True) -> int | None:
        for step in range(most):
            if set(gang) <= set(self.kubernetes.bound()):
                return step
            await self.step(*gang, keeps=keeps)
        return None

    def kept(self) -> list[str]:
        """The GPUs that are kept for a gang."""
        holds = [hold for hold in self.leader.promises.all() if hold.owner.kind == GANG_OWNER]
        return [hold.device.device.gpu_uuid for hold in holds if hold.device is not None]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


async def a_stream(clock: FakeClock, lasts_s: float = 310.0, **cards: int) -> Stream:
    """Every card is used; singles end one after the other, never all at once."""
    stream = Stream(Kubernetes(cards or {"n1": 4, "n2": 4}), clock, lasts_s)
    await stream.fill()
    for i, name in enumerate(stream.ends_s):
        stream.ends_s[name] = clock.monotonic() + lasts_s * (i + 1) / len(stream.ends_s)
    return stream


async def test_without_it_single_pods_starve_a_gang(clock: FakeClock) -> None:
    stream = await a_stream(clock)
    gang = stream.kubernetes.gang("large", 3, cards=2)

    assert await stream.steps_until_bound(gang, 200, keeps=False) is None


@given(
    cards=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    size=st.integers(1, 4),
    each=st.integers(1, 3),
    lasts_s=st.floats(31.0, AFTER_S - STEP_S),
)
@settings(max_examples=examples(40), deadline=None)
async def test_single_pods_keep_no_gang_waiting_that_the_empty_cluster_has_room_for(
    cards: list[int], size: int, each: int, lasts_s: float
) -> None:
    clock = FakeClock()
    stream = await a_stream(clock, lasts_s, **{f"n{i}": count for i, count in enumerate(cards)})
    gang = stream.kubernetes.gang("large", size, cards=each)
    fits = sum(count // each for count in cards) >= size

    took = await stream.steps_until_bound(gang, 60)

    assert (took is not None) == fits
    if took is not None:
        # It waits, then for the last one to end, then a turn each to be planned and bound.
        assert took * STEP_S <= AFTER_S + lasts_s + 4 * STEP_S
        await stream.step()
        assert not stream.kept()
    else:
        assert not stream.kept()
        assert stream.leader.free_cards() == 0


async def test_pods_that_have_run_for_longest_are_not_waited_for(clock: FakeClock) -> None:
    stream = Stream(Kubernetes({"n1": 2, "n2": 2}), clock, FOR_EVER_S)
    await stream.fill()
    await clock.advance(36_000.0)
    for name, node in stream.kubernetes.bound().items():
        if node == "n1":
            stream.ends_s[name] = clock.monotonic()
    stream.lasts_s = 310.0
    gang = stream.kubernetes.gang("large", 1, cards=2)

    # Its pods of n2 would never have ended.
    assert await stream.steps_until_bound(gang, 60) is not None
    assert {stream.kubernetes.bound()[name] for name in gang} == {"n1"}


async def test_nothing_is_idle_for_a_gang_that_waits_for_a_pod_without_end(clock: FakeClock) -> None:
    stream = Stream(Kubernetes({"n1": 2}), clock, FOR_EVER_S)
    await stream.fill()
    stream.ends_s[next(iter(stream.ends_s))] = 310.0
    stream.lasts_s = 62.0
    gang = stream.kubernetes.gang("large", 1, cards=2)

    for _ in range(400):
        await stream.step(*gang)
        assert not stream.kept()
        assert stream.leader.free_cards() == 0


@pytest.mark.parametrize("lasts_s", [2000.0, 7000.0])
async def test_for_pods_that_take_longer_it_is_kept_for_longer_and_idle_for_half_of_the_time_at_most(
    clock: FakeClock, lasts_s: float
) -> None:
    stream = await a_stream(clock, lasts_s, n1=4)
    gang = stream.kubernetes.gang("large", 1, cards=4)
    idle: list[bool] = []

    while gang[0] not in stream.kubernetes.bound():
        await stream.step(*gang)
        idle.append(stream.leader.free_cards() > 0 or len(stream.kubernetes.bound()) < 4)

    assert len(idle) * STEP_S <= 5 * lasts_s
    assert idle.count(True) <= len(idle) * 0.55


async def test_pods_of_higher_priority_pass_and_others_do_not(clock: FakeClock) -> None:
    stream = await a_stream(clock, n1=2, n2=2)
    gang = stream.kubernetes.gang("large", 2, cards=2, priority=5)
    stream.priority = 5
    while not stream.kept():
        await stream.step(*gang)
    for name in list(stream.ends_s)[:2]:
        stream.ends_s[name] = 0.0
    await stream.step(*gang)
    stream.kubernetes.create("equal", priority=5)
    stream.kubernetes.create("high", priority=6)
    stream.kubernetes.refuse("equal")
    stream.kubernetes.refuse("high")

    await stream.leader.gathering.turn()

    assert await stream.leader.schedule("high") == {"high": ""}
    assert len(stream.kept()) == 2
    await stream.leader.gathering.turn()
    assert len(stream.kept()) == 2


async def test_a_gang_of_higher_priority_takes_what_is_kept_for_another(clock: FakeClock) -> None:
    stream = await a_stream(clock, n1=2, n2=2)
    stream.kubernetes.gang("large", 2, cards=2)
    while not stream.kept():
        await stream.step()
    for name in list(stream.ends_s)[:2]:
        stream.ends_s[name] = 0.0
    high = stream.kubernetes.gang("high", 2, priority=1)

    await stream.step()
    await stream.step(*high)

    assert set(high) <= set(stream.kubernetes.bound())
    taken = {f"GPU-{stream.kubernetes.bound()[name]}" for name in high}
    assert len(stream.kept()) == 2, taken


async def test_a_pod_that_others_leave_for_takes_what_is_kept_for_a_gang_below_it(clock: FakeClock) -> None:
    stream = await a_stream(clock, n1=2)
    stream.kubernetes.gang("large", 1, cards=2, priority=5)
    while not stream.kept():
        await stream.step()
    stream.ends_s = dict.fromkeys(stream.ends_s, FOR_EVER_S)
    stream.kubernetes.create("high", priority=6)
    stream.kubernetes.refuse("high")

    for _ in range(3):
        await stream.step()
        await stream.leader.preemptions.turn()

    (victim,) = stream.kubernetes.evicted
    del stream.ends_s[victim]
    stream.kubernetes.delete(victim)
    await stream.step("high")
    assert "high" in stream.kubernetes.bound()


async def test_a_new_leader_goes_on_with_what_is_kept(clock: FakeClock) -> None:
    stream = await a_stream(clock)
    gang = stream.kubernetes.gang("large", 4, cards=2)
    while not stream.kept():
        await stream.step(*gang)
    held = dict(stream.kubernetes.holds.objects)
    stream.leader.die()

    stream.leader = Leader(stream.kubernetes, clock)
    await stream.leader.gangs.turn()
    await stream.leader.gathering.turn()

    assert stream.kubernetes.holds.objects == held
    assert await stream.steps_until_bound(gang, 15) is not None


async def test_what_is_kept_ends_with_the_gang(clock: FakeClock) -> None:
    stream = await a_stream(clock)
    gang = stream.kubernetes.gang("large", 4, cards=2)
    while not stream.kept():
        await stream.step(*gang)
    stream.kubernetes.delete(gang[0])

    await stream.step()

    assert not stream.kept()


async def test_shares_of_one_card_are_kept_together(clock: FakeClock) -> None:
    stream = await a_stream(clock, n1=2)
    for i in range(4):
        stream.kubernetes.create(f"large-{i}", gang="large", size=4, milli=400)
    gang = [f"large-{i}" for i in range(4)]

    assert await stream.steps_until_bound(gang, 60) is not None


async def test_nothing_is_kept_before_the_gang_has_waited_and_its_pods_say_why_they_wait(
    clock: FakeClock,
) -> None:
    stream = await a_stream(clock)
    gang = stream.kubernetes.gang("large", 4, cards=2)
    while clock.monotonic() < AFTER_S - STEP_S:
        await stream.step(*gang)
        assert not stream.kept()
    while not stream.kept():
        await stream.step(*gang)

    assert ("large-0", "GangKeeps") in {(name, reason) for name, reason, _ in stream.kubernetes.told}
    assert {report.phase for report in stream.leader.gangs.reports} == {Phase.WAITING}
    standing = stream.leader.board.gangs[uid_of(stream.kubernetes.pods["large-0"])]
    assert "have no place" in standing.reason
    assert {hold.reason for hold in stream.leader.promises.all()} == {REASON}
