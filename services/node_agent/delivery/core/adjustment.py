"""Edits as the change that a runtime makes to a container. Pure.

Uses only what every runtime with NRI applies: device nodes, mounts, variables, hooks. The runtime lets the
container's control group use each device node as the node's mode says, so no rule is sent for it.
"""

from gpuloom.nri import nri_pb2 as pb
from services.node_agent.delivery.core.edits import DeviceNode, Edits, Moment

_DEFAULT_MODE = 0o666


def adjustment(edits: Edits, annotations: dict[str, str]) -> pb.ContainerAdjustment:
    hooks = pb.Hooks()
    fields = {
        Moment.PRESTART: hooks.prestart,
        Moment.CREATE_RUNTIME: hooks.create_runtime,
        Moment.CREATE_CONTAINER: hooks.create_container,
        Moment.START_CONTAINER: hooks.start_container,
        Moment.POSTSTART: hooks.poststart,
        Moment.POSTSTOP: hooks.poststop,
    }
    for hook in edits.hooks:
        timeout = None if hook.timeout_s is None else pb.OptionalInt(value=hook.timeout_s)
        fields[hook.moment].add(path=hook.path, args=hook.arguments, env=hook.environment, timeout=timeout)
    devices = [_device(node, edits.groups) for node in edits.nodes]
    return pb.ContainerAdjustment(
        annotations=annotations,
        mounts=[
            pb.Mount(
                destination=mount.destination, type=mount.kind, source=mount.source, options=mount.options
            )
            for mount in edits.mounts
        ],
        env=[pb.KeyValue(key=name, value=value) for name, value in edits.environment],
        hooks=hooks if edits.hooks else None,
        linux=pb.LinuxContainerAdjustment(devices=devices) if devices else None,
    )


def _device(node: DeviceNode, groups: tuple[int, ...]) -> pb.LinuxDevice:
    if node.numbers is None:
        raise ValueError(f"nobody has looked at {node.host_path} yet")
    mode = _mode(node, groups)
    return pb.LinuxDevice(
        path=node.path,
        type=node.numbers.kind,
        major=node.numbers.major,
        minor=node.numbers.minor,
        file_mode=None if mode is None else pb.OptionalFileMode(value=mode),
        uid=None if node.uid is None else pb.OptionalUInt32(value=node.uid),
        gid=None if node.gid is None else pb.OptionalUInt32(value=node.gid),
    )


def _mode(node: DeviceNode, groups: tuple[int, ...]) -> int | None:
    """None leaves the runtime's default, by which everybody in the container may read and write."""
    mode = node.file_mode
    if mode is not None and node.gid in groups:
        # A container can't be put into a group this way. Its own node, which nobody else sees, gives to
        # everybody in the container what the group would have had.
        mode |= (mode >> 3) & 0o7
    if {"r", "w"} <= set(node.permissions):
        return mode
    readable = 0o444 if "r" in node.permissions else 0
    writable = 0o222 if "w" in node.permissions else 0
    return (_DEFAULT_MODE if mode is None else mode) & (readable | writable)
