"""How busy the parts of a GPU are, per GPU or per MIG instance, on cards that measure it (Hopper and later).

A figure is what happened between two samples, so the first sample of a device gives none.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass

from services.node_agent.core.readings import Activity
from services.node_agent.nvml.binding import Handle, NvmlError, nvml, optional
from services.node_agent.nvml.inventory import MIB

# NVML's numbers of the metrics: shares in percent, then traffic in MiB a second.
_SHARES = (1, 2, 5, 10)
_TRAFFIC = (20, 21)
_METRICS = (*_SHARES, *_TRAFFIC)
_SUCCESS = 0


@dataclass(slots=True)
class _Samples:
    """Two samples that take turns: allocating them anew would double the calls."""

    spare: Handle
    last: Handle
    filled: bool = False


class ActivityHistory:
    """The last samples of one GPU. Belongs to one thread at a time; one that hangs keeps it for good."""

    def __init__(self) -> None:
        self._samples: dict[int | None, _Samples] = {}

    def read(self, handle: Handle, instance_ids: Collection[int | None]) -> dict[int | None, Activity]:
        """By GPU instance; None stands for the whole GPU. Raise NvmlError if the GPU is gone."""
        for gone in self._samples.keys() - set(instance_ids):
            self._drop(gone)
        found = {}
        for instance_id in instance_ids:
            activity = self._since_last(handle, instance_id)
            if activity is not None:
                found[instance_id] = activity
        return found

    def close(self) -> None:
        """Before its session is closed."""
        try:
            for instance_id in list(self._samples):
                self._drop(instance_id)
        except NvmlError:
            # The session is gone, and the samples with it.
            self._samples = {}

    def _since_last(self, handle: Handle, instance_id: int | None) -> Activity | None:
        samples = self._samples.get(instance_id) or self._allocate(instance_id)
        if samples is None:
            return None
        if not _fill(handle, instance_id, samples.spare):
            self._drop(instance_id)
            return None
        activity = _between(samples.last, samples.spare) if samples.filled else None
        samples.spare, samples.last, samples.filled = samples.last, samples.spare, True
        return activity

    def _allocate(self, instance_id: int | None) -> _Samples | None:
        made = [optional(nvml.nvmlGpmSampleAlloc) for _ in range(2)]
        if None in made:
            for sample in made:
                _free(sample)
            return None
        self._samples[instance_id] = _Samples(*made)
        return self._samples[instance_id]

    def _drop(self, instance_id: int | None) -> None:
        samples = self._samples.pop(instance_id)
        _free(samples.spare)
        _free(samples.last)


def measures_activity(handle: Handle) -> bool:
    support = optional(nvml.nvmlGpmQueryDeviceSupport, handle)
    return support is not None and bool(support.isSupportedDevice)


def _fill(handle: Handle, instance_id: int | None, sample: Handle) -> bool:
    if instance_id is None:
        return optional(nvml.nvmlGpmSampleGet, handle, sample) is not None
    return optional(nvml.nvmlGpmMigSampleGet, handle, instance_id, sample) is not None


def _free(sample: Handle | None) -> None:
    if sample is not None:
        optional(nvml.nvmlGpmSampleFree, sample)


def _between(before: Handle, after: Handle) -> Activity:
    wanted = nvml.c_nvmlGpmMetricsGet_t()
    wanted.version = nvml.NVML_GPM_METRICS_GET_VERSION
    wanted.numMetrics = len(_METRICS)
    wanted.sample1, wanted.sample2 = before, after
    for place, metric in enumerate(_METRICS):
        wanted.metrics[place].metricId = metric
    if optional(nvml.nvmlGpmMetricsGet, wanted) is None:
        return Activity()
    values = [_value(wanted.metrics[place]) for place in range(len(_METRICS))]
    shares = [None if value is None else value / 100 for value in values[: len(_SHARES)]]
    traffic = [None if value is None else value * MIB for value in values[len(_SHARES) :]]
    return Activity(*shares, *traffic)


def _value(metric: Handle) -> float | None:
    """The driver divides without looking: what is no number is not measured."""
    value = float(metric.value)
    return value if metric.nvmlReturn == _SUCCESS and math.isfinite(value) else None
