"""Which GPUs this node has, and the index each is known by. Pure.

The driver numbers GPUs anew when it starts without one of them; here a GPU keeps its index for as long as it
is known, so that a lost one shifts nobody's.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from services.node_agent.nvml.inventory import Identity


@dataclass(frozen=True, slots=True)
class Member:
    identity: Identity
    index: int


Roster = Mapping[str, Member]


def enroll(roster: Roster, identity: Identity, driver_index: int) -> Roster:
    """The roster with this GPU in it. A new card takes the index of the one at whose PCI address it sits."""
    known = roster.get(identity.uuid)
    if known is not None:
        return {**roster, identity.uuid: Member(identity, known.index)}
    replaced = next((member for member in roster.values() if _same_place(member.identity, identity)), None)
    kept = {uuid: member for uuid, member in roster.items() if member is not replaced}
    if replaced is not None:
        index = replaced.index
    else:
        taken = {member.index for member in kept.values()}
        free = (number for number in range(len(taken) + 1) if number not in taken)
        index = driver_index if driver_index not in taken else next(free)
    return {**kept, identity.uuid: Member(identity, index)}


def _same_place(a: Identity, b: Identity) -> bool:
    return a.pci_bus_id != "" and a.pci_bus_id == b.pci_bus_id
