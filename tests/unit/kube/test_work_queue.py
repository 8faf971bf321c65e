"""Each key once, by one worker at a time, and none is lost."""

import asyncio
from collections import Counter
from random import Random

import pytest

from gpuloom.kube.objects import ObjectKey
from gpuloom.kube.work_queue import WorkQueue
from gpuloom.runtime.backoff import Backoff
from gpuloom.runtime.clock import FakeClock, settle

A, B, C = ("ns", "a"), ("ns", "b"), ("ns", "c")


def a_queue(clock: FakeClock, *everything: ObjectKey, capacity: int = 1000) -> WorkQueue:
    backoff = lambda: Backoff(1.0, 60.0, Random(0))  # noqa: E731
    return WorkQueue(clock, lambda: everything, capacity=capacity, new_backoff=backoff)


async def test_keys_come_once_in_the_order_in_which_they_were_added() -> None:
    queue = a_queue(FakeClock())

    for key in (A, B, A, C, B):
        queue.add(key)

    assert [await queue.get() for _ in range(3)] == [A, B, C]


async def test_what_changed_comes_before_what_is_only_gone_through_which_still_gets_its_turn() -> None:
    queue = a_queue(FakeClock())
    through = [("ns", f"old-{number}") for number in range(3)]
    changes = [("ns", f"new-{number}") for number in range(20)]
    queue.add(through[0])
    queue.add_behind(through)
    for key in (*changes, through[2]):
        queue.add(key)

    order = [await queue.get() for _ in range(23)]

    assert order[0] == changes[0]
    assert [key for key in order if key in changes] == changes
    assert order.index(through[0]) < 8
    assert set(order) == {*through, *changes}


async def test_a_key_that_changes_while_it_is_worked_on_comes_again_afterwards_and_not_before() -> None:
    queue = a_queue(FakeClock())
    queue.add(A)
    await queue.get()

    queue.add(A)
    waiting = asyncio.create_task(queue.get())
    await settle()
    early = waiting.done()
    queue.done(A)

    assert (early, await waiting) == (False, A)


async def test_what_is_for_later_comes_then_and_the_earlier_of_two_plans_stands() -> None:
    clock = FakeClock()
    queue = a_queue(clock)
    queue.add_after(A, 10.0)
    queue.add_after(A, 5.0)
    queue.add_after(A, 20.0)
    waiting = asyncio.create_task(queue.get())

    await clock.advance(4.9)
    early = waiting.done()
    await clock.advance(0.2)
    first = await waiting
    queue.done(first)
    await clock.advance(60.0)

    assert (early, first, len(queue)) == (False, A, 0)


async def test_failures_in_a_row_wait_longer_and_a_success_forgets_them() -> None:
    queue = a_queue(FakeClock())

    delays = [queue.add_after_failure(A) for _ in range(10)]
    queue.forget_failures(A)
    again = queue.add_after_failure(A)

    assert delays[0] <= 1.0 < delays[3] < delays[6]
    assert max(delays) <= 60.0
    assert again <= 1.0


async def test_a_flood_beyond_the_capacity_is_followed_by_everything() -> None:
    every = [("ns", str(number)) for number in range(8)]
    queue = a_queue(FakeClock(), *every, capacity=8)

    for number in range(100):
        queue.add(("ns", f"flood-{number}"))
    bounded = len(queue)
    got = [await queue.get() for _ in range(8)]
    for key in got:
        queue.done(key)
    rest = [await queue.get() for _ in range(8)]

    assert bounded == 8
    assert rest == every


@pytest.mark.parametrize("seed", range(20))
async def test_no_key_ever_has_two_workers_and_every_change_is_followed_by_work(seed: int) -> None:
    chance, clock = Random(seed), FakeClock()
    queue = a_queue(clock)
    keys = [("ns", str(number)) for number in range(4)]
    changed: dict[ObjectKey, int] = dict.fromkeys(keys, 0)
    seen: dict[ObjectKey, int] = dict.fromkeys(keys, 0)
    working: Counter[ObjectKey] = Counter()

    async def work() -> None:
        while True:
            key = await queue.get()
            working[key] += 1
            assert working[key] == 1
            state = changed[key]
            await clock.sleep(chance.choice([0.0, 0.5, 3.0]))
            if chance.random() < 0.3:
                queue.add_after_failure(key)
            else:
                seen[key] = max(seen[key], state)
                queue.forget_failures(key)
            working[key] -= 1
            queue.done(key)

    workers = [asyncio.create_task(work()) for _ in range(3)]
    for _ in range(200):
        key = chance.choice(keys)
        changed[key] += 1
        queue.add_after(key, chance.choice([0.0, 2.0])) if chance.random() < 0.3 else queue.add(key)
        await clock.advance(chance.choice([0.0, 0.1, 2.0]))
    for _ in range(400):
        await clock.advance(1.0)

    assert seen == changed
    assert len(queue) == 0
    for worker in workers:
        worker.cancel()
    await asyncio.gather(*workers, return_exceptions=True)
