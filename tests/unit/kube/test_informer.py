import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuloom.errors import UnavailableError
from gpuloom.kube.cache import Change
from gpuloom.kube.change_queue import RESYNC
from gpuloom.kube.errors import GoneError
from gpuloom.kube.informer import Informer, InformerOptions
from gpuloom.kube.objects import JsonObject, key_of, resource_version_of, uid_of, without_managed_fields
from gpuloom.kube.resources import PODS
from gpuloom.runtime.clock import FakeClock, settle
from tests.effort import examples
from tests.unit.kube.memory_api import MemoryApi

ALL_RETRIES_S = 60.0


def an_informer(api: MemoryApi, clock: FakeClock) -> Informer:
    return Informer(api, PODS, clock, InformerOptions(indexes={"color": lambda obj: [obj["color"]]}))


def uid_or_none(obj: JsonObject | None) -> str | None:
    return uid_of(obj) if obj is not None else None


@asynccontextmanager
async def running(informer: Informer) -> AsyncIterator[None]:
    task = asyncio.create_task(informer.run())
    await settle()
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})
    # An informer that ended by itself has an error to tell.
    if not task.cancelled():
        task.result()


async def test_it_is_synced_once_the_first_list_is_complete() -> None:
    api, clock = MemoryApi(), FakeClock()
    api.put("a")
    api.fail_lists(1)
    informer = an_informer(api, clock)

    async with running(informer):
        before = informer.synced
        await clock.advance(ALL_RETRIES_S)
        await informer.wait_synced()

    assert not before
    assert informer.get("a", "default") is not None


async def test_handlers_find_each_change_already_in_the_cache() -> None:
    api, clock = MemoryApi(), FakeClock()
    informer = an_informer(api, clock)
    found: list[bool] = []
    informer.on_change(lambda change: found.append(informer.by_uid(uid_of(change.object)) is change.new))

    async with running(informer):
        api.put("a")
        api.put("a", "blue")
        api.remove("a")
        await settle()

    assert found == [True, True, True]


async def test_a_namesake_is_a_deletion_and_an_addition_also_when_only_a_relist_shows_it() -> None:
    api, clock = MemoryApi(), FakeClock()
    informer = an_informer(api, clock)
    heard: list[tuple[str | None, str | None]] = []
    informer.on_change(lambda change: heard.append((uid_or_none(change.old), uid_or_none(change.new))))

    async with running(informer):
        api.put("a")
        await settle()
        api.cut(UnavailableError("connection lost"))
        api.remove("a")
        api.put("a")
        api.compact()
        await clock.advance(ALL_RETRIES_S)

    assert heard == [(None, "uid-1"), ("uid-1", None), (None, "uid-2")]
    assert informer.by_uid("uid-1") is None


async def test_a_handler_that_raises_ends_the_informer_with_its_error() -> None:
    api, clock = MemoryApi(), FakeClock()
    informer = an_informer(api, clock)

    def refuse(change: Change) -> None:
        raise UnavailableError("handler trouble that looks like API trouble")

    informer.on_change(refuse)
    api.put("a")

    with pytest.raises(UnavailableError, match="handler trouble"):
        await informer.run()


async def test_what_is_listed_and_what_is_watched_is_kept_alike() -> None:
    api, clock = MemoryApi(), FakeClock()
    api.put("listed")
    informer = Informer(api, PODS, clock, InformerOptions(transform=lambda obj: {**obj, "color": "grey"}))

    async with running(informer):
        api.put("watched")
        await settle()

    assert [obj["color"] for obj in informer.objects()] == ["grey", "grey"]


async def test_a_transform_that_raises_ends_the_informer_with_its_error() -> None:
    api, clock = MemoryApi(), FakeClock()
    api.put("a")
    informer = Informer(api, PODS, clock, InformerOptions(transform=lambda obj: {"color": obj["taste"]}))

    with pytest.raises(KeyError, match="taste"):
        async with running(informer):
            pass


async def test_a_handler_that_comes_late_hears_of_what_is_there() -> None:
    api, clock = MemoryApi(), FakeClock()
    api.put("a")
    informer = an_informer(api, clock)
    names: list[str] = []

    async with running(informer):
        informer.on_change(lambda change: names.append(change.key[1]))

    assert names == ["a"]


