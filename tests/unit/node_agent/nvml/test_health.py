"""Whether a GPU may be given out."""

from hypothesis import given
from hypothesis import strategies as st

from gpuloom.model.gpu import GpuHealth
from gpuloom.model.mig import MigInstance, MigPlacement
from services.node_agent.nvml.core.failure import Failure, failure_of_code
from services.node_agent.nvml.core.health import (
    QUIET_S,
    SETTLE_S,
    Condition,
    HealthFacts,
    XidClass,
    answered,
    classify,
    failed,
    forget_gone_instances,
    instance_fault,
    judge,
    judge_failure,
    report_xids,
)

WELL = HealthFacts(recovery_action=0, remap_pending=False, remap_failed=False, uncorrected_errors=0)
OLD_DRIVER = HealthFacts(remap_pending=False, remap_failed=False, uncorrected_errors=0)
SLICE = MigInstance(MigPlacement(4, "3g.20gb"), 4, 20096, "MIG-a")
OTHER = MigInstance(MigPlacement(0, "3g.20gb"), 4, 20096, "MIG-b")
LOST = failure_of_code(15, "GPU is lost")

xids = st.integers(min_value=1, max_value=200)


def test_a_quiet_gpu_is_healthy() -> None:
    assert judge(Condition(), WELL) == (GpuHealth.HEALTHY, "")
    assert judge(Condition(), HealthFacts()) == (GpuHealth.HEALTHY, "")


def test_errors_of_applications_and_notices_leave_no_trace() -> None:
    condition = report_xids(Condition(), [13, 31, 43, 45, 63, 68, 94, 109, 154], now_s=0.0)

    assert condition == Condition()


def test_a_fault_counts_until_the_driver_has_settled_and_asks_for_nothing() -> None:
    condition = report_xids(Condition(), [95], now_s=0.0)

    before = answered(condition, WELL, now_s=SETTLE_S - 1)
    after = answered(condition, WELL, now_s=SETTLE_S)

    assert judge(before, WELL)[0] is GpuHealth.UNHEALTHY
    assert judge(after, WELL) == (GpuHealth.HEALTHY, "")


def test_without_a_recovery_action_a_fault_counts_until_the_gpu_was_quiet() -> None:
    condition = report_xids(Condition(), [74], now_s=0.0)
    repeated = report_xids(condition, [74], now_s=QUIET_S - 1)

    quiet = answered(condition, OLD_DRIVER, now_s=QUIET_S)
    not_quiet = answered(repeated, OLD_DRIVER, now_s=QUIET_S)

    assert judge(quiet, OLD_DRIVER)[0] is GpuHealth.HEALTHY
    assert judge(not_quiet, OLD_DRIVER)[0] is GpuHealth.UNHEALTHY


def test_a_fault_of_before_the_reset_is_history() -> None:
    condition = failed(report_xids(Condition(), [79], now_s=0.0), LOST)

    back = answered(condition, OLD_DRIVER, now_s=1.0)

    assert back == Condition()


def test_a_call_that_failed_for_another_reason_forgets_nothing() -> None:
    condition = failed(report_xids(Condition(), [95], now_s=0.0), Failure(999, "unknown"))

    assert judge(answered(condition, WELL, now_s=1.0), WELL)[0] is GpuHealth.UNHEALTHY


def test_the_gravest_fault_is_the_reason() -> None:
    condition = report_xids(Condition(), [48, 64, 79], now_s=0.0)

    assert judge(condition, OLD_DRIVER)[1] == "XID 64, a memory row could not be remapped: replace the GPU"


def test_an_unknown_error_is_taken_seriously() -> None:
    assert classify(177) is XidClass.RESET


def test_what_the_driver_shows_outlives_the_agents_memory() -> None:
    action = HealthFacts(recovery_action=1)
    pending = HealthFacts(remap_pending=True)
    old_card = HealthFacts(uncorrected_errors=3)

    assert judge(Condition(), action) == (GpuHealth.UNHEALTHY, "the driver asks to reset the GPU")
    assert judge(Condition(), pending)[0] is GpuHealth.UNHEALTHY
    assert judge(Condition(), old_card)[0] is GpuHealth.UNHEALTHY


def test_an_action_that_is_not_known_yet_closes_the_gpu() -> None:
    health, reason = judge(Condition(), HealthFacts(recovery_action=42))

    assert (health, reason) == (GpuHealth.UNHEALTHY, "the driver asks: recovery action 42")


def test_a_driver_that_asks_for_nothing_is_believed_about_contained_errors() -> None:
    facts = HealthFacts(recovery_action=0, remap_pending=True, uncorrected_errors=2)

    assert judge(Condition(), facts)[0] is GpuHealth.HEALTHY


def test_a_fault_of_one_slice_is_no_fault_of_the_gpu_or_another_slice() -> None:
    condition = report_xids(Condition(), [95], now_s=0.0, instance=SLICE)

    assert judge(condition, WELL) == (GpuHealth.HEALTHY, "")
    assert instance_fault(condition, SLICE.placement) == (
        "XID 95, uncontained memory error: end its work and create the instance anew; "
        "if it comes back, drain and reset the GPU"
    )
    assert instance_fault(condition, OTHER.placement) == ""


def test_what_needs_a_reboot_or_a_new_card_concerns_every_slice() -> None:
    condition = report_xids(Condition(), [64, 79], now_s=0.0, instance=SLICE)

    assert judge(condition, WELL)[0] is GpuHealth.UNHEALTHY
    assert instance_fault(condition, SLICE.placement) == ""


def test_a_slice_recovers_as_a_gpu_does() -> None:
    condition = report_xids(Condition(), [95], now_s=0.0, instance=SLICE)

    assert instance_fault(answered(condition, WELL, now_s=SETTLE_S - 1), SLICE.placement) != ""
    assert instance_fault(answered(condition, WELL, now_s=SETTLE_S), SLICE.placement) == ""


def test_a_slice_that_was_made_anew_starts_clean() -> None:
    condition = report_xids(Condition(), [95], now_s=0.0, instance=SLICE)
    anew = MigInstance(SLICE.placement, 4, 20096, "MIG-c")

    assert forget_gone_instances(condition, [OTHER, SLICE]) == condition
    assert forget_gone_instances(condition, [OTHER, anew]) == Condition()
    assert forget_gone_instances(condition, [OTHER]) == Condition()


def test_failures_are_lost_ill_or_unknown() -> None:
    assert judge_failure(Condition(), LOST)[0] is GpuHealth.LOST
    assert judge_failure(Condition(), failure_of_code(16, ""))[0] is GpuHealth.UNHEALTHY
    assert judge_failure(Condition(), failure_of_code(999, "Unknown"))[0] is GpuHealth.UNKNOWN


@given(st.lists(xids, max_size=20), st.sampled_from([WELL, OLD_DRIVER]))
def test_every_gpu_recovers_once_it_is_quiet_and_looks_well(reported: list[int], facts: HealthFacts) -> None:
    condition = report_xids(Condition(), reported, now_s=0.0)

    later = answered(condition, facts, now_s=QUIET_S)

    assert judge(later, facts) == (GpuHealth.HEALTHY, "")


@given(st.lists(xids, max_size=20))
def test_a_gpu_that_is_not_healthy_says_why(reported: list[int]) -> None:
    health, reason = judge(report_xids(Condition(), reported, now_s=0.0), WELL)

    assert (health is GpuHealth.HEALTHY) == (reason == "")
