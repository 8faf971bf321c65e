"""Where a pod may go that belongs to a gang, was promised a place, or may use a reservation. Only reads.

Filter, bind and explain ask here. A member of a gang goes nowhere before its whole gang has its places; a
pod with a promise goes to exactly that node, and gets exactly those devices. A pod that may use a reservation
goes there while there is something of it left. Everybody else is not concerned, which costs next to nothing.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from gpuloom.kube.objects import JsonObject, uid_of
from gpuloom.model.allocation import AllocatedDevice
from gpuloom.model.ledger import Hold
from gpuloom.model.node import NodeMode
from gpuloom.model.request import PodRequest
from gpuloom.placement.devices import NodeView
from gpuloom.placement.fit import Fit, Refusal, fit
from gpuloom.placement.occupancy.nominations import Asker
from services.scheduler_extender.core.gangs.membership import gang_of
from services.scheduler_extender.core.ledger.holds import Holds
from services.scheduler_extender.core.objects.pods import asker_of
from services.scheduler_extender.core.verbs.node_names import OfferedNames
from services.scheduler_extender.core.views.views import ViewOf, Views

SELF = "scheduler_extender"
"""Who took a hold that is a promise of ours."""
NOT_OFFERED = "the node that is reserved for the pod was not offered; it is planned anew"
NOT_JUDGED = "the gang of the pod has not been planned yet"
NO_RESERVATION = "nothing of the GPUReservation that the pod names is free"
ELSEWHERE = "the pod has its place on another node"
OTHERS = "GPUs beside those reserved for the pod"


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known of a pod's gang. `reason`: why its pods may not be bound now, if they may not."""

    gang: str
    admitted: bool
    reason: str = ""


class Board:
    """What the planning loops last found out, by pod UID. Filter notes here when a place was not offered."""

    def __init__(self) -> None:
        self.gangs: dict[str, Standing] = {}
        self.notes: dict[str, str] = {}
        """For explain: what is planned for a pod, or why nothing can be."""
        self.plans: dict[str, tuple[str, frozenset[str]]] = {}
        """Of pods that others leave for: the node, and the UIDs of those who leave."""
        self.misses: Counter[str] = Counter()
        """How often a promised node was not offered."""


@dataclass(frozen=True, slots=True)
class Entitlement:
    """GPUReservations that a pod may use, as namespace/name, and whether it insists on them."""

    names: tuple[str, ...] = ()
    insists: bool = False


NOTHING = Entitlement()


def _nothing(_: JsonObject) -> Entitlement:
    return NOTHING


