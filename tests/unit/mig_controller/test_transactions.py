"""A change, whoever dies at whichever point: it ends, nothing stays held, nothing is left written down."""

import asyncio
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from gpuloom.errors import ConflictError, NotAllowedError, NotFoundError, UnavailableError
from gpuloom.model.claims import HoldTarget
from gpuloom.model.layout import ChangeState, LayoutChange, LayoutRequest
from gpuloom.model.ledger import Hold
from gpuloom.model.mig import MigPlacement
from gpuloom.model.node import PodRef
from gpuloom.runtime.clock import FakeClock
from services.mig_controller.core.cards import Card
from services.mig_controller.core.intents import Intent, Leaver, decode, encode
from services.mig_controller.metrics import MigMetrics
from services.mig_controller.transactions import TransactionParts, Transactions
from tests.unit.mig_controller.builders import a_card, a_slice, place

OLD, NEW = place("3g.20gb@0"), place("1g.5gb@0")
GPU = "GPU-n1-0"
REQUEST = LayoutRequest("c1", GPU, None, (OLD,), (NEW,))
INTENT = Intent(REQUEST, "n1", "uid-n1", ("uid-a",), "now")
TENANT = "team/tenant"
MOVING = replace(INTENT, leavers=(Leaver(PodRef("team", "tenant", "uid-tenant"), OLD),))


class CrashError(BaseException):
    pass


@dataclass
class World:
    """The extender, the agent and Kubernetes: all of them outlive the controller, and may be away.

    `away` counts calls that fail, whether or not what they ask is done. `tenant` has the slice that is to go,
    and leaves when it was evicted, which a budget refuses `budget` times; negative: it opted out.
    """

    holds: dict[str, HoldTarget] = field(default_factory=dict)
    written: str = ""
    places: set[MigPlacement] = field(default_factory=lambda: {OLD})
    changes: dict[str, LayoutChange] = field(default_factory=dict)
    shown: set[MigPlacement] = field(default_factory=lambda: {OLD})
    agent_refuses: bool = False
    agent_slow: int = 0
    away: list[str] = field(default_factory=list)
    tenant: str = ""
    leaving: bool = False
    budget: int = 0
    touched: bool = False
    """Whether the agent was asked to take the slice of somebody who has it."""
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

    async def take(
        self, name: str, target: HoldTarget, reason: str, ttl_s: int, *, allow_used: bool = False
    ) -> None:
        self._maybe_away("take-before")
        if self.tenant and not allow_used:
            raise ConflictError("in use")
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

    async def list_others(self) -> tuple[Hold, ...]:
        return ()

    async def evict(self, pod: PodRef, why: str) -> str:
        self._maybe_away("evict")
        if self.budget < 0:
            raise NotAllowedError("it says gpuloom.dev/no-disrupt")
        if self.budget:
            self.budget -= 1
            return "a PodDisruptionBudget does not allow it now"
        assert OLD in {target.mig for target in self.holds.values()}
        self.leaving = True
        return ""

    async def change(self, node_uid: str, request: LayoutRequest) -> LayoutChange:
        self._maybe_away("agent-before")
        known = self.changes.get(request.id)
        self.touched = self.touched or bool(self.tenant)
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
        owners = {OLD: self.tenant}
        slices = (
            a_slice(f"{where.profile}@{where.start}", owners.get(where, "")) for where in sorted(self.shown)
        )
        return {GPU: a_card("n1", *slices)}


def transactions(world: World, clock: FakeClock) -> Transactions:
    metrics = MigMetrics(CollectorRegistry())
    return Transactions(TransactionParts(world, world, world, world, clock, metrics, world.reach))


async def one_life(world: World, clock: FakeClock, *, begins: bool) -> None:
    """Until nothing is open, or the controller dies."""
    own = transactions(world, clock)
    await own.take_over()
    if begins:
        await own.begin(MOVING if world.tenant else INTENT, "a pod waits")
    for _ in range(20):
        await own.settle(world.cards(), lambda uid: True)
        world.shown = set(world.places)
        world.tenant = "" if world.leaving else world.tenant
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
                "evict",
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
    budget=st.none() | st.integers(-1, 14),
)
def test_every_change_ends_and_leaves_nothing_behind(
    crash_at: int, again_at: int, away: list[str], refuses: bool, slow: int, budget: int | None
) -> None:
    tenant = "" if budget is None else TENANT
    world = World(
        agent_refuses=refuses,
        agent_slow=slow,
        away=list(away),
        crash_at=crash_at,
        tenant=tenant,
        budget=budget or 0,
    )

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
    assert not world.touched
    assert world.places == {OLD} or not world.tenant


async def test_a_pod_that_opted_out_meanwhile_stays_and_its_slice_with_it() -> None:
    world, clock = World(tenant=TENANT, budget=-1), FakeClock()
    own = transactions(world, clock)
    await own.take_over()
    await own.begin(MOVING, "a pod waits")

    await own.settle(world.cards(), lambda uid: True)

    assert (own.intents, world.holds, world.places) == ((), {}, {OLD})
    assert "team/tenant stays: it says gpuloom.dev/no-disrupt" in own.note_of(GPU)


async def test_a_pod_that_left_has_not_left_in_vain_because_its_node_still_sees_it() -> None:
    world, clock = World(tenant=TENANT), FakeClock()
    own = transactions(world, clock)
    await own.take_over()
    await own.begin(MOVING, "a pod waits")
    await own.settle(world.cards(), lambda uid: True)
    world.tenant, world.agent_refuses = "", True
    await own.settle(world.cards(), lambda uid: True)
    await clock.advance(10.0)
    world.agent_refuses = False

    await own.settle(world.cards(), lambda uid: True)

    assert world.places == {NEW}


async def test_a_budget_is_asked_again_until_the_change_is_given_up() -> None:
    world, clock = World(tenant=TENANT, budget=1000), FakeClock()
    own = transactions(world, clock)
    await own.take_over()
    await own.begin(MOVING, "a pod waits")
    await own.settle(world.cards(), lambda uid: True)
    shown = own.note_of(GPU)

    while own.intents:
        await clock.advance(30.0)
        await own.settle(world.cards(), lambda uid: True)

    assert "team/tenant stays for now: a PodDisruptionBudget does not allow it now" in shown
    assert world.budget <= 980
    assert (world.holds, world.places, world.tenant) == ({}, {OLD}, TENANT)


async def test_what_was_not_begun_is_not_found_by_whoever_leads_next() -> None:
    """It may be written although the API server was not heard to say so."""
    world, clock = World(away=["save-after"]), FakeClock()
    own = transactions(world, clock)
    await own.take_over()
    begun = await own.begin(INTENT, "a pod waits")
    world.away = ["save-before"]
    for _ in range(2):
        await own.settle(world.cards(), lambda uid: True)

    next_ = transactions(world, clock)
    await next_.take_over()

    assert not begun
    assert (next_.intents, world.holds, world.places) == ((), {}, {OLD})


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