def colors(informer: Informer) -> dict[str, str]:
    return {key_of(obj)[1]: obj["color"] for obj in informer.objects()}


async def restored(api: MemoryApi, bump: int) -> None:
    """After a backup one object changed, one came and one went; then the backup was restored."""
    for name in ("changed", "gone", "same"):
        api.put(name)
    api.snapshot()
    api.put("changed", "blue")
    api.put("new")
    api.remove("gone")
    await settle()
    api.restore(bump)


@pytest.mark.parametrize("bump", [0, 1000])
async def test_after_a_restore_of_the_server_the_cache_is_the_restored_state(bump: int) -> None:
    api, clock = MemoryApi(), FakeClock()
    informer, follower = an_informer(api, clock), Follower()
    informer.on_rewind(follower.rewind)
    informer.on_change(follower.hear)

    async with running(informer):
        await restored(api, bump)
        await clock.advance(ALL_RETRIES_S)

        assert colors(informer) == {"changed": "red", "gone": "red", "same": "red"}
        assert follower.rewinds == 1
        assert informer.synced
        api.put("changed", "green")
        await settle()

    assert colors(informer)["changed"] == "green"
    assert follower.objects == {key_of(obj): obj for obj in informer.objects()}


async def test_a_restore_that_breaks_no_watch_is_noticed_within_a_minute() -> None:
    """As behind a proxy that holds connections. The watch stays silent, and ends as politely as ever."""
    api, clock = MemoryApi(), FakeClock()
    informer = an_informer(api, clock)

    async with running(informer):
        api.snapshot()
        for number in range(50):
            api.put("a", str(number))
        await settle()
        api.restore(polite=True)
        for _ in range(4):
            await clock.advance(20.0)
            api.cut()
        await clock.advance(ALL_RETRIES_S)

    assert not informer.objects()


async def test_an_event_from_before_what_was_seen_makes_the_informer_ask_at_once() -> None:
    api, clock = MemoryApi(), FakeClock()
    informer = an_informer(api, clock)

    async with running(informer):
        api.put("a")
        api.snapshot()
        api.put("a", "blue")
        await settle()
        api.restore(polite=True)
        await clock.advance(5.0)
        api.repeat_restored("a")
        await clock.advance(5.0)

    assert colors(informer) == {"a": "red"}


async def test_whoever_knows_of_a_restore_can_tell_also_when_versions_have_caught_up() -> None:
    api, clock = MemoryApi(), FakeClock()
    informer = an_informer(api, clock)

    async with running(informer):
        await restored(api, bump=0)
        for _ in range(20):
            api.put("other")
        await clock.advance(ALL_RETRIES_S)
        unnoticed = colors(informer)["changed"]

        informer.begin_anew()
        before = informer.synced
        await clock.advance(ALL_RETRIES_S)

        assert (unnoticed, before, informer.synced) == ("blue", False, True)
        assert colors(informer) == {"changed": "red", "gone": "red", "same": "red", "other": "red"}


async def test_silence_shows_in_the_age_of_the_last_contact() -> None:
    api, clock = MemoryApi(), FakeClock()
    informer = an_informer(api, clock)
    assert informer.last_contact_age_s() == float("inf")

    async with running(informer):
        await clock.advance(5.0)
        silent_s = informer.last_contact_age_s()
        api.bookmark()
        await settle()

    assert silent_s == 5.0
    assert informer.last_contact_age_s() == 0.0


async def test_a_server_that_ends_every_watch_at_once_is_not_hammered() -> None:
    api, clock = MemoryApi(), FakeClock()
    attempts = 0
    watch = api.watch

    def count_and_end(*args: object, **options: object) -> object:
        nonlocal attempts
        attempts += 1
        asyncio.get_running_loop().call_soon(api.cut)
        return watch(*args, **options)  # type: ignore[arg-type]

    api.watch = count_and_end  # type: ignore[assignment, method-assign]

    async with running(an_informer(api, clock)):
        api.cut()
        for _ in range(60):
            await clock.advance(1.0)
            api.cut()

    assert attempts < 25


