"""Whether a GPU may be given out, from what its driver shows and the errors (XIDs) it reported. Pure.

What the driver shows now rules: it survives a restart of the agent, and it clears when the GPU is well again.
An XID only bridges the time until the driver shows its consequence, or, on drivers that show none, until the
GPU has been quiet for long. Errors of applications say nothing about the GPU. An error that the driver finds
in one MIG instance closes that instance alone, unless its remedy concerns the whole card.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from gpuloom.model.gpu import GpuHealth
from gpuloom.model.mig import MigInstance, MigPlacement
from services.node_agent.nvml.core.failure import GPU_IS_LOST, RESET_REQUIRED, Failure

# The driver may need a moment after an XID until it shows which recovery it wants.
SETTLE_S = 10.0
# Without a recovery action to read, a GPU that reported nothing for so long is taken as working again.
QUIET_S = 600.0


class XidClass(StrEnum):
    APPLICATION = "application"
    NOTICE = "notice"
    RESET = "reset"
    REBOOT = "reboot"
    REPLACE = "replace"


_CLASSES = {
    13: XidClass.APPLICATION,
    31: XidClass.APPLICATION,
    43: XidClass.APPLICATION,
    45: XidClass.APPLICATION,
    68: XidClass.APPLICATION,
    109: XidClass.APPLICATION,
    63: XidClass.NOTICE,
    92: XidClass.NOTICE,
    94: XidClass.NOTICE,
    154: XidClass.NOTICE,
    48: XidClass.RESET,
    74: XidClass.RESET,
    95: XidClass.RESET,
    119: XidClass.RESET,
    120: XidClass.RESET,
    79: XidClass.REBOOT,
    64: XidClass.REPLACE,
}
_SEVERITY = (XidClass.RESET, XidClass.REBOOT, XidClass.REPLACE)
_XID_NAMES = {
    48: "uncorrectable memory error",
    64: "a memory row could not be remapped",
    74: "NVLink error",
    79: "the GPU fell off the bus",
    95: "uncontained memory error",
    119: "the GPU's system processor does not answer",
    120: "the GPU's system processor failed",
}
_REMEDIES = {
    XidClass.RESET: "drain and reset the GPU",
    XidClass.REBOOT: "drain and reboot the node",
    XidClass.REPLACE: "replace the GPU",
}
_INSTANCE_REMEDY = "end its work and create the instance anew; if it comes back, drain and reset the GPU"
_ACTIONS = {
    1: "reset the GPU",
    2: "reboot the node",
    3: "drain work that uses peer-to-peer traffic",
    4: "drain and reset the GPU",
    5: "recover the IMEX domain",
    6: "reset the bus",
    7: "reboot the system",
}


@dataclass(frozen=True, slots=True)
class HealthFacts:
    """What the driver shows now. None where this driver or card does not say."""

    recovery_action: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    uncorrected_errors: int | None = None
    mig_failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class XidFault:
    """`placement` and `instance_uuid` name the MIG instance it is of; None and empty: it is the GPU's."""

    xid: int
    at_s: float
    placement: MigPlacement | None = None
    instance_uuid: str = ""


@dataclass(frozen=True, slots=True)
class Condition:
    """What is remembered of one GPU: its open faults, one per XID and place, and whether it was lost."""

    faults: tuple[XidFault, ...] = ()
    was_lost: bool = False


def classify(xid: int) -> XidClass:
    """An XID that is not known is taken seriously: the driver's own view soon says whether it was."""
    return _CLASSES.get(xid, XidClass.RESET)


def report_xids(
    condition: Condition, xids: Iterable[int], now_s: float, instance: MigInstance | None = None
) -> Condition:
    """Errors came in, of this instance or of the whole GPU. A repeated one starts its time anew."""
    faults = {_place_of(fault): fault for fault in condition.faults}
    for xid in xids:
        if classify(xid) in _SEVERITY:
            fault = _fault(xid, now_s, instance)
            faults[_place_of(fault)] = fault
    return replace(condition, faults=tuple(faults[place] for place in sorted(faults)))


