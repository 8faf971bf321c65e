"""How GPUs are cut and shared: proto <-> model."""

import re
from collections.abc import Iterable

from gpuloom.codec.allocation import MAX_MIG_START, MIG_PROFILE
from gpuloom.codec.device import (
    MAX_MIG_INSTANCES,
    bounded,
    placement_from_proto,
    placement_to_proto,
    required,
    sharing_mode_from_proto,
    sharing_mode_to_proto,
    shortened,
)
from gpuloom.errors import InvalidRequestError
from gpuloom.model.gpu import GPU_UUID, MILLI_PER_GPU
from gpuloom.model.layout import (
    ChangeState,
    GpuLayout,
    LaidInstance,
    LayoutChange,
    LayoutRequest,
    NodeLayouts,
    Sharing,
)
from gpuloom.model.mig import MigPlacement, MigProfile
from gpuloom.model.topology import MAX_GPUS_PER_NODE
from gpuloom.v1 import node_agent_pb2 as pb
from gpuloom.v1 import types_pb2

MAX_CHANGES = 256
MAX_PROFILES = 64
MAX_TIME_SLICE = 3

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,62}")
_STATE = {
    pb.LAYOUT_CHANGE_STATE_APPLYING: ChangeState.APPLYING,
    pb.LAYOUT_CHANGE_STATE_ROLLING_BACK: ChangeState.ROLLING_BACK,
    pb.LAYOUT_CHANGE_STATE_DONE: ChangeState.DONE,
    pb.LAYOUT_CHANGE_STATE_ROLLED_BACK: ChangeState.ROLLED_BACK,
    pb.LAYOUT_CHANGE_STATE_STUCK: ChangeState.STUCK,
}
_STATE_TO_PROTO = {model: proto for proto, model in _STATE.items()}


def request_to_proto(request: LayoutRequest) -> pb.ChangeLayoutRequest:
    return pb.ChangeLayoutRequest(
        id=request.id,
        gpu_uuid=request.gpu_uuid,
        mig_enabled=request.mig_enabled,
        destroy=[placement_to_proto(placement) for placement in request.destroy],
        create=[placement_to_proto(placement) for placement in request.create],
        sharing=None if request.sharing is None else _sharing_to_proto(request.sharing),
    )


def request_from_proto(message: pb.ChangeLayoutRequest) -> LayoutRequest:
    if _ID.fullmatch(message.id) is None:
        raise InvalidRequestError("the id of a change is 1 to 63 letters, digits, dots and hyphens")
    if GPU_UUID.fullmatch(message.gpu_uuid) is None:
        raise InvalidRequestError("the GPU of a change has a UUID of the form GPU-…")
    if max(len(message.destroy), len(message.create)) > MAX_MIG_INSTANCES:
        raise InvalidRequestError(f"a change names at most {MAX_MIG_INSTANCES} instances")
    return LayoutRequest(
        id=message.id,
        gpu_uuid=message.gpu_uuid,
        mig_enabled=message.mig_enabled if message.HasField("mig_enabled") else None,
        destroy=_placements(message.destroy),
        create=_placements(message.create),
        sharing=_sharing_from_proto(message.sharing) if message.HasField("sharing") else None,
    )


def change_to_proto(change: LayoutChange) -> pb.LayoutChange:
    request = change.request
    return pb.LayoutChange(
        id=request.id,
        gpu_uuid=request.gpu_uuid,
        state=_STATE_TO_PROTO.get(change.state, pb.LAYOUT_CHANGE_STATE_UNSPECIFIED),
        reason=change.reason,
        mig_enabled=request.mig_enabled,
        destroy=[placement_to_proto(placement) for placement in request.destroy],
        create=[placement_to_proto(placement) for placement in request.create],
    )


def change_from_proto(message: pb.LayoutChange) -> LayoutChange:
    request = LayoutRequest(
        id=required(message.id, "id of a change"),
        gpu_uuid=required(message.gpu_uuid, "GPU UUID of a change"),
        mig_enabled=message.mig_enabled if message.HasField("mig_enabled") else None,
        destroy=_placements(message.destroy),
        create=_placements(message.create),
    )
    return LayoutChange(request, _STATE.get(message.state, ChangeState.UNKNOWN), shortened(message.reason))


