"""Changes of layouts, on simulated GPUs and through NVML: a GPU ends as it was or as asked."""

import asyncio
import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuloom.catalog import load_catalog
from gpuloom.errors import ConflictError
from gpuloom.model.gpu import SharingMode
from gpuloom.model.layout import ChangeState, LayoutRequest, Sharing
from gpuloom.model.mig import MigPlacement
from gpuloom.placement.mig_geometry import Geometry, Layout, legal_layouts
from services.node_agent.layout import layouts as layouts_module
from services.node_agent.layout.adapters.journal_file import JournalFile
from tests.contract.layout.rigs import (
    MODEL,
    Agent,
    Crash,
    Crashing,
    Rig,
    SimulatedRig,
    Slow,
    StandinRig,
    Users,
    opened,
)
from tests.effort import examples
from tests.mesh.waiting import running, until
from tests.nvml.library import STATE_VARIABLE, Standin, compile_library
from tests.nvml.machines import mig_machine

SMALL, MIDDLE, LARGE = MigPlacement(6, "1g.5gb"), MigPlacement(4, "2g.10gb"), MigPlacement(0, "3g.20gb")
PROFILES = tuple(
    profile
    for profile in load_catalog().mig_profiles(MODEL)
    if profile.name in ("1g.5gb", "2g.10gb", "3g.20gb")
)
GEOMETRY = Geometry(8, PROFILES)
LAYOUTS = sorted(legal_layouts(GEOMETRY))

Make = Callable[[], Rig]


@pytest.fixture(scope="session")
def standin_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = compile_library(tmp_path_factory.mktemp("nvml"))
    ctypes.CDLL(str(library))
    return library


