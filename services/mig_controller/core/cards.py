"""GPUs as the controller sees them: how they are cut, and which parts nobody has. Pure.

Made from what discovery tells. Whatever is not known closes a card: it is neither cut nor counted on.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from gpuloom.catalog import load_catalog, slice_milli
from gpuloom.model.allocation import AllocatedDevice
from gpuloom.model.gpu import MILLI_PER_GPU, DeviceRef, Gpu, GpuHealth, SharingMode
from gpuloom.model.layout import Sharing
from gpuloom.model.ledger import Hold
from gpuloom.model.mig import MigInstance, MigPlacement
from gpuloom.model.node import Delivery, NodeMode, PodRef
from gpuloom.model.snapshot import NodeFacts, NodePlace
from gpuloom.placement.mig_geometry import Geometry, Layout, layout_problem

NO_CLIENTS = "its node gets devices by environment; limits by MPS take a runtime with NRI"
UNCUT = Geometry(1, ())
"""Of a GPU that can't be cut: it can still be shared."""
NOWHERE = NodePlace()


@dataclass(frozen=True, slots=True)
class Slice:
    """A MIG instance. `owner` is who has it, empty if nobody; `problem` why it can't be given out.

    `pod` is the owner if that is a pod, `hold` that of somebody else who has taken it out of placement.
    `idle_since_s`: since when nobody has it, by the controller's own clock; None if somebody has.
    """

    placement: MigPlacement
    owner: str = ""
    running: bool = False
    problem: str = ""
    idle_since_s: float | None = None
    pod: PodRef | None = None
    hold: Hold | None = None

    @property
    def free(self) -> bool:
        return not self.owner and not self.problem and self.hold is None

    def is_free_for(self, pod: PodRef, gang: str) -> bool:
        """`gang` is namespace/name, empty for a pod that is in none."""
        hold = self.hold
        held = hold is not None and not (hold.is_for_pod(pod.uid, str(pod)) or hold.is_for_gang(gang))
        return not (self.owner or self.problem or held)