def layouts_to_proto(layouts: NodeLayouts) -> pb.ListLayoutsResponse:
    return pb.ListLayoutsResponse(
        gpus=[_layout_to_proto(layout) for layout in layouts.gpus],
        changes=[change_to_proto(change) for change in layouts.changes],
    )


def layouts_from_proto(message: pb.ListLayoutsResponse) -> NodeLayouts:
    if len(message.gpus) > MAX_GPUS_PER_NODE or len(message.changes) > MAX_CHANGES:
        raise InvalidRequestError("an agent lists more GPUs or changes than a node can have")
    return NodeLayouts(
        gpus=tuple(_layout_from_proto(layout) for layout in message.gpus),
        changes=tuple(change_from_proto(change) for change in message.changes),
    )


def _layout_to_proto(layout: GpuLayout) -> pb.GpuLayout:
    return pb.GpuLayout(
        gpu_uuid=layout.gpu_uuid,
        mig_capable=layout.mig_capable,
        mig_enabled=layout.mig_enabled,
        memory_slices=layout.memory_slices,
        profiles=[_profile_to_proto(profile) for profile in layout.profiles],
        instances=[
            pb.LaidInstance(
                placement=placement_to_proto(instance.placement),
                uuid=instance.uuid,
                used_by=instance.used_by,
            )
            for instance in layout.instances
        ],
        sharing=_sharing_to_proto(layout.sharing),
        problem=layout.problem,
    )


def _layout_from_proto(message: pb.GpuLayout) -> GpuLayout:
    if len(message.profiles) > MAX_PROFILES or len(message.instances) > MAX_MIG_INSTANCES:
        raise InvalidRequestError("a GPU with more MIG profiles or instances than there can be")
    return GpuLayout(
        gpu_uuid=required(message.gpu_uuid, "GPU UUID of a layout"),
        mig_capable=message.mig_capable,
        mig_enabled=message.mig_enabled,
        memory_slices=message.memory_slices,
        profiles=tuple(_profile_from_proto(profile) for profile in message.profiles),
        instances=tuple(
            LaidInstance(
                placement_from_proto(instance.placement),
                bounded(instance.uuid, "MIG UUID"),
                shortened(instance.used_by),
            )
            for instance in message.instances
        ),
        sharing=_sharing_from_proto(message.sharing),
        problem=shortened(message.problem),
    )


def _profile_to_proto(profile: MigProfile) -> types_pb2.MigProfile:
    return types_pb2.MigProfile(
        name=profile.name,
        compute_slices=profile.compute_slices,
        memory_slices=profile.memory_slices,
        memory_mib=profile.memory_mib,
        starts=profile.starts,
        max_count=profile.max_count,
    )


def _profile_from_proto(message: types_pb2.MigProfile) -> MigProfile:
    if message.memory_slices < 1 or any(start > MAX_MIG_START for start in message.starts):
        raise InvalidRequestError("a MIG profile without slices, or that starts beyond any GPU")
    return MigProfile(
        name=required(message.name, "MIG profile"),
        compute_slices=message.compute_slices,
        memory_slices=message.memory_slices,
        memory_mib=message.memory_mib,
        starts=tuple(message.starts),
        max_count=message.max_count,
    )


def _sharing_to_proto(sharing: Sharing) -> pb.GpuSharing:
    return pb.GpuSharing(
        mode=sharing_mode_to_proto(sharing.mode),
        thread_percentage=sharing.thread_percentage,
        memory_mib=sharing.memory_mib,
        time_slice=sharing.time_slice,
        least_milli=sharing.least_milli,
    )


def _sharing_from_proto(message: pb.GpuSharing) -> Sharing:
    if message.thread_percentage > 100 or message.time_slice > MAX_TIME_SLICE:
        raise InvalidRequestError("a share has at most 100 % of the threads, a time slice is 0 to 3")
    return Sharing(
        mode=sharing_mode_from_proto(message.mode),
        thread_percentage=message.thread_percentage,
        memory_mib=message.memory_mib,
        time_slice=message.time_slice,
        least_milli=min(message.least_milli, MILLI_PER_GPU),
    )


def _placements(messages: Iterable[types_pb2.MigPlacement]) -> tuple[MigPlacement, ...]:
    placements = tuple(placement_from_proto(message) for message in messages)
    for placement in placements:
        if placement.start > MAX_MIG_START or MIG_PROFILE.fullmatch(placement.profile) is None:
            raise InvalidRequestError("a MIG instance is a profile such as 1g.10gb and a first slice")
    return placements
