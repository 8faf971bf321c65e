"""Who leaves first, and how much of a notice everybody gets."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from gpuloom.model.node import PodRef
from gpuloom.model.policies import CapacityType
from services.autoscaler.core.buying.offerings import OfferingKey
from services.autoscaler.core.lifecycle.drain import (
    ANNOTATION_PRIORITY,
    LABEL_WORKLOAD_TYPE,
    EvictionPriority,
    Tenant,
    eviction_priority,
    evictions,
    is_drained,
)
from services.autoscaler.core.scaling.spot import alternatives, notice_of
from tests.unit.autoscaler.builders import NOW, an_offering


def a_tenant(name: str, priority: EvictionPriority, **options: object) -> Tenant:
    return Tenant(PodRef("team", name, f"uid-{name}"), priority, **options)  # type: ignore[arg-type]


ALL = [a_tenant(priority.value, priority, grace_s=600.0) for priority in EvictionPriority]


def leaving(at_s: float, tenants: list[Tenant], notice_s: float | None = 120.0) -> list[str]:
    deadline = None if notice_s is None else NOW + timedelta(seconds=notice_s)
    return [one.tenant.ref.name for one in evictions(tenants, NOW, deadline, NOW + timedelta(seconds=at_s))]


def test_f22_within_a_notice_low_leaves_first_and_training_last() -> None:
    assert leaving(0, ALL) == ["low"]
    assert leaving(18, ALL) == ["low", "medium"]
    assert leaving(48, ALL) == ["low", "medium", "high"]
    assert leaving(0, ALL[1:]) == ["medium"]
    assert leaving(0, ALL[2:]) == ["high"]


def test_without_a_notice_a_class_waits_for_the_one_before() -> None:
    assert leaving(10_000, ALL, None) == ["low"]
    assert leaving(0, [a_tenant("low", EvictionPriority.LOW, leaving=True), *ALL[1:]], None) == []


@given(at_s=st.floats(0, 119), grace_s=st.floats(1, 3600))
def test_no_grace_is_longer_than_what_is_left(at_s: float, grace_s: float) -> None:
    tenant = a_tenant("high", EvictionPriority.HIGH, grace_s=grace_s)
    now = NOW + timedelta(seconds=at_s)

    (eviction,) = evictions([tenant], NOW, NOW + timedelta(seconds=120), now)

    assert eviction.grace_s <= max(1.0, 120.0 - at_s) + 1e-6


def test_priorities_come_from_the_annotation_else_from_the_kind_of_work() -> None:
    assert eviction_priority({ANNOTATION_PRIORITY: "high"}, {LABEL_WORKLOAD_TYPE: "dev"}) == "high"
    assert eviction_priority({}, {LABEL_WORKLOAD_TYPE: "batch"}) == "low"
    assert eviction_priority({}, {LABEL_WORKLOAD_TYPE: "training"}) == "high"
    assert eviction_priority({ANNOTATION_PRIORITY: "urgent"}, {}) == "medium"


def test_daemons_belong_to_the_node() -> None:
    daemon = a_tenant("agent", EvictionPriority.LOW, daemon=True)

    assert is_drained([daemon])
    assert leaving(0, [daemon, ALL[2]]) == ["high"]


def test_a_notice_without_a_time_is_two_minutes_and_becomes_a_false_alarm() -> None:
    notice = notice_of("node", None, NOW)

    assert notice.ends == NOW + timedelta(minutes=2)
    assert not notice.is_false_alarm(NOW + timedelta(minutes=6))
    assert notice.is_false_alarm(NOW + timedelta(minutes=7))


def test_a_notice_for_the_end_of_time_is_a_notice() -> None:
    """Anybody who may annotate a node can write it."""
    notice = notice_of("node", datetime.max.replace(tzinfo=UTC), NOW)

    assert not notice.is_false_alarm(NOW)


def test_a_replacement_comes_from_elsewhere_if_there_is_an_elsewhere() -> None:
    lost = OfferingKey("g5.xlarge", "zone-a", CapacityType.SPOT)
    same = an_offering("g5.xlarge", 0.4, tier=CapacityType.SPOT)
    other_zone = an_offering("g5.xlarge", 0.4, tier=CapacityType.SPOT, zone="zone-b")
    firm = an_offering("g5.xlarge", 1.0)

    assert alternatives([same, other_zone, firm], lost) == [other_zone, firm]
    assert alternatives([same], lost) == [same]
