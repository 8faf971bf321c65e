"""Many values of one GPU by one call, because each call costs a turn at the driver's lock."""

from collections.abc import Sequence

from services.node_agent.nvml.binding import Handle, nvml, optional

# A field's number, or its number and which part of the GPU is meant.
Field = int | tuple[int, int]
Fields = dict[int, int | float]

_GIVEN = 0
# The member of NVML's union that holds the value, by the value's type.
_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


def read_fields(handle: Handle, wanted: Sequence[Field]) -> Fields:
    """Those that this driver and this card give, by their number. Raise NvmlError if the GPU is gone."""
    values = optional(nvml.nvmlDeviceGetFieldValues, handle, list(wanted))
    if values is None:
        return {}
    return {
        int(value.fieldId): getattr(value.value, _MEMBERS[value.valueType])
        for value in values
        if value.nvmlReturn == _GIVEN and value.valueType < len(_MEMBERS)
    }
