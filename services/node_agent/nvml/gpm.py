"""How busy the parts of a GPU are, per GPU or per MIG instance, on cards that measure it (Hopper and later).

A figure is what happened between two samples, so the first look at a device gives none.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from services.node_agent.nvml.binding import Handle, nvml, optional

# NVML's numbers of the metrics, all in percent.
_GRAPHICS, _SM, _TENSOR, _DRAM = 1, 2, 5, 10
_METRICS = (_GRAPHICS, _SM, _TENSOR, _DRAM)
_SUCCESS = 0


@dataclass(frozen=True, slots=True)
class Activity:
    """Shares of the time between the last two looks; None where the card does not measure it."""

    graphics_ratio: float | None = None
    sm_ratio: float | None = None
    tensor_ratio: float | None = None
    dram_ratio: float | None = None


class ActivityHistory:
    """The last samples of one GPU. Belongs to one thread at a time; one that hangs keeps it for good."""

    def __init__(self) -> None:
        self._last: dict[int | None, Handle] = {}

    def read(self, handle: Handle, instance_ids: Iterable[int | None]) -> dict[int | None, Activity]:
        """By GPU instance; None stands for the whole GPU. Raise NvmlError if the GPU is gone."""
        fresh: dict[int | None, Handle] = {}
        found = {}
        for instance_id in instance_ids:
            sample = _sample(handle, instance_id)
            if sample is None:
                continue
            fresh[instance_id] = sample
            before = self._last.get(instance_id)
            if before is not None:
                found[instance_id] = _between(before, sample)
        stale, self._last = self._last, fresh
        for sample in stale.values():
            optional(nvml.nvmlGpmSampleFree, sample)
        return found


def measures_activity(handle: Handle) -> bool:
    support = optional(nvml.nvmlGpmQueryDeviceSupport, handle)
    return support is not None and bool(support.isSupportedDevice)


def _sample(handle: Handle, instance_id: int | None) -> Handle | None:
    sample = optional(nvml.nvmlGpmSampleAlloc)
    if sample is None:
        return None
    if instance_id is None:
        filled = optional(nvml.nvmlGpmSampleGet, handle, sample)
    else:
        filled = optional(nvml.nvmlGpmMigSampleGet, handle, instance_id, sample)
    if filled is None:
        optional(nvml.nvmlGpmSampleFree, sample)
    return filled


def _between(before: Handle, after: Handle) -> Activity:
    wanted = nvml.c_nvmlGpmMetricsGet_t()
    wanted.version = nvml.NVML_GPM_METRICS_GET_VERSION
    wanted.numMetrics = len(_METRICS)
    wanted.sample1, wanted.sample2 = before, after
    for place, metric in enumerate(_METRICS):
        wanted.metrics[place].metricId = metric
    if optional(nvml.nvmlGpmMetricsGet, wanted) is None:
        return Activity()
    return Activity(*(_ratio(wanted.metrics[place]) for place in range(len(_METRICS))))


def _ratio(metric: Handle) -> float | None:
    return float(metric.value) / 100 if metric.nvmlReturn == _SUCCESS else None
