"""What a GPUNodeConfig and the sharing policies ask of the cards of a node. Pure."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from gpuloom.model.gpu import MILLI_PER_GPU, SharingMode
from gpuloom.model.layout import LayoutRequest, Sharing
from gpuloom.model.sharing import GpuNodeConfigSpec
from gpuloom.placement.mig_geometry import Layout, pack
from services.mig_controller.core.cards import NO_CLIENTS, Card


@dataclass(frozen=True, slots=True)
class ConfigPlan:
    """`waiting` says why a card is not as it is to be yet, by its UUID."""

    requests: tuple[LayoutRequest, ...] = ()
    waiting: dict[str, str] | None = None

    @property
    def reasons(self) -> dict[str, str]:
        return self.waiting or {}


def plan_config(spec: GpuNodeConfigSpec, cards: Sequence[Card], next_id: Sequence[str]) -> ConfigPlan:
    """The next change of each card of the node; `next_id` has an id for each. Used slices are left alone."""
    requests, waiting = [], {}
    for card, change_id in zip(cards, next_id, strict=False):
        found = _request(spec, card, change_id)
        if isinstance(found, str):
            waiting[card.uuid] = found
        elif found is not None:
            requests.append(found)
    return ConfigPlan(tuple(requests), waiting)


def _request(spec: GpuNodeConfigSpec, card: Card, change_id: str) -> LayoutRequest | str | None:
    if card.closed:
        return card.closed
    if spec.mig_enabled is False and card.cut:
        if not card.idle:
            return "MIG mode is switched off once nobody uses its slices"
        destroy = tuple(one.placement for one in card.slices)
        return LayoutRequest(change_id, card.uuid, False, destroy)
    if spec.mig_enabled is False and spec.mig_profiles:
        return "migEnabled is false, so migProfiles do not count"
    if spec.mig_profiles or (spec.mig_enabled and not card.cut):
        return _cut(spec, card, change_id)
    return _share(spec, card, change_id)


def _cut(spec: GpuNodeConfigSpec, card: Card, change_id: str) -> LayoutRequest | str | None:
    if not card.cuttable:
        return f"a {card.model or 'GPU that is not known'} can't be cut"
    wanted = Counter(spec.mig_profiles)
    if not card.cut and not card.idle:
        return _busy(card)
    if not wanted:
        return LayoutRequest(change_id, card.uuid, True)
    if Counter(one.placement.profile for one in card.slices) == wanted and card.cut:
        return None
    used = [one.placement for one in card.slices if one.owner]
    missing = wanted - Counter(place.profile for place in used)
    packed = pack(Layout(card.geometry, tuple(used)), missing)
    if packed.left:
        lacking = ", ".join(f"{count} x {profile}" for profile, count in sorted(packed.left.items()))
        return f"there is no room for {lacking}" + (" beside slices in use" if used else "")
    there = {one.placement for one in card.slices}
    destroy = tuple(sorted(there - set(packed.placements) - set(used)))
    create = tuple(sorted(set(packed.placements) - there))
    request = LayoutRequest(change_id, card.uuid, None if card.cut else True, destroy, create)
    return request if destroy or create or not card.cut else _still_used(card, wanted)


def _still_used(card: Card, wanted: Counter[str]) -> str:
    spare = Counter(one.placement.profile for one in card.slices) - wanted
    used = [one for one in card.slices if one.owner and spare[one.placement.profile]]
    told = (
        f"{o.placement.profile} at {o.placement.start} goes once nobody uses it: {o.owner} does" for o in used
    )
    return next(told, "slices in use stay until nobody uses them")


def _share(spec: GpuNodeConfigSpec, card: Card, change_id: str) -> LayoutRequest | str | None:
    wanted = wanted_sharing(spec)
    if wanted is None or card.is_shared_as(wanted):
        return None
    if card.cut:
        return "a GPU in MIG mode is shared by its slices: set migEnabled to false to share it otherwise"
    if wanted.mode is SharingMode.MPS and not card.takes_clients:
        return f"it can't be shared by MPS: {NO_CLIENTS}"
    return LayoutRequest(change_id, card.uuid, sharing=wanted) if card.idle else _busy(card)


def wanted_sharing(spec: GpuNodeConfigSpec) -> Sharing | None:
    """None: as it is."""
    if spec.mps_enabled:
        return Sharing(SharingMode.MPS, least_milli=_least(spec.mps_max_clients))
    if spec.time_slicing_enabled:
        return Sharing(SharingMode.TIME_SLICING, least_milli=_least(spec.time_slicing_replicas))
    if spec.mps_enabled is False or spec.time_slicing_enabled is False:
        return Sharing()
    return None


def _least(pods: int | None) -> int:
    """With shares of at least this no more pods than that are on one card."""
    return MILLI_PER_GPU // pods if pods else 0


def _busy(card: Card) -> str:
    owner = card.owner or next((one.owner for one in card.slices if one.owner), "somebody")
    return f"it is changed once nobody uses it: {owner} does"