async def test_a_subscriber_gets_keys_once_and_everything_after_an_overflow() -> None:
    api, clock = MemoryApi(), FakeClock()
    informer = an_informer(api, clock)
    queue = informer.subscribe(capacity=2)

    async with running(informer):
        api.put("a")
        api.put("a", "blue")
        api.put("b")
        await settle()
        first = [await queue.get(), await queue.get()]
        for name in "abc":
            api.put(name, "green")
        await settle()
        second = await queue.get()

    assert first == [("default", "a"), ("default", "b")]
    assert second is RESYNC
    assert len(queue) == 0


NAMES = st.sampled_from("ab")
COLORS = st.sampled_from(["red", "blue"])
STEPS: st.SearchStrategy[tuple[object, ...]] = st.one_of(
    st.tuples(st.just("put"), NAMES, COLORS),
    st.tuples(st.just("remove"), NAMES),
    st.tuples(st.just("recreate"), NAMES),
    st.tuples(st.just("repeat"), st.integers(1, 4)),
    st.tuples(st.just("bookmark")),
    st.tuples(st.just("end")),
    st.tuples(st.just("break")),
    st.tuples(st.just("gone")),
    st.tuples(st.just("compact")),
    st.tuples(st.just("fail lists"), st.integers(1, 2)),
    st.tuples(st.just("snapshot")),
    st.tuples(st.just("restore"), st.sampled_from([0, 1000])),
    st.tuples(st.just("settle")),
    st.tuples(st.just("advance"), st.floats(0.01, 30.0)),
)


async def play(step: tuple[object, ...], api: MemoryApi, clock: FakeClock) -> None:
    name, *arguments = step
    if name == "settle":
        await settle()
    elif name == "advance":
        await clock.advance(*arguments)  # type: ignore[arg-type]
    else:
        actions: dict[object, Callable[..., None]] = {
            "put": api.put,
            "remove": api.remove,
            "recreate": api.recreate,
            "repeat": api.repeat,
            "bookmark": api.bookmark,
            "end": api.cut,
            "break": lambda: api.cut(UnavailableError("connection lost")),
            "gone": lambda: api.cut(GoneError("too old")),
            "compact": api.compact,
            "snapshot": api.snapshot,
            "restore": api.restore,
            "fail lists": api.fail_lists,
        }
        actions[name](*arguments)
    if name == "restore":
        # Versions that have caught up before the server is asked hide a restore. No watch lasts for a minute.
        api.fail_lists(0)
        await clock.advance(ALL_RETRIES_S)
        api.cut()
        await clock.advance(ALL_RETRIES_S)


class Follower:
    """Rebuilds the state from changes alone, and checks that each follows from the one before."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], JsonObject] = {}
        self.ended: set[str] = set()
        self.rewinds = 0

    def rewind(self) -> None:
        self.ended.clear()
        self.rewinds += 1

    def hear(self, change: Change) -> None:
        assert self.objects.get(change.key) is change.old
        assert change.old is not change.new
        if change.old is not None and change.new is not None:
            assert uid_of(change.old) == uid_of(change.new)
            versions = [int(resource_version_of(obj)) for obj in (change.old, change.new)]
            assert versions[0] < versions[1] or self.rewinds
        assert uid_of(change.object) not in self.ended
        if change.new is None:
            self.ended.add(uid_of(change.object))
            del self.objects[change.key]
        else:
            self.objects[change.key] = change.new


@settings(max_examples=examples(300))
@given(steps=st.lists(STEPS, min_size=15, max_size=60))
def test_any_history_ends_in_the_same_cache_as_a_fresh_list(steps: list[tuple[object, ...]]) -> None:
    async def scenario() -> None:
        api, clock = MemoryApi(), FakeClock()
        informer, follower = an_informer(api, clock), Follower()
        informer.on_change(follower.hear)
        informer.on_rewind(follower.rewind)

        async with running(informer):
            for step in steps:
                await play(step, api, clock)
            api.fail_lists(0)
            await clock.advance(ALL_RETRIES_S)

        fresh = {key: without_managed_fields(obj) for key, obj in api.objects.items()}
        assert {key_of(obj): obj for obj in informer.objects()} == fresh
        assert follower.objects == fresh
        for obj in fresh.values():
            assert informer.by_uid(uid_of(obj)) == obj
        for color in ("red", "blue", "green"):
            indexed = {key_of(obj) for obj in informer.by_index("color", color)}
            assert indexed == {key for key, obj in fresh.items() if obj["color"] == color}

    asyncio.run(scenario())