@pytest.fixture(params=["simulated", pytest.param("nvml", marks=pytest.mark.real)])
def make(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Make:
    """Makes a machine with one GPU, not cut."""
    if request.param == "simulated":
        return lambda: SimulatedRig(tmp_path_factory.mktemp("rig"))
    request.getfixturevalue("standin_library")

    def standin() -> Rig:
        folder = tmp_path_factory.mktemp("rig")
        # Takes a mode at once, as Hopper and later do.
        keys = mig_machine(1) | {"all.mig.mode": 0, "all.architecture": 9}
        monkeypatch.setenv(STATE_VARIABLE, str(folder / "state"))
        return StandinRig(folder, Standin(folder / "state", keys))

    return standin


class SlowDisk:
    """Its writes last until it may go on, in threads of their own."""

    def __init__(self, save: Callable[[JournalFile, bytes], None]) -> None:
        self.go_on = threading.Event()
        self.at_once = 0
        self.most_at_once = 0
        self._save = save

    def save(self, file: JournalFile, content: bytes) -> None:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        self.go_on.wait(30)
        self._save(file, content)
        self.at_once -= 1


def cut(*places: MigPlacement, destroy: tuple[MigPlacement, ...] = ()) -> LayoutRequest:
    return LayoutRequest("c1", "", None, destroy, places)


def on(rig: Rig, request: LayoutRequest) -> LayoutRequest:
    return LayoutRequest(
        request.id, rig.gpu, request.mig_enabled, request.destroy, request.create, request.sharing
    )


async def a_cut_gpu(rig: Rig, *places: MigPlacement) -> None:
    agent = await Agent.start(rig)
    change = await agent.change(LayoutRequest("first", rig.gpu, True, (), places))
    assert change.state is ChangeState.DONE, change.reason


async def test_a_gpu_is_cut_and_cut_anew_at_exact_places(make: Make) -> None:
    async with opened(make()) as rig:
        await a_cut_gpu(rig, SMALL, LARGE)
        agent = await Agent.start(rig)

        change = await agent.change(on(rig, cut(MIDDLE, destroy=(LARGE,))))

        assert change.state is ChangeState.DONE
        assert await agent.places() == {SMALL, MIDDLE}
        assert not any(gpu.changing for gpu in agent.node.state.gpus)


async def test_the_same_id_is_not_done_twice(make: Make) -> None:
    async with opened(make()) as rig:
        await a_cut_gpu(rig, LARGE)
        agent = await Agent.start(rig)
        await agent.change(on(rig, cut(SMALL)))
        await agent.change(LayoutRequest("c2", rig.gpu, None, (SMALL,), ()))

        again = await agent.change(on(rig, cut(SMALL)))

        assert again.state is ChangeState.DONE
        assert await agent.places() == {LARGE}


async def test_two_leaders_that_ask_for_the_same_change_at_once_both_hear_of_it(make: Make) -> None:
    async with opened(make()) as rig:
        agent = await Agent.start(rig)
        working = asyncio.create_task(agent.layouts.run())
        request = LayoutRequest("c1", rig.gpu, True, (), (LARGE,))

        changes = await asyncio.gather(*(agent.layouts.change(request) for _ in range(2)))
        working.cancel()

        assert [change.state for change in changes] == [ChangeState.DONE, ChangeState.DONE]


@pytest.mark.parametrize(
    ("request_", "users", "said"),
    [
        (cut(destroy=(LARGE,)), {LARGE: "pod a/b"}, "3g.20gb at 0 is in use by pod a/b"),
        (cut(destroy=(LARGE,)), {None: "process 7"}, "in use by process 7"),
        (cut(MigPlacement(2, "2g.10gb")), {}, "overlaps another instance"),
        (cut(MigPlacement(1, "9g.90gb")), {}, "no profile 9g.90gb"),
        (LayoutRequest("c", "", False), {}, "can't be switched off while there is 3g.20gb at 0"),
        (LayoutRequest("c", "", sharing=Sharing(SharingMode.MPS)), {}, "switch MIG mode off first"),
    ],
)
async def test_what_must_not_be_touched_is_refused(
    make: Make, request_: LayoutRequest, users: dict[MigPlacement | None, str], said: str
) -> None:
    async with opened(make()) as rig:
        await a_cut_gpu(rig, LARGE)
        agent = await Agent.start(rig, users=Users(users))

        with pytest.raises(ConflictError, match=said):
            await agent.change(on(rig, request_))

        assert await agent.places() == {LARGE}
        assert not any(one.changing for one in agent.node.state.gpus)


async def test_a_boot_brings_the_layout_back_before_anything_is_shown(make: Make) -> None:
    async with opened(make()) as rig:
        await a_cut_gpu(rig, SMALL, MIDDLE, LARGE)
        rig.boot()

        agent = await Agent.start(rig)

        assert await agent.places() == {SMALL, MIDDLE, LARGE}


async def test_a_layout_that_is_not_back_in_time_is_restored_while_the_agent_serves(make: Make) -> None:
    async with opened(make()) as rig:
        await a_cut_gpu(rig, MIDDLE, LARGE)
        rig.boot()
        slow = Slow()

        agent = await Agent.start(rig, slow, patience_s=0.0)
        closed = [gpu.changing for gpu in agent.node.state.gpus]
        async with running(agent.layouts.run):
            slow.go_on.set()
            await until(lambda: not any(gpu.changing for gpu in agent.node.state.gpus))
        # A boot that was noted, or the next agent would take it for another one.
        await rig.driver().destroy(rig.gpu, LARGE)
        next_one = await Agent.start(rig)

        assert all(closed)
        assert await agent.places() == {MIDDLE}
        assert await next_one.places() == {MIDDLE}


async def test_a_card_that_was_taken_out_does_not_keep_the_boot_from_being_noted(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layouts_module, "_TEND_INTERVAL_S", 0.01)
    async with opened(make()) as rig:
        await a_cut_gpu(rig, MIDDLE, LARGE)
        file = rig.folder / "layouts.json"
        journal = orjson.loads(file.read_bytes())
        journal["wanted"]["GPU-taken-out"] = journal["wanted"][rig.gpu]
        file.write_bytes(orjson.dumps(journal))
        rig.boot()

        agent = await Agent.start(rig)
        agent.node.move_to(agent.node.state)
        async with running(agent.layouts.run):
            await until(lambda: orjson.loads(file.read_bytes())["boot"] == str(rig.boots))
        # What is taken away after it stays away.
        await rig.driver().destroy(rig.gpu, LARGE)
        next_one = await Agent.start(rig)

        assert await next_one.places() == {MIDDLE}
        assert "GPU-taken-out" in orjson.loads(file.read_bytes())["wanted"], "it may come back"


async def test_a_caller_that_leaves_does_not_tear_the_journal(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SlowDisk(JournalFile._save)

    def save(file: JournalFile, content: bytes) -> None:
        disk.save(file, content)

    async with opened(make()) as rig:
        agent = await Agent.start(rig)
        monkeypatch.setattr(JournalFile, "_save", save)
        request = LayoutRequest("c1", rig.gpu, True, (), (LARGE,))
        async with running(agent.layouts.run):
            leaves = asyncio.create_task(agent.layouts.change(request))
            await until(lambda: disk.at_once)
            leaves.cancel()
            again = asyncio.create_task(agent.layouts.change(request))
            for _ in range(20):
                await asyncio.sleep(0.005)
            disk.go_on.set()
            change = await again

        assert change.state is ChangeState.DONE
        assert disk.most_at_once == 1
        with pytest.raises(asyncio.CancelledError):
            await leaves


async def test_an_agent_whose_disk_is_full_serves_what_it_can_restore(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(self: JournalFile, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    async with opened(make()) as rig:
        await a_cut_gpu(rig, LARGE)
        rig.boot()
        monkeypatch.setattr(JournalFile, "save", full)

        agent = await Agent.start(rig)

        assert await agent.places() == {LARGE}


async def test_how_a_gpu_is_shared_is_changed_and_comes_back(make: Make) -> None:
    shared = Sharing(SharingMode.MPS, thread_percentage=25, memory_mib=4096, least_milli=250)
    async with opened(make()) as rig:
        agent = await Agent.start(rig)
        change = await agent.change(LayoutRequest("c", rig.gpu, sharing=shared))
        rig.boot()
        again = await Agent.start(rig)

        assert change.state is ChangeState.DONE
        assert (await again.layout()).sharing == shared


async def test_a_daemon_that_ended_with_its_agent_comes_back_before_the_gpu_is_offered(make: Make) -> None:
    shared = Sharing(SharingMode.MPS, least_milli=250)
    async with opened(make()) as rig:
        await (await Agent.start(rig)).change(LayoutRequest("c", rig.gpu, sharing=shared))
        await rig.sharing().stop(rig.gpu)

        again = await Agent.start(rig)

        assert (await again.layout()).sharing == shared
        assert [gpu.sharing for gpu in again.node.state.gpus] == [SharingMode.MPS]


class Fate(StrEnum):
    USED = "used"
    KEPT = "kept"
    GONE = "gone"


@st.composite
def changes(draw: st.DrawFn) -> tuple[tuple[MigPlacement, ...], LayoutRequest, tuple[MigPlacement, ...]]:
    """A layout, a legal change of it, and what nobody may touch."""
    before = draw(st.sampled_from(LAYOUTS))
    fates = draw(st.lists(st.sampled_from(Fate), min_size=len(before), max_size=len(before)))
    used = tuple(place for place, fate in zip(before, fates, strict=True) if fate is Fate.USED)
    destroy = tuple(place for place, fate in zip(before, fates, strict=True) if fate is Fate.GONE)
    layout = Layout(GEOMETRY, tuple(place for place in before if place not in destroy))
    create: list[MigPlacement] = []
    for profile in PROFILES:
        places = layout.places(profile)
        place = draw(st.sampled_from((None, *places)))
        if place is not None:
            create.append(place)
            layout = layout.with_instance(place)
    return before, LayoutRequest("c1", "", None, destroy, tuple(create)), used


@given(change=changes(), crash_at=st.integers(1, 14), again_at=st.integers(0, 8), boots=st.booleans())
@settings(
    max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_an_agent_that_dies_at_any_point_leaves_the_gpu_as_it_was_or_as_asked(
    make: Make,
    change: tuple[tuple[MigPlacement, ...], LayoutRequest, tuple[MigPlacement, ...]],
    crash_at: int,
    again_at: int,
    boots: bool,
) -> None:
    """Also if it dies again while it recovers, and if the machine boots in between."""
    asyncio.run(_crash(make, change, (crash_at, again_at), boots))


async def _crash(
    make: Make,
    change: tuple[tuple[MigPlacement, ...], LayoutRequest, tuple[MigPlacement, ...]],
    crashes: tuple[int, int],
    boots: bool,
) -> None:
    before, request, used = change
    async with opened(make()) as rig:
        await a_cut_gpu(rig, *before)
        users = Users(dict.fromkeys(used, "pod a/b"))
        agent = await Agent.start(rig, Crashing(crashes[0]), users)
        uuids = {one.placement: one.uuid for one in (await agent.layout()).instances}
        with _surviving():
            await agent.change(on(rig, request))
        if boots:
            rig.boot()
        with _surviving():
            await Agent.start(rig, Crashing(crashes[1]), users)

        last = await Agent.start(rig, users=users)

        asked = (set(before) - set(request.destroy)) | set(request.create)
        assert await last.places() in (set(before), asked)
        assert all(change.state.ended for change in (await last.layouts.list_now()).changes)
        assert not any(gpu.changing for gpu in last.node.state.gpus)
        if not boots:
            now = {one.placement: one.uuid for one in (await last.layout()).instances}
            assert {place: now.get(place) for place in used} == {place: uuids[place] for place in used}


@contextmanager
def _surviving() -> Iterator[None]:
    try:
        yield
    except Crash:
        return
    except BaseExceptionGroup as group:
        if group.subgroup(Crash) is None:
            raise