class Guard:
    """`entitlement_of`: what of reservations a pod may use."""

    def __init__(
        self,
        views: Views,
        holds: Holds,
        board: Board,
        entitlement_of: Callable[[JsonObject], Entitlement] = _nothing,
    ) -> None:
        self.board = board
        self._views = views
        self._holds = holds
        self._entitlement_of = entitlement_of

    def asker(self, pod: JsonObject) -> Asker:
        asker, entitled = asker_of(pod), self._entitlement_of(pod)
        if entitled is NOTHING:
            return asker
        return replace(asker, reservations=entitled.names, insists=entitled.insists)

    def narrowed(
        self, pod: JsonObject, asker: Asker, offered: OfferedNames, request: PodRequest, view_of: ViewOf
    ) -> OfferedNames | Refusal:
        """Of the nodes that are offered those where the pod may go."""
        gang = self._planned_gang(pod, asker)
        refused = self._gang_refusal(asker.uid) if gang else ""
        if refused:
            return Refusal(refused, resolvable=False)
        mine = self._promise(asker.uid)
        if mine is not None:
            if mine.node_name in offered:
                self.board.misses.pop(asker.uid, None)
                return OfferedNames((mine.node_name,))
            self.board.misses[asker.uid] += 1
            return Refusal(NOT_OFFERED, resolvable=False)
        if gang:
            return Refusal(NOT_JUDGED, resolvable=False)
        return self._reserved(asker, offered, request, view_of) or offered

    def seat(self, node_name: str, pod: JsonObject, request: PodRequest | None) -> NodeView | None:
        """The node as this pod may have it: with a promise or a reservation, only what is kept for it."""
        asker = self.asker(pod)
        view = self._views.view(node_name, asker)
        if view is None or not (self._holds or asker.insists or gang_of(pod)):
            return view
        mine = self._promise(asker.uid)
        refused = self._seat_refusal(pod, asker, mine, node_name)
        if refused:
            return replace(view, closed_reason=view.closed_reason or refused)
        if mine is not None:
            return only_held(view, self._holds.of_pod(asker.uid))
        return self._of_reservation(view, asker, request)

    def _seat_refusal(self, pod: JsonObject, asker: Asker, mine: Hold | None, node_name: str) -> str:
        gang = self._planned_gang(pod, asker)
        refused = self._gang_refusal(asker.uid) if gang else ""
        if refused:
            return refused
        if mine is None:
            return NOT_JUDGED if gang else ""
        return ELSEWHERE if mine.node_name != node_name else ""

    def _of_reservation(self, view: NodeView, asker: Asker, request: PodRequest | None) -> NodeView:
        if not asker.reservations and not asker.insists:
            return view
        held = self._reserved_on(view.name, asker)
        narrow = only_held(view, held)
        if held and request is not None and isinstance(fit(request, narrow), Fit):
            return narrow
        return replace(view, closed_reason=view.closed_reason or NO_RESERVATION) if asker.insists else view

    def waiting_reason(self, pod: JsonObject) -> str:
        """Why a member of a gang may not be bound now; empty if it may, or is in none."""
        return self._gang_refusal(uid_of(pod)) if self._planned_gang(pod, asker_of(pod)) else ""

    def reservation_used(self, node_name: str, pod: JsonObject, devices: tuple[AllocatedDevice, ...]) -> str:
        """The name of the reservation that these devices are of; empty if of none."""
        given = {item.device.gpu_uuid for item in devices}
        for hold in self._reserved_on(node_name, self.asker(pod)):
            if hold.device is None or hold.device.device.gpu_uuid in given:
                return hold.owner.name
        return ""

    def _reserved_on(self, node_name: str, asker: Asker) -> list[Hold]:
        mine = self._holds.for_asker(asker)
        return [
            hold
            for hold in mine
            if hold.node_name == node_name and hold.is_for_reservation(asker.reservations)
        ]

    def _planned_gang(self, pod: JsonObject, asker: Asker) -> str:
        """The gang that is planned for the pod; empty also where somebody holds room for its gang himself."""
        gang = gang_of(pod)
        if gang and any(hold.is_for_gang(asker.gang) for hold in self._holds.for_asker(asker)):
            return ""
        return gang

    def _gang_refusal(self, uid: str) -> str:
        standing = self.board.gangs.get(uid)
        if standing is None:
            return NOT_JUDGED
        return "" if standing.admitted else f"gang {standing.gang}: {standing.reason}"

    def _promise(self, uid: str) -> Hold | None:
        return next((hold for hold in self._holds.of_pod(uid) if hold.taken_by == SELF), None)

    def _reserved(
        self, asker: Asker, offered: OfferedNames, request: PodRequest, view_of: ViewOf
    ) -> OfferedNames | Refusal | None:
        """Nodes where a reservation has what the pod asks for; None if it may as well go elsewhere."""
        if not asker.reservations and not asker.insists:
            return None
        fitting = []
        for name in self._holds.nodes_open_to(asker):
            view, held = view_of(name) if name in offered else None, self._reserved_on(name, asker)
            if view is not None and held and isinstance(fit(request, only_held(view, held)), Fit):
                fitting.append(name)
        if fitting:
            return OfferedNames(fitting)
        return Refusal(NO_RESERVATION, resolvable=False) if asker.insists else None


def only_held(view: NodeView, holds: list[Hold]) -> NodeView:
    """The node with nothing but what these holds keep; where the kubelet chooses, as it is."""
    if view.mode is NodeMode.NVIDIA or any(hold.device is None for hold in holds):
        return view
    kept = {hold.device.device.gpu_uuid for hold in holds if hold.device is not None}
    cards = tuple(
        card if card.gpu.uuid in kept else replace(card, closed_reason=card.closed_reason or OTHERS)
        for card in view.gpus
    )
    return replace(view, gpus=cards)
