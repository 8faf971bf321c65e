"""A change, whoever dies at whichever point: it ends, nothing stays held, nothing is left written down."""

import asyncio
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from gpuloom.errors import ConflictError, NotFoundError, UnavailableError
from gpuloom.model.claims import HoldTarget
from gpuloom.model.layout import ChangeState, LayoutChange, LayoutRequest
from gpuloom.model.mig import MigPlacement
from gpuloom.runtime.clock import FakeClock
from services.mig_controller.core.cards import Card
from services.mig_controller.core.intents import Intent, decode, encode
from services.mig_controller.metrics import MigMetrics
from services.mig_controller.transactions import TransactionParts, Transactions
from tests.unit.mig_controller.builders import a_card, a_slice, place

OLD, NEW = place("3g.20gb@0"), place("1g.5gb@0")
GPU = "GPU-n1-0"
REQUEST = LayoutRequest("c1", GPU, None, (OLD,), (NEW,))
INTENT = Intent(REQUEST, "n1", "uid-n1", ("uid-a",), "now")


class CrashError(BaseException):
    pass


@dataclass
class World:
    """The extender, the agent and Kubernetes: all of them outlive the controller, and may be away.

    `away` counts calls that fail, whether or not what they ask is done.
    """

    holds: dict[str, HoldTarget] = field(default_factory=dict)
    written: str = ""
    places: set[MigPlacement] = field(default_factory=lambda: {OLD})
    changes: dict[str, LayoutChange] = field(default_factory=dict)
    shown: set[MigPlacement] = field(default_factory=lambda: {OLD})
    agent_refuses: bool = False
    agent_slow: int = 0
    away: list[str] = field(default_factory=list)
    crash_at: int = 0
    passed: int = 0

    async def reach(self, name: str) -> None:
        self.passed += 1
        if self.passed == self.crash_at:
            raise CrashError(name)

    def _maybe_away(self, what: str) -> None:
        if what in self.away:
            self.away.remove(what)
            raise UnavailableError(f"{what} is away")

    async def take(self, name: str, target: HoldTarget, reason: str, ttl_s: int) -> None:
        self._maybe_away("take-before")
        self.holds[name] = target
        self._maybe_away("take-after")

    async def renew(self, name: str, ttl_s: int) -> None:
        self._maybe_away("renew")
        if name not in self.holds:
            raise NotFoundError("it is over")

    async def release(self, name: str) -> None:
        self._maybe_away("release")
        self.holds.pop(name, None)

    async def list_own(self) -> tuple[str, ...]:
        return tuple(self.holds)

    async def change(self, node_uid: str, request: LayoutRequest) -> LayoutChange:
        self._maybe_away("agent-before")
        known = self.changes.get(request.id)
        if known is None:
            if self.agent_refuses:
                raise ConflictError("in use by pod team/x")
            self.places = (self.places - set(request.destroy)) | set(request.create)
            self.changes[request.id] = known = LayoutChange(request, ChangeState.DONE)
        self._maybe_away("agent-after")
        if self.agent_slow:
            self.agent_slow -= 1
            return LayoutChange(request, ChangeState.APPLYING)
        return known

    async def load(self) -> tuple[Intent, ...]:
        return decode(self.written) if self.written else ()

    async def save(self, intents: tuple[Intent, ...]) -> None:
        self._maybe_away("save-before")
        self.written = encode(intents)
        self._maybe_away("save-after")

    def cards(self) -> dict[str, Card]:
        slices = (a_slice(f"{where.profile}@{where.start}") for where in sorted(self.shown))
        return {GPU: a_card("n1", *slices)}


def transactions(world: World, clock: FakeClock) -> Transactions:
    metrics = MigMetrics(CollectorRegistry())
    return Transactions(TransactionParts(world, world, world, clock, metrics, world.reach))


async def one_life(world: World, clock: FakeClock, *, begins: bool) -> None:
    """Until nothing is open, or the controller dies."""
    own = transactions(world, clock)
    await own.take_over()
    if begins:
        await own.begin(INTENT, "a pod waits")
    for _ in range(12):
        await own.settle(world.cards(), lambda uid: True)
        world.shown = set(world.places)
        await clock.advance(50.0)
        if not own.intents:
            return


async def survive(world: World, clock: FakeClock, *, begins: bool) -> None:
    try:
        await one_life(world, clock, begins=begins)
    except (CrashError, UnavailableError):
        return


@given(
    crash_at=st.integers(0, 8),
    again_at=st.integers(0, 6),
    away=st.lists(
        st.sampled_from(
            (
                "take-before",
                "take-after",
                "renew",
                "release",
                "agent-before",
                "agent-after",
                "save-before",
                "save-after",
            )
        ),
        max_size=4,
    ),
    refuses=st.booleans(),
    slow=st.integers(0, 3),
)
def test_every_change_ends_and_leaves_nothing_behind(
    crash_at: int, again_at: int, away: list[str], refuses: bool, slow: int
) -> None:
    world = World(agent_refuses=refuses, agent_slow=slow, away=list(away), crash_at=crash_at)

    async def lives() -> None:
        clock = FakeClock()
        await survive(world, clock, begins=True)
        world.crash_at, world.passed = again_at, 0
        await survive(world, clock, begins=False)
        world.crash_at, world.away = 0, []
        await one_life(world, clock, begins=False)

    asyncio.run(lives())

    assert world.holds == {}
    assert decode(world.written or encode(())) == ()
    assert world.places in ({OLD}, {NEW})


async def test_a_card_whose_change_failed_is_left_alone_for_longer_each_time() -> None:
    world, clock = World(agent_refuses=True), FakeClock()
    own = transactions(world, clock)
    await own.take_over()
    waits = []
    for _ in range(3):
        assert await own.begin(INTENT, "a pod waits")
        await own.settle(world.cards(), lambda uid: True)
        waited = 0.0
        while GPU in own.gpus:
            await clock.advance(10.0)
            waited += 10.0
        waits.append(waited)

    assert waits == [30.0, 60.0, 120.0]
    assert "the agent refuses" in own.note_of(GPU) or own.note_of(GPU) == ""


async def test_a_change_whose_node_is_gone_is_given_up() -> None:
    class Gone(World):
        async def change(self, node_uid: str, request: LayoutRequest) -> LayoutChange:
            raise NotFoundError("no agent")

    world, clock = Gone(), FakeClock()
    own = transactions(world, clock)
    await own.take_over()
    await own.begin(INTENT, "a pod waits")

    await own.settle(world.cards(), lambda uid: True)
    still = own.intents
    await own.settle({}, lambda uid: False)

    assert still == (INTENT,)
    assert own.intents == ()
    assert world.holds == {}


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"v":2,"intents":[]}', '{"v":1,"intents":[{}]}'])
def test_intents_that_can_t_be_read_are_refused(text: str) -> None:
    with pytest.raises(Exception, match="intents"):
        decode(text)