@dataclass(frozen=True, slots=True)
class Card:
    """One GPU that can be cut or shared. `owner` is who has it or a share of it while it is not cut.

    `closed`: why nothing of it may be changed now. `pinned`: somebody has decided how it is to be cut.
    `idle_since_s`: since when nobody has anything of it, by the controller's own clock. `given`,
    `given_milli` and `given_mib`: what pods have of it while it is not cut.
    """

    node_name: str
    node_uid: str
    uuid: str
    index: int
    model: str
    architecture: str
    geometry: Geometry
    cut: bool
    slices: tuple[Slice, ...] = ()
    owner: str = ""
    closed: str = ""
    pinned: bool = False
    sharing: SharingMode = SharingMode.NONE
    idle_since_s: float | None = None
    memory_mib: int = 0
    given_milli: int = 0
    given_mib: int = 0
    given: tuple[tuple[PodRef, AllocatedDevice], ...] = ()
    gpu: Gpu | None = None
    place: NodePlace = NOWHERE
    takes_clients: bool = True
    """Whether a container can be made a client of an MPS daemon on it: the environment does not do that."""

    @property
    def cuttable(self) -> bool:
        return bool(self.geometry.profiles)

    def milli_of(self, profile: str) -> int:
        """What a slice of it stands for; 0 if it can't be cut into that."""
        known = self.geometry.profile(profile)
        return 0 if known is None else slice_milli(known.memory_slices, self.geometry.memory_slices)

    def is_shared_as(self, sharing: Sharing) -> bool:
        """As far as discovery tells."""
        least_milli = 0 if self.gpu is None else self.gpu.least_milli
        return self.sharing is sharing.mode and least_milli == sharing.least_milli

    @property
    def layout(self) -> Layout:
        return Layout(self.geometry, tuple(one.placement for one in self.slices))

    @property
    def idle(self) -> bool:
        """Nobody has anything of it."""
        return not self.owner and not any(one.owner for one in self.slices)

    @property
    def key(self) -> tuple[str, int]:
        return self.node_name, self.index


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What the controller knows beside discovery's facts.

    `idle_since_s` by slice; `held` are GPUs on which it has a change under way; `pinned` are nodes that a
    GPUNodeConfig divides; `holds` are those of others.
    """

    idle_since_s: Mapping[DeviceRef, float]
    held: frozenset[str] = frozenset()
    pinned: frozenset[str] = frozenset()
    holds: tuple[Hold, ...] = ()


def cards_of(facts: Iterable[NodeFacts], known: Knowledge) -> tuple[Card, ...]:
    """All cards of nodes of mode gpuloom, by node and index."""
    found = []
    by_node: dict[str, list[Hold]] = {}
    for hold in known.holds:
        by_node.setdefault(hold.node_name, []).append(hold)
    for node in facts:
        state = node.state
        if state.mode is not NodeMode.GPULOOM:
            continue
        tenancy = _tenancy(node)
        about = (*by_node.get(state.node_name, ()), *by_node.get("", ()))
        holds = tuple(hold for hold in about if hold.is_about(state.node_name, state.node_uid))
        own = replace(known, holds=holds)
        found += [_card(node, gpu, tenancy, own) for gpu in state.gpus]
    return tuple(sorted(found, key=lambda card: card.key))


@dataclass(frozen=True, slots=True)
class _Tenancy:
    """Who has what of a node, what pods were given of whole GPUs, and what containers really hold."""

    owners: Mapping[DeviceRef, tuple[str, PodRef | None]]
    given: Mapping[DeviceRef, Sequence[tuple[PodRef, AllocatedDevice]]]
    running: frozenset[DeviceRef]


_NOBODY: tuple[str, PodRef | None] = ("", None)


def _tenancy(node: NodeFacts) -> _Tenancy:
    owners: dict[DeviceRef, tuple[str, PodRef | None]] = {}
    given: dict[DeviceRef, list[tuple[PodRef, AllocatedDevice]]] = {}
    for each in node.allocations:
        for one in each.devices:
            owners.setdefault(one.device, (str(each.pod), each.pod))
            if one.device.mig is None:
                given.setdefault(one.device, []).append((each.pod, one))
    running = set()
    for holder in node.state.holders:
        who = (str(holder.pod), holder.pod) if holder.pod.uid else ("a process of no pod", None)
        for held in holder.devices:
            owners.setdefault(held, who)
            running.add(held)
    return _Tenancy(owners, given, frozenset(running))


def _card(node: NodeFacts, gpu: Gpu, tenancy: _Tenancy, known: Knowledge) -> Card:
    geometry = geometry_of(gpu.model) or UNCUT
    state, whole = node.state, DeviceRef(gpu.uuid)
    given = tuple(tenancy.given.get(whole, ()))
    placements = tuple(instance.placement for instance in gpu.mig_instances)
    problem = _problem_of(gpu.model, placements)
    slices = () if problem else tuple(_slice(one, gpu.uuid, tenancy, known) for one in gpu.mig_instances)
    return Card(
        node_name=state.node_name,
        node_uid=state.node_uid,
        uuid=gpu.uuid,
        index=gpu.index,
        model=gpu.model,
        architecture=gpu.architecture,
        geometry=geometry,
        cut=gpu.mig_enabled,
        slices=slices,
        owner=tenancy.owners.get(whole, _NOBODY)[0],
        closed=f"its layout makes no sense to us: {problem}" if problem else _closed(node, gpu, known),
        pinned=state.node_name in known.pinned,
        sharing=gpu.sharing,
        idle_since_s=known.idle_since_s.get(whole),
        memory_mib=gpu.memory_mib,
        given_milli=sum(device.milli for _, device in given),
        given_mib=sum(device.memory_mib for _, device in given),
        given=given,
        gpu=gpu,
        place=node.place,
        takes_clients=state.delivery is Delivery.NRI,
    )


@lru_cache(maxsize=8192)
def _problem_of(model: str, placements: tuple[MigPlacement, ...]) -> str:
    """Few layouts are on many cards, and each is looked at each round."""
    return layout_problem(geometry_of(model) or UNCUT, placements)


def _slice(instance: MigInstance, gpu_uuid: str, tenancy: _Tenancy, known: Knowledge) -> Slice:
    device = DeviceRef(gpu_uuid, instance.placement)
    owner, pod = tenancy.owners.get(device, _NOBODY)
    idle_since_s = None if owner else known.idle_since_s.get(device)
    problem = instance.fault or instance.changing
    hold = next((one for one in known.holds if one.device is not None and one.device.device == device), None)
    running = device in tenancy.running
    return Slice(instance.placement, owner, running, problem, idle_since_s, pod, hold)


def _closed(node: NodeFacts, gpu: Gpu, known: Knowledge) -> str:
    state = node.state
    if node.untrusted_reasons:
        return node.untrusted_reasons[0]
    if state.holders_unknown_reason or state.driver_problem:
        return state.holders_unknown_reason or state.driver_problem
    if state.delivery not in (Delivery.NRI, Delivery.ENV):
        return "nothing on the node can deliver a slice"
    if gpu.health is not GpuHealth.HEALTHY:
        return gpu.health_reason or f"its health is {gpu.health}"
    reasons = [closed.reason for closed in node.closed_gpus if closed.gpu_uuid == gpu.uuid]
    reasons += [f"it is held: {h.reason or h.problem}" for h in known.holds if _takes_card(h, gpu)]
    reasons += [gpu.changing, "a change of it is under way" if gpu.uuid in known.held else ""]
    return next(filter(None, reasons), "")


def _takes_card(hold: Hold, gpu: Gpu) -> bool:
    """Whether it is about all of the card, or about room on it where a slice may be made."""
    if hold.device is None:
        return True
    held = hold.device.device
    if held.gpu_uuid != gpu.uuid:
        return False
    if held.mig is None:
        return hold.device.milli >= MILLI_PER_GPU
    return all(one.placement != held.mig for one in gpu.mig_instances)


@lru_cache(maxsize=256)
def geometry_of(model: str) -> Geometry | None:
    """None if the model is not known, or can't be cut."""
    known = load_catalog().find_gpu(model)
    return (
        Geometry(known.mig_slices, known.mig_profiles) if known is not None and known.mig_profiles else None
    )
