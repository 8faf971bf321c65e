"""The simulated scheduler's queue."""

from hypothesis import given
from hypothesis import strategies as st

from gpuloom.codec.scheduling import schedulable_pod
from gpuloom.placement.constraints.objects import NodeUse
from gpuloom.sim.scheduler.queue import SchedulingQueue, backoff_s
from tests.unit.sim.builders import a_pod

EMPTY = NodeUse({}, 0)
Json = dict[str, object]


def queued(queue: SchedulingQueue, *names: str, at_s: float = 0.0, priority: int = 0) -> None:
    for name in names:
        queue.put(schedulable_pod(a_pod(name, priority=priority)), at_s)


def popped(queue: SchedulingQueue, now_s: float) -> str | None:
    entry = queue.pop(now_s)
    return None if entry is None else entry.pod.name


def test_pods_come_by_priority_then_by_age() -> None:
    queue = SchedulingQueue()
    queued(queue, "old", at_s=0)
    queued(queue, "young", at_s=1)
    queued(queue, "urgent", at_s=2, priority=1000)

    order = [popped(queue, 3) for _ in range(4)]

    assert order == ["urgent", "old", "young", None]


def test_backoff_doubles_to_ten_seconds() -> None:
    assert [backoff_s(attempt) for attempt in range(1, 7)] == [1, 2, 4, 8, 10, 10]


def test_a_failed_try_comes_back_after_its_backoff() -> None:
    queue = SchedulingQueue()
    queued(queue, "p")
    queue.pop(0)

    queue.failed("uid-p", 0)

    assert queue.next_due_s() == 1
    assert popped(queue, 0.9) is None
    assert popped(queue, 1.0) == "p"


def test_an_unschedulable_pod_sleeps_until_the_cluster_changes() -> None:
    queue = SchedulingQueue()
    queued(queue, "p")
    queue.pop(0)
    queue.unschedulable("uid-p", 0)

    asleep = popped(queue, 100)
    queue.wake_all(100)

    assert asleep is None
    assert popped(queue, 100) == "p"


def test_a_wake_within_the_backoff_waits_for_its_end() -> None:
    queue = SchedulingQueue()
    queued(queue, "p")
    queue.pop(0)
    queue.unschedulable("uid-p", 0)

    queue.wake_all(0.5)

    assert popped(queue, 0.5) is None
    assert popped(queue, 1.0) == "p"


def test_a_change_during_a_try_makes_its_verdict_old() -> None:
    queue = SchedulingQueue()
    queued(queue, "p")
    queue.pop(0)

    queue.wake_all(0.1)
    queue.unschedulable("uid-p", 0.2)

    assert popped(queue, 1.2) == "p"


def test_an_unschedulable_pod_is_tried_again_after_five_minutes() -> None:
    queue = SchedulingQueue()
    queued(queue, "p")
    queue.pop(0)
    queue.unschedulable("uid-p", 0)

    assert queue.next_due_s() == 300
    assert popped(queue, 299) is None
    assert popped(queue, 300) == "p"


def test_a_change_of_the_pod_itself_wakes_it_but_its_status_does_not() -> None:
    queue = SchedulingQueue()
    queued(queue, "p")
    queue.pop(0)
    queue.unschedulable("uid-p", 0)

    queue.put(schedulable_pod(a_pod("p")), 5, changed=False)
    after_status = popped(queue, 5)
    queue.put(schedulable_pod(a_pod("p", annotations={"gpuloom.dev/epoch": "2"})), 6, changed=True)

    assert after_status is None
    assert popped(queue, 6) == "p"


def test_a_pod_seen_bound_during_its_try_is_not_tried_again() -> None:
    queue = SchedulingQueue()
    queued(queue, "p")
    queue.pop(0)

    queue.remove("uid-p")
    queue.failed("uid-p", 0)

    assert len(queue) == 0
    assert popped(queue, 100) is None


@given(
    st.lists(
        st.tuples(st.sampled_from(["put", "pop", "fail", "sleep", "wake", "remove"]), st.integers(0, 4)),
        max_size=60,
    )
)
def test_a_pod_is_in_the_queue_once_whatever_happens(steps: list[tuple[str, int]]) -> None:
    queue = SchedulingQueue()
    expected: set[str] = set()
    for now_s, (step, number) in enumerate(steps):
        uid = f"uid-p{number}"
        match step:
            case "put":
                queue.put(schedulable_pod(a_pod(f"p{number}")), now_s)
                expected.add(uid)
            case "pop":
                queue.pop(now_s)
            case "fail":
                queue.failed(uid, now_s)
            case "sleep":
                queue.unschedulable(uid, now_s)
            case "wake":
                queue.wake_all(now_s)
            case "remove":
                queue.remove(uid)
                expected.discard(uid)

    assert len(queue) == len(expected)
    assert all(uid in queue for uid in expected)
