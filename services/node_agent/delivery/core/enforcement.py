"""What makes a share a limit: the settings by which a container is a client of its GPU's MPS daemon. Pure.

On a card that an MPS daemon serves, a share gets its memory as the client's limit and its milli as the part
of the multiprocessors that it may use; a pod's own annotations may only tighten that. The driver enforces
what a program's environment says when it begins; one that takes these out of its environment has
only the daemon's bounds. Never decides who gets which card.
"""

from collections.abc import Mapping

from gpuloom.errors import NotAllowedError
from gpuloom.model.allocation import AllocatedDevice, Allocation
from gpuloom.model.gpu import MILLI_PER_GPU, Gpu, SharingMode
from gpuloom.names import ANNOTATION_ENFORCEMENT, ANNOTATION_MPS_MEMORY, ANNOTATION_MPS_THREADS
from gpuloom.placement.keeping import Enforcement, Hardness, hardness_of, wanted_enforcement
from services.node_agent.delivery.core.edits import Edits, Mount

_MAX_DIGITS = 9
SHM = "/dev/shm"  # noqa: S108 - the shared memory of the daemon and its clients


def mps_edits(
    allocation: Allocation,
    gpus: Mapping[str, Gpu],
    annotations: Mapping[str, str],
    mps_dir: str,
    otherwise: Enforcement = Enforcement.MPS,
) -> Edits:
    """What a container needs beside its devices. Raise NotAllowedError if its limits can't be had here.

    `otherwise` is the node's setting for pods that do not say.
    """
    wanted = wanted_enforcement(annotations, otherwise)
    served = []
    for allocated in allocation.devices:
        gpu = gpus[allocated.device.gpu_uuid]
        if wanted is Enforcement.MPS and hardness_of(allocated, gpu, wanted) is Hardness.ACCOUNTED:
            raise NotAllowedError(
                f"the pod requires {ANNOTATION_ENFORCEMENT}: mps, and no MPS daemon serves GPU {gpu.uuid}; "
                "switch it on by a GPUNodeConfig with mpsEnabled"
            )
        if gpu.sharing is SharingMode.MPS and allocated.device.mig is None:
            served.append(allocated)
    if not served:
        return Edits()
    # One card a daemon: a pod with shares is on one card, and one with whole cards needs no limits.
    pipe = f"{mps_dir}/{served[0].device.gpu_uuid}/pipe"
    environment = [("CUDA_MPS_PIPE_DIRECTORY", pipe)]
    if served[0].milli < MILLI_PER_GPU and wanted is not Enforcement.NONE:
        environment += _limits(served[0], annotations)
    mounts = tuple(Mount(path, path, "bind", ("rbind", "rprivate", "rw")) for path in (pipe, SHM))
    return Edits(environment=tuple(environment), mounts=mounts)


def _limits(share: AllocatedDevice, annotations: Mapping[str, str]) -> list[tuple[str, str]]:
    threads = min(max(1, share.milli // 10), _own(annotations, ANNOTATION_MPS_THREADS, 100))
    memory_mib = min(share.memory_mib, _own(annotations, ANNOTATION_MPS_MEMORY, share.memory_mib))
    return [
        ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", str(threads)),
        ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", f"0={memory_mib}M"),
    ]


def _own(annotations: Mapping[str, str], name: str, otherwise: int) -> int:
    text = annotations.get(name)
    if text is None:
        return otherwise
    # Whatever a pod writes must not end the agent: some digits are no numbers, some numbers too long.
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS and int(text) > 0):
        raise NotAllowedError(f"{name} must be a whole number from 1 on, not {text[:32]}")
    return int(text)
