"""When a hold ends by its own time, whoever wrote that."""

from datetime import UTC, datetime

import pytest

from gpuloom.kube.cache import Change
from gpuloom.model.claims import HoldOwner
from gpuloom.model.ledger import Hold
from gpuloom.runtime.clock import FakeClock
from tests.unit.scheduler_extender.planning.desk import Kubernetes, Leader


@pytest.mark.parametrize(
    ("expires", "left"),
    [
        (datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC), ["kept"]),
        (None, ["kept"]),
        (datetime(1, 1, 1, tzinfo=UTC), []),
    ],
)
async def test_a_hold_of_a_person_ends_at_whatever_time_he_wrote(
    expires: datetime | None, left: list[str]
) -> None:
    kubernetes = Kubernetes({"n1": 1})
    leader = Leader(kubernetes, FakeClock())
    await kubernetes.holds.create(
        Hold("kept", "n1", HoldOwner("User", "me"), "mine", expires=expires), timeout_s=1
    )
    leader.state.observe_hold(Change(None, kubernetes.holds.objects["kept"]))

    await leader.holding.tidy()

    assert list(kubernetes.holds.objects) == left