def forget_gone_instances(condition: Condition, instances: Iterable[MigInstance]) -> Condition:
    """Drop the faults of instances that are not there any more, or were made anew: those start clean."""
    uuids = {instance.placement: instance.uuid for instance in instances}
    kept = tuple(
        fault
        for fault in condition.faults
        if fault.placement is None
        or (fault.placement in uuids and uuids[fault.placement] in (fault.instance_uuid, ""))
    )
    return replace(condition, faults=kept)


def answered(condition: Condition, facts: HealthFacts, now_s: float) -> Condition:
    """The GPU was read: drop the faults that are over."""
    if condition.was_lost:
        # It left and came back, by a reset or a reboot of the driver: what went before is history.
        return Condition()
    keep_s = QUIET_S if facts.recovery_action is None else SETTLE_S
    return replace(condition, faults=tuple(f for f in condition.faults if now_s - f.at_s < keep_s))


def failed(condition: Condition, failure: Failure) -> Condition:
    return replace(condition, was_lost=True) if failure.code == GPU_IS_LOST else condition


def judge(condition: Condition, facts: HealthFacts) -> tuple[GpuHealth, str]:
    """Health and reason of a GPU that answers."""
    reason = _shown_reason(facts) or _xid_reason(condition)
    if reason:
        return GpuHealth.UNHEALTHY, reason
    if facts.mig_failure is not None:
        return GpuHealth.UNKNOWN, f"its MIG instances can't be read: {facts.mig_failure.text}"
    return GpuHealth.HEALTHY, ""


def instance_fault(condition: Condition, placement: MigPlacement) -> str:
    """Why this MIG instance alone must not be given out; empty if nothing is known against it."""
    fault = _worst(condition, placement)
    return "" if fault is None else f"XID {fault.xid}, {_name(fault.xid)}: {_INSTANCE_REMEDY}"


def judge_failure(condition: Condition, failure: Failure) -> tuple[GpuHealth, str]:
    """Health and reason of a GPU whose reading failed."""
    xids = _xid_reason(condition)
    reason = f"{failure.text}; {xids}" if xids else failure.text
    if failure.code == GPU_IS_LOST:
        return GpuHealth.LOST, reason
    return (GpuHealth.UNHEALTHY if failure.code == RESET_REQUIRED or xids else GpuHealth.UNKNOWN), reason


def _shown_reason(facts: HealthFacts) -> str:
    if facts.remap_failed:
        return "a memory row could not be remapped: replace the GPU"
    if facts.recovery_action is not None:
        if facts.recovery_action == 0:
            return ""
        action = _ACTIONS.get(facts.recovery_action, f"recovery action {facts.recovery_action}")
        return (
            f"the driver asks to {action}"
            if facts.recovery_action in _ACTIONS
            else f"the driver asks: {action}"
        )
    if facts.remap_pending:
        return "a memory row waits to be remapped: drain and reset the GPU"
    # Cards that remap rows contain such errors; on older ones the memory stays bad until a reset.
    if facts.uncorrected_errors and facts.remap_pending is None:
        return "uncorrectable memory errors since the last reset: drain and reset the GPU"
    return ""


def _xid_reason(condition: Condition) -> str:
    fault = _worst(condition, None)
    return "" if fault is None else f"XID {fault.xid}, {_name(fault.xid)}: {_REMEDIES[classify(fault.xid)]}"


def _worst(condition: Condition, placement: MigPlacement | None) -> XidFault | None:
    faults = [fault for fault in condition.faults if fault.placement == placement]
    return max(faults, key=lambda f: (_SEVERITY.index(classify(f.xid)), -f.xid), default=None)


def _name(xid: int) -> str:
    return _XID_NAMES.get(xid, "an error of the GPU")


def _fault(xid: int, now_s: float, instance: MigInstance | None) -> XidFault:
    # To reboot the node or to replace the card concerns every instance, whichever met the error.
    if instance is None or classify(xid) is not XidClass.RESET:
        return XidFault(xid, now_s)
    return XidFault(xid, now_s, instance.placement, instance.uuid)


def _place_of(fault: XidFault) -> tuple[int, int, str]:
    place = fault.placement
    return (fault.xid, -1, "") if place is None else (fault.xid, place.start, place.profile)
