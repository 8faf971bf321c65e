"""What a GPU counts that rarely moves: memory errors, retired pages, throttling, errors of NVLinks.

Most of it comes by the one call that reads fields. A value that the driver does not give is None, never 0.
"""

from collections.abc import Iterator, Mapping

from services.node_agent.core.readings import GpuCounters
from services.node_agent.nvml.binding import Handle, nvml, optional
from services.node_agent.nvml.fields import Field, Fields

# NVML's number of the field that has each counter.
_FIELDS: Mapping[str, int] = {
    "ecc_corrected_volatile": 3,
    "ecc_corrected_aggregate": 5,
    "ecc_uncorrected_aggregate": 6,
    "retired_pages_corrected": 29,
    "retired_pages_uncorrected": 30,
    "retired_pages_pending": 31,
    "nvlink_crc_flit_errors": 38,
    "nvlink_crc_data_errors": 45,
    "nvlink_replay_errors": 52,
    "nvlink_recovery_errors": 59,
    "power_violation_ns": 74,
    "thermal_violation_ns": 75,
    "sync_boost_violation_ns": 76,
    "board_limit_violation_ns": 77,
    "low_utilization_violation_ns": 78,
    "reliability_violation_ns": 79,
}
COUNTER_FIELDS: tuple[Field, ...] = tuple(_FIELDS.values())

# For drivers that don't give them as fields: kind of error and of counter, or NVML's number of the policy.
_CORRECTED, _UNCORRECTED = 0, 1
_VOLATILE, _AGGREGATE = 0, 1
_ECC: Mapping[str, tuple[int, int]] = {
    "ecc_corrected_volatile": (_CORRECTED, _VOLATILE),
    "ecc_corrected_aggregate": (_CORRECTED, _AGGREGATE),
    "ecc_uncorrected_aggregate": (_UNCORRECTED, _AGGREGATE),
}
_POLICIES: Mapping[str, int] = {
    "power_violation_ns": 0,
    "thermal_violation_ns": 1,
    "sync_boost_violation_ns": 2,
    "board_limit_violation_ns": 3,
    "low_utilization_violation_ns": 4,
    "reliability_violation_ns": 5,
}


def read_counters(handle: Handle, fields: Fields) -> GpuCounters:
    """`fields` are those of COUNTER_FIELDS that the driver gave. Raise NvmlError if the GPU is gone."""
    given = {name: int(fields[number]) for name, number in _FIELDS.items() if number in fields}
    return GpuCounters(**(dict(_by_functions(handle, given)) | given))


def _by_functions(handle: Handle, given: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    for name, (error, counter) in _ECC.items():
        if name not in given:
            errors = optional(nvml.nvmlDeviceGetTotalEccErrors, handle, error, counter)
            if errors is not None:
                yield name, int(errors)
    for name, policy in _POLICIES.items():
        if name not in given:
            violation = optional(nvml.nvmlDeviceGetViolationStatus, handle, policy)
            if violation is not None:
                yield name, int(violation.violationTime)
