"""What an event of one pod costs does not depend on how many binds of others are under way."""

from collections.abc import Callable
from functools import partial

from services.scheduler_extender.core.ledger.attempts import Attempt
from services.scheduler_extender.core.ledger.ledger import Ledger
from tests.unit.scheduler_extender.builders import a_pod, a_ref, an_allocation, an_observed_pod, given
from tests.unit.scheduler_extender.costs import lines_run

POD = a_ref("pod")
GIVEN = an_allocation(POD, given("GPU-0"))


def a_ledger(others: int) -> Ledger:
    ledger = Ledger(settle_s=30.0)
    ledger.observe_node("node", "uid-node")
    for number in range(others):
        ref = a_ref(f"other-{number}")
        allocation = an_allocation(ref, given(f"GPU-{number}"), node_uid=f"uid-{number}")
        ledger.begin(Attempt(ref, f"node-{number}", allocation))
    ledger.begin(Attempt(POD, "node", GIVEN))
    return ledger


def test_a_bind_is_confirmed_dropped_and_looked_up_without_a_look_at_others() -> None:
    bound = an_observed_pod(a_pod(POD, node="node", allocation=GIVEN))
    events: list[Callable[[Ledger], object]] = [
        lambda ledger: ledger.observe_pod(bound, 1.0),
        lambda ledger: ledger.observe_gone(POD.uid, 1.0),
        lambda ledger: ledger.has_heard_of("uid-nobody"),
        lambda ledger: ledger.attempts_of(POD.uid),
    ]

    for event in events:
        few, many = (lines_run(partial(event, a_ledger(others))) for others in (1, 200))

        assert few == many
