"""What giving a device to a container changes about the container. Pure values, and how they add up."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum


class Moment(StrEnum):
    """When a hook runs, by the names that CDI gives to the moments."""

    PRESTART = "prestart"
    CREATE_RUNTIME = "createRuntime"
    CREATE_CONTAINER = "createContainer"
    START_CONTAINER = "startContainer"
    POSTSTART = "poststart"
    POSTSTOP = "poststop"


@dataclass(frozen=True, slots=True)
class NodeNumbers:
    """Which device a node is: its type ("c", "b" or "p") and numbers."""

    kind: str
    major: int = 0
    minor: int = 0


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """`numbers` is None until the node at `host_path` was looked at. None elsewhere: not said."""

    path: str
    host_path: str
    numbers: NodeNumbers | None = None
    permissions: str = "rwm"
    file_mode: int | None = None
    uid: int | None = None
    gid: int | None = None


@dataclass(frozen=True, slots=True)
class Mount:
    source: str
    destination: str
    kind: str
    options: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Hook:
    moment: Moment
    path: str
    arguments: tuple[str, ...]
    environment: tuple[str, ...]
    timeout_s: int | None


@dataclass(frozen=True, slots=True)
class Edits:
    """`beyond` names edits that no runtime takes from us; a device with one is not given."""

    environment: tuple[tuple[str, str], ...] = ()
    nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[Mount, ...] = ()
    hooks: tuple[Hook, ...] = ()
    groups: tuple[int, ...] = ()
    beyond: tuple[str, ...] = ()


def combine(parts: Iterable[Edits]) -> Edits:
    """All of them; of two that set the same variable, path or hook, the later one stays."""
    listed = list(parts)
    return Edits(
        environment=tuple({name: value for part in listed for name, value in part.environment}.items()),
        nodes=tuple({node.path: node for part in listed for node in part.nodes}.values()),
        mounts=tuple({mount.destination: mount for part in listed for mount in part.mounts}.values()),
        hooks=tuple(dict.fromkeys(hook for part in listed for hook in part.hooks)),
        groups=tuple(dict.fromkeys(group for part in listed for group in part.groups)),
        beyond=tuple(dict.fromkeys(name for part in listed for name in part.beyond)),
    )


def with_numbers(edits: Edits, look: Callable[[str], NodeNumbers]) -> Edits:
    """The edits with every node's numbers; `look` tells those that the spec leaves out."""
    return replace(
        edits,
        nodes=tuple(
            node if node.numbers is not None else replace(node, numbers=look(node.host_path))
            for node in edits.nodes
        ),
    )
