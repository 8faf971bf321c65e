"""How a pod's part of a card is kept: by the hardware, by the driver's limits, or by accounting alone.

The node agent, explain and the MIG controller tell the same of the same pod. Never decides who gets what.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum

from gpuloom.errors import NotAllowedError
from gpuloom.model.allocation import AllocatedDevice
from gpuloom.model.gpu import MILLI_PER_GPU, Gpu, SharingMode
from gpuloom.names import ANNOTATION_ENFORCEMENT


class Enforcement(StrEnum):
    """MPS: a share must be a limit of the driver. NONE: it is only accounted for."""

    MPS = "mps"
    NONE = "none"


class Hardness(StrEnum):
    HARD = "hard"
    LIMITED = "limited"
    ACCOUNTED = "accounted"


_TEXTS = {
    Hardness.HARD: "hard (nobody else is on the slice or the GPU)",
    Hardness.LIMITED: "limited (MPS keeps it to its memory and threads)",
    Hardness.ACCOUNTED: "accounted (nobody else is given it, and nothing stops the pod from using more)",
}


def hardness_of(allocated: AllocatedDevice, gpu: Gpu, wanted: Enforcement | None) -> Hardness:
    """A whole card has nobody beside it."""
    if allocated.device.mig is not None or allocated.milli >= MILLI_PER_GPU:
        return Hardness.HARD
    limited = gpu.sharing is SharingMode.MPS and wanted is not Enforcement.NONE
    return Hardness.LIMITED if limited else Hardness.ACCOUNTED


def wanted_enforcement(
    annotations: Mapping[str, str], otherwise: Enforcement = Enforcement.MPS
) -> Enforcement | None:
    """None: the pod does not say, so its share is limited where it can be.

    Raise NotAllowedError for another word. `otherwise` is the cluster's setting for pods that do not say; by
    NONE their shares are not limited.
    """
    text = annotations.get(ANNOTATION_ENFORCEMENT)
    if text is None:
        return Enforcement.NONE if otherwise is Enforcement.NONE else None
    if text not in tuple(Enforcement):
        raise NotAllowedError(f"{ANNOTATION_ENFORCEMENT} must be mps or none, not {text[:32]}")
    return Enforcement(text)


def keeping_text(
    devices: Iterable[AllocatedDevice],
    gpus: Mapping[str, Gpu],
    annotations: Mapping[str, str],
    otherwise: Enforcement = Enforcement.MPS,
) -> str:
    """Of the devices that are known; empty if none is."""
    found = {
        keeping_of(one, gpus[one.device.gpu_uuid], annotations, otherwise)
        for one in devices
        if one.device.gpu_uuid in gpus
    }
    return ", ".join(_TEXTS[hardness] for hardness in Hardness if hardness in found)


def keeping_of(
    allocated: AllocatedDevice, gpu: Gpu, annotations: Mapping[str, str], otherwise: Enforcement
) -> Hardness:
    """Of a pod that has it, whatever it says of enforcement."""
    try:
        wanted = wanted_enforcement(annotations, otherwise)
    except NotAllowedError:
        wanted = None
    return hardness_of(allocated, gpu, wanted)
