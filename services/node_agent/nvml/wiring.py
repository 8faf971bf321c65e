"""Reads one GPU's NVLinks and how it relates to the others."""

from collections.abc import Iterable

from gpuloom.model.wiring import NvLink, NvLinkRemote
from services.node_agent.nvml.binding import Handle, NvmlError, nvml, optional, text
from services.node_agent.nvml.core.topology import PairFacts, Wiring

# Numbers, because pynvml's own names of these indices are not all numbers.
_P2P_NVLINK = 2
_REMOTES = {0: NvLinkRemote.GPU, 2: NvLinkRemote.SWITCH}


def read_wiring(handle: Handle, peers: Iterable[tuple[str, Handle]]) -> Wiring:
    """`peers` are the UUIDs and handles of the GPUs to compare with. Raise NvmlError if this GPU is gone."""
    links = []
    for number in range(nvml.NVML_NVLINK_MAX_LINKS):
        active = optional(nvml.nvmlDeviceGetNvLinkState, handle, number)
        if active:
            links.append(_link(handle, number))
    return Wiring(tuple(links), {uuid: _pair(handle, peer) for uuid, peer in peers})


def _link(handle: Handle, number: int) -> NvLink:
    kind = optional(nvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, number)
    pci = optional(nvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, number)
    remote = NvLinkRemote.UNKNOWN if kind is None else _REMOTES.get(int(kind), NvLinkRemote.UNKNOWN)
    return NvLink(number, remote, "" if pci is None else text(pci.busId).upper())


def _pair(handle: Handle, peer: Handle) -> PairFacts:
    status = _of_pair(nvml.nvmlDeviceGetP2PStatus, handle, peer, _P2P_NVLINK)
    return PairFacts(
        ancestor=_of_pair(nvml.nvmlDeviceGetTopologyCommonAncestor, handle, peer),
        nvlink_p2p=None if status is None else status == nvml.NVML_P2P_STATUS_OK,
    )


def _of_pair(function: Handle, handle: Handle, peer: Handle, *arguments: int) -> int | None:
    """An error may be the other GPU's: it says nothing about this one."""
    try:
        return int(function(handle, peer, *arguments))
    except NvmlError:
        return None
