"""The agents that are measured side by side, and what their nodes have. Pure."""

from dataclasses import dataclass
from enum import StrEnum

from tests.nvml.machines import counting, mig_machine, nvswitch_machine, seven_each, uuid

GPUS = 8
SLICES = 7

# NVML's numbers of what GPM measures, as the agent asks for them, and what the stand-in answers.
_ACTIVITY = {1: "62.5", 2: "48.0", 5: "31.5", 10: "12.5", 20: "210", 21: "95"}
_FIRST_PID = 40_000


class Layout(StrEnum):
    SLICES = "8 GPUs x 7 slices"
    WHOLE = "8 whole GPUs"


@dataclass(frozen=True, slots=True)
class Variant:
    """One agent. `interval_s` is how often it looks at its node."""

    name: str
    layout: Layout
    interval_s: float


AIMED = Variant("8x7-10s", Layout.SLICES, 10.0)
"""The one that our aims are about."""
BUSY = Variant("8x7-1s", Layout.SLICES, 1.0)
WHOLE = Variant("8-whole-1s", Layout.WHOLE, 1.0)
STILL = Variant("8x7-still", Layout.SLICES, 600.0)
"""Looks when it starts and not again while it is measured: what an agent costs that does not look."""

VARIANTS = (AIMED, BUSY, WHOLE, STILL)


@dataclass(frozen=True, slots=True)
class Given:
    """A device with the one pod that has it and the one process that computes on it."""

    gpu: int
    instance: int | None
    device_id: str
    resource: str
    pod: str
    pid: int


def devices(layout: Layout) -> tuple[Given, ...]:
    """All devices of the node: every one is given to a pod and in use."""
    if layout is Layout.WHOLE:
        return tuple(
            Given(gpu, None, uuid(gpu), "nvidia.com/gpu", f"train-{gpu}", _FIRST_PID + gpu)
            for gpu in range(GPUS)
        )
    return tuple(
        Given(
            gpu=gpu,
            instance=slice_ + 1,
            device_id=f"MIG-{gpu}-{slice_}",
            resource="nvidia.com/mig-1g.5gb",
            pod=f"infer-{gpu}-{slice_}",
            pid=_FIRST_PID + SLICES * gpu + slice_,
        )
        for gpu in range(GPUS)
        for slice_ in range(SLICES)
    )


def instances(layout: Layout) -> list[str]:
    return seven_each(GPUS) if layout is Layout.SLICES else []


def machine_keys(layout: Layout) -> dict[str, object]:
    """What the stand-in library shows: GPUs that measure activity, with a process on every device."""
    keys = nvswitch_machine(GPUS) | counting()
    if layout is Layout.SLICES:
        keys |= mig_machine(GPUS)
    keys["all.gpm"] = 1
    scopes = [f"gi.{slice_ + 1}." for slice_ in range(SLICES)] if layout is Layout.SLICES else [""]
    for scope in scopes:
        keys |= {f"all.{scope}gpm.{metric}": value for metric, value in _ACTIVITY.items()}
    for gpu in range(GPUS):
        keys[f"gpu.{gpu}.processes"] = ",".join(
            f"{given.pid}:2048:60:{-1 if given.instance is None else given.instance}:"
            f"{-1 if given.instance is None else 0}"
            for given in devices(layout)
            if given.gpu == gpu
        )
    return keys
