"""One disagreement about a node: its cause, from a closed set, and whom and what it is about."""

from dataclasses import dataclass, field
from enum import StrEnum


class Cause(StrEnum):
    """Why a node or a GPU is not trusted, the gravest first."""

    AGENT_NOT_HEARD = "agent-not-heard"
    AGENT_SILENT = "agent-silent"
    NODE_UID_UNKNOWN = "node-uid-unknown"
    NODE_REPLACED = "node-replaced"
    MODE_UNKNOWN = "mode-unknown"
    TWO_AUTHORITIES = "two-authorities"
    MODE_CHANGED = "mode-changed"
    CLAIMED_GPU = "claimed-gpu"
    HOLDERS_UNKNOWN = "holders-unknown"
    UNREADABLE_ALLOCATION = "unreadable-allocation"
    ALLOCATION_OF_ANOTHER_POD = "allocation-of-another-pod"
    ALLOCATION_OF_ANOTHER_NODE = "allocation-of-another-node"
    UNKNOWN_DEVICE = "unknown-device"
    SECOND_OWNER = "second-owner"
    FOREIGN_PROCESS = "foreign-process"
    HOLDER_WITHOUT_POD = "holder-without-pod"
    HELD_WITHOUT_ALLOCATION = "held-without-allocation"
    WRONG_COUNT = "wrong-count"


MISMATCHES = frozenset(
    {
        Cause.SECOND_OWNER,
        Cause.FOREIGN_PROCESS,
        Cause.HOLDER_WITHOUT_POD,
        Cause.HELD_WITHOUT_ALLOCATION,
        Cause.WRONG_COUNT,
    }
)
"""Where what was given and what is held are not the same."""


@dataclass(frozen=True, slots=True)
class Finding:
    """`gpu_uuid` empty: it is about the whole node. `subject` keeps those of one cause apart.

    Two are the same if they are about the same; `detail`, for a person, may change meanwhile: a process
    that starts others all the time is one finding, which grows old.
    """

    cause: Cause
    gpu_uuid: str = ""
    subject: str = ""
    detail: str = field(default="", compare=False)
