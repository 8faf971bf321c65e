"""Whether a change may be made now. Pure: a refusal is a text that a person can act on, empty if it may.

The one rule above all: what somebody uses is never touched.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from gpuloom.model.gpu import SharingMode
from gpuloom.model.layout import GpuLayout, LayoutRequest
from gpuloom.model.mig import MigPlacement
from gpuloom.placement.mig_geometry import Geometry, layout_problem


@dataclass(frozen=True, slots=True)
class Usage:
    """Who uses a GPU, for a person, by instance; None stands for the GPU itself.

    `unknown_reason`: why somebody else may use it too; empty if these are all.
    """

    users: Mapping[MigPlacement | None, str]
    unknown_reason: str = ""

    def of(self, placement: MigPlacement) -> str:
        """A process of which only the GPU is known may be on any instance."""
        return self.users.get(placement, "") or self.users.get(None, "")

    def of_any(self) -> str:
        return next((who for _, who in sorted(self.users.items(), key=str)), "")


def refusal(request: LayoutRequest, layout: GpuLayout, usage: Usage) -> str:
    if layout.problem:
        return f"the GPU can't be read now: {layout.problem}"
    if usage.unknown_reason:
        return f"it is not known who uses the GPU: {usage.unknown_reason}"
    return (
        _refuse_whole(request, layout, usage)
        or _refuse_destroying(request, layout, usage)
        or _refuse_creating(request, layout)
    )


def _refuse_whole(request: LayoutRequest, layout: GpuLayout, usage: Usage) -> str:
    switches = request.mig_enabled is not None and request.mig_enabled != layout.mig_enabled
    if switches and not layout.mig_capable:
        return "this GPU can't be cut: it has no MIG mode"
    shares = request.sharing is not None and request.sharing != layout.sharing
    user = usage.of_any()
    if (switches or shares) and user:
        what = "its MIG mode" if switches else "how it is shared"
        return f"{what} can be changed only while nobody uses the GPU: {user} does"
    will_be_cut = layout.mig_enabled if request.mig_enabled is None else request.mig_enabled
    if will_be_cut and request.sharing is not None and request.sharing.mode is not SharingMode.NONE:
        return "a GPU in MIG mode is shared by its slices: switch MIG mode off first"
    left = set(layout.placements) - set(request.destroy)
    if request.mig_enabled is False and layout.mig_enabled and left:
        place = min(left)
        return f"MIG mode can't be switched off while there is {place.profile} at {place.start}"
    return ""


def _refuse_destroying(request: LayoutRequest, layout: GpuLayout, usage: Usage) -> str:
    for placement in sorted(set(request.destroy) & set(layout.placements)):
        user = usage.of(placement)
        if user:
            return f"{placement.profile} at {placement.start} is in use by {user}"
    return ""


def _refuse_creating(request: LayoutRequest, layout: GpuLayout) -> str:
    if not request.create:
        return ""
    if not (layout.mig_enabled if request.mig_enabled is None else request.mig_enabled):
        return "MIG mode is off: switch it on in the same change"
    if not layout.profiles:
        return "the driver lists no MIG profiles of this GPU"
    there = set(layout.placements) - set(request.destroy)
    try:
        geometry = Geometry(layout.memory_slices, layout.profiles)
    except ValueError as error:
        return f"the driver's list of profiles makes no sense: {error}"
    return layout_problem(geometry, sorted(there | set(request.create)))
