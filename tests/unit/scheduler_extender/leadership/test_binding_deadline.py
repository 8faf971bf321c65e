"""A Binding is sent only while nobody else can be the leader before it is over."""

import math

import pytest

from gpuloom.kube.client import PodBinding
from services.scheduler_extender.core.verbs.wire import BindCall
from services.scheduler_extender.inquiries.decisions import DecisionLog
from services.scheduler_extender.verbs.binding import LEAST_TIMEOUT_S, BindContext, Bindings
from tests.unit.scheduler_extender.bind_setup import POD, Desk
from tests.unit.scheduler_extender.builders import a_pod

TIMEOUT_S = 4.0
UNSURE = "this extender can't be sure to be the leader for long enough"


class Deadline:
    """A mandate until a given time, and a binder that notes how long it may take."""

    def __init__(self, until_s: float) -> None:
        self._until_s = until_s
        self.timeouts_s: list[float] = []
        self.versions: list[str | None] = []

    def until_s(self) -> float:
        return self._until_s

    async def bind(self, binding: PodBinding, *, timeout_s: float) -> None:
        self.timeouts_s.append(timeout_s)
        self.versions.append(binding.resource_version)


async def bind(desk: Desk, deadline: Deadline, timeout_s: float = TIMEOUT_S) -> str:
    context = BindContext(desk.state.ledger, desk.state.views, DecisionLog(desk.clock), desk.clock)
    bindings = Bindings(context, desk.api, deadline, timeout_s, deadline)
    return await bindings.bind(BindCall(POD.namespace, POD.name, POD.uid, "n1"))


@pytest.mark.parametrize(
    ("left_s", "timeout_s"), [(math.inf, TIMEOUT_S), (10.0, TIMEOUT_S), (2.5, 2.5), (LEAST_TIMEOUT_S, 1.0)]
)
async def test_the_server_gives_a_binding_up_before_the_lease_ends(left_s: float, timeout_s: float) -> None:
    desk = Desk(a_pod(POD))
    desk.clock.elapsed_s = 100.0
    deadline = Deadline(100.0 + left_s)

    answer = await bind(desk, deadline)

    assert answer == ""
    assert deadline.timeouts_s == [timeout_s]


@pytest.mark.parametrize("left_s", [0.9, 0.0, -1.0, -math.inf])
async def test_a_leader_that_is_not_sure_sends_nothing_and_holds_nothing(left_s: float) -> None:
    desk = Desk(a_pod(POD))
    deadline = Deadline(left_s)

    answer = await bind(desk, deadline)

    assert answer == UNSURE
    assert deadline.timeouts_s == []
    assert desk.held_cards() == 0


async def test_a_short_timeout_of_ones_own_is_enough_time() -> None:
    deadline = Deadline(0.5)

    answer = await bind(Desk(a_pod(POD)), deadline, timeout_s=0.3)

    assert answer == ""
    assert deadline.timeouts_s == [0.3]


async def test_a_binding_carries_the_version_that_was_read_before_the_check() -> None:
    desk, deadline = Desk(a_pod(POD)), Deadline(math.inf)
    version = desk.api.present["pod"]["metadata"]["resourceVersion"]

    await bind(desk, deadline)

    assert deadline.versions == [version]
