"""The pod and the container of a process, from the text of its /proc/<pid>/cgroup; cgroups by name. Pure.

Only the root's end of a path can be trusted. The kubelet and the container runtime name the cgroups from the
root down to the container; whatever is below, the container may name itself. So the first `kubepods` from the
root decides, and what follows it must have the kubelet's exact form: a path that goes wrong there names
nobody, rather than being searched on for a form that the container may have made. For the same reason a pod
inside a pod (a cluster that runs in a container) counts as the outer one.
"""

import re
from dataclasses import dataclass

MAX_CGROUP_BYTES = 128 * 1024
"""More than the kernel's longest paths in every hierarchy."""

_UUID = "[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}"
# A static pod is known to its node by the hash of its manifest.
_UID = f"(?P<uid>{_UUID}|[0-9a-f]{{32}})"
# Slices repeat the names of those above them, also of a cgroup root that the kubelet was given.
_SLICE_PREFIX = r"(?:[A-Za-z0-9_.:\\]+-)*"
_CONTAINER_ID = "(?P<id>[0-9a-f]{12,64})"
_RUNTIMES = "(?:cri-containerd|containerd|crio|docker|libpod)"

_ROOT = re.compile(rf"kubepods|{_SLICE_PREFIX}kubepods\.slice")
_QOS = re.compile(rf"burstable|besteffort|{_SLICE_PREFIX}kubepods-(?:burstable|besteffort)\.slice")
_POD_SLICE = rf"{_SLICE_PREFIX}kubepods(?:-burstable|-besteffort)?-pod{_UID}\.slice"
_POD = re.compile(rf"pod{_UID.replace('?P<uid>', '?P<plain>')}|{_POD_SLICE}")
_CONTAINER = re.compile(
    rf"{_RUNTIMES}-{_CONTAINER_ID}\.scope|(?:{_RUNTIMES}-)?{_CONTAINER_ID.replace('id>', 'plain>')}"
)
# A runtime that does not use systemd under a kubelet that does takes the kubelet's words for a plain name.
_MISREAD = re.compile(rf"{_POD_SLICE}:{_RUNTIMES}:{_CONTAINER_ID}")

# Users have a subtree of their own there, in which they may name cgroups as they like.
_USERS = "user.slice"
_UP = ".."
_DELETED = " (deleted)"


@dataclass(frozen=True, slots=True)
class PodCgroup:
    """`container_id` is empty if the path does not tell it."""

    pod_uid: str
    container_id: str = ""


def pod_of_cgroup(content: bytes) -> PodCgroup | None:
    """None: the process is in no pod, or nothing certain can be said."""
    if len(content) > MAX_CGROUP_BYTES:
        return None
    # Not splitlines(): a container may put a carriage return into a name of its own.
    found = {pod for line in content.split(b"\n") if (pod := _of_line(line)) is not None}
    uids = {pod.pod_uid for pod in found}
    if len(uids) != 1:
        # Nobody is in two pods at once.
        return None
    containers = {pod.container_id for pod in found} - {""}
    return PodCgroup(uids.pop(), containers.pop() if len(containers) == 1 else "")


def is_above_pods(name: str) -> bool:
    """Whether a cgroup of this name is the one under which a kubelet has all its pods."""
    return _ROOT.fullmatch(name) is not None


def is_quality_class(name: str) -> bool:
    """Whether a cgroup of this name, right below that, has the pods of one quality of service."""
    return _QOS.fullmatch(name) is not None


def may_be_above(name: str) -> bool:
    """Whether a kubelet's cgroups may be below one of this name: not where users name theirs."""
    return name != _USERS


def pod_uid_of(name: str) -> str:
    """The UID of the pod that a cgroup of this name is of; empty if it is none's."""
    pod = _POD.fullmatch(name)
    return "" if pod is None else _dashed(pod["uid"] or pod["plain"])


def _of_line(line: bytes) -> PodCgroup | None:
    """A line is `number:controllers:path`. The kernel allows no line break in a cgroup's name."""
    fields = line.decode("utf-8", "replace").split(":", 2)
    if len(fields) != 3 or not fields[0].isdecimal() or not fields[2].startswith("/"):
        return None
    return _of_path(fields[2].removesuffix(_DELETED).split("/")[1:])


def _of_path(parts: list[str]) -> PodCgroup | None:
    below = [part for part in parts if part != _UP]
    if len(below) < len(parts) and (pod := _from_pod_down(below)) is not None:
        # In a cgroup namespace the path starts at a cgroup above the reader's own container. Those above it
        # are the kubelet's, so the first name is too, although `kubepods` itself may be out of sight.
        return pod
    for place, part in enumerate(below):
        if part == _USERS:
            return None
        if (misread := _MISREAD.fullmatch(part)) is not None:
            return PodCgroup(_dashed(misread["uid"]), misread["id"])
        if _ROOT.fullmatch(part):
            return _from_pod_down(below[place + 1 :])
    return None


def _from_pod_down(parts: list[str]) -> PodCgroup | None:
    rest = parts[1:] if parts and _QOS.fullmatch(parts[0]) else parts
    pod = _POD.fullmatch(rest[0]) if rest else None
    if pod is None:
        return None
    container = _CONTAINER.fullmatch(rest[1]) if len(rest) > 1 else None
    container_id = "" if container is None else container["id"] or container["plain"]
    return PodCgroup(_dashed(pod["uid"] or pod["plain"]), container_id)


def _dashed(uid: str) -> str:
    """A dash separates slices, so that the kubelet writes underscores in their names."""
    return uid.replace("_", "-")
