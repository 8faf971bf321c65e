"""The leader's planning in the model: the real loops, whose calls to Kubernetes stop like all others.

One gang, g, of the pods a and b; c and d may have them evicted, and d may use the reservation, while there is
one. A pod of the gang is bound nowhere but where its place is held; `violations` says where that failed.
"""

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any, Protocol, TypeVar

from gpuloom.errors import NotFoundError
from gpuloom.kube.cache import Change
from gpuloom.kube.client import PodBinding
from gpuloom.kube.objects import JsonObject, uid_of
from gpuloom.model.claims import GpuReservation, GpuReservationStatus
from gpuloom.model.node import PodRef
from gpuloom.names import ANNOTATION_GANG_SIZE, ANNOTATION_GANG_TIMEOUT, LABEL_GANG
from gpuloom.placement.gangs.sites import neutral_judge
from gpuloom.placement.gangs.victims import DisruptionBudget
from services.scheduler_extender.core.gangs.entitlements import ReservationBook
from services.scheduler_extender.core.gangs.guard import Board, Guard
from services.scheduler_extender.core.gangs.index import planned
from services.scheduler_extender.core.gangs.membership import gang_of
from services.scheduler_extender.holds.holding import Holding
from services.scheduler_extender.planning.gangs import GangLoop, GangParts
from services.scheduler_extender.planning.gathering import GatheringLoop, GatheringParts
from services.scheduler_extender.planning.preemptions import Mode, PreemptionLoop, PreemptionParts
from services.scheduler_extender.planning.promises import Promises
from services.scheduler_extender.planning.reservations import ReservationLoop, ReservationParts
from services.scheduler_extender.planning.sites import SiteBook
from services.scheduler_extender.state.cluster import ClusterState
from tests.unit.scheduler_extender.builders import HandClock
from tests.unit.scheduler_extender.model.api_server import ApiServer
from tests.unit.scheduler_extender.model.calls import Call
from tests.unit.scheduler_extender.model.machines import Machine

GANG = ("a", "b")
ENTITLED = "d"
TIMEOUT_S = 10
RESERVATION: JsonObject = {
    "metadata": {
        "name": "kept",
        "namespace": "default",
        "uid": "uid-kept",
        "creationTimestamp": "2026-01-01T00:00:00Z",
    },
    "spec": {"request": {"gpuCount": 1}, "ttl": "24h", "selector": {"matchLabels": {"entitled": "yes"}}},
}

Outcome = TypeVar("Outcome")


class Surroundings(Protocol):
    clock: HandClock
    api: ApiServer
    machines: dict[str, Machine]


def as_planned_for(pod: JsonObject) -> JsonObject:
    """The same with what makes it a member of the gang, or one who may use the reservation."""
    metadata = pod["metadata"]
    labels: dict[str, str] = {}
    if metadata["name"] in GANG:
        labels[LABEL_GANG] = "g"
        sizes = {ANNOTATION_GANG_SIZE: str(len(GANG)), ANNOTATION_GANG_TIMEOUT: str(TIMEOUT_S)}
        metadata["annotations"] = {**metadata.get("annotations", {}), **sizes}
        # It has waited for long: as soon as it has no places something is kept for it.
        metadata["creationTimestamp"] = "2025-12-31T00:00:00Z"
    elif metadata["name"] == ENTITLED:
        labels["entitled"] = "yes"
    return {**pod, "metadata": {**metadata, "labels": labels}}


class Planning:
    def __init__(self, world: Surroundings, state: ClusterState, shown: dict[str, JsonObject]) -> None:
        self._world = world
        self._state = state
        self._shown = shown
        self.board = Board()
        self.reservations = ReservationBook()
        self.guard = Guard(state.views, state.ledger.holds, self.board, self.reservations.entitlement_of)
        self.violations: list[str] = []
        self._turns: list[Any] = []

    def begin(self, holding: Holding) -> None:
        ledger, views, clock = self._state.ledger, self._state.views, self._world.clock
        promises = Promises(holding, ledger.holds, views, one_by_one)
        book = SiteBook(views, ledger, _Nodes(self._world), self, self.reservations.entitlement_of)
        wake = self._state.wake_for
        gangs = GangLoop(
            GangParts(self, ledger, book, promises, self.board, self, self, self, wake, neutral_judge), clock
        )
        reservations = ReservationParts(
            self.reservations, book, self, ledger, promises, holding, self, neutral_judge, wake
        )
        parts = PreemptionParts(
            self, ledger, book, promises, self.board, self, self, _NoBudgets(), gangs, Mode.ON, 0.0
        )
        preemptions = PreemptionLoop(parts, clock)
        gathering = GatheringParts(self, ledger, book, promises, self, gangs, preemptions.tenants, TIMEOUT_S)
        self._turns = [
            gangs,
            GatheringLoop(gathering, clock),
            ReservationLoop(reservations, clock),
            preemptions,
        ]

    async def turn(self) -> None:
        for loop in self._turns:
            await loop.turn()

    def reserve(self, wanted: bool) -> None:
        known = self.reservations.get("default/kept") is not None
        if wanted != known:
            self.reservations.observe(Change(None, RESERVATION) if wanted else Change(RESERVATION, None))

    def check(self, binding: PodBinding) -> None:
        """Asked when a Binding is sent."""
        pod = self._shown.get(binding.uid or "")
        if pod is None or not gang_of(pod):
            return
        standing = self.board.gangs.get(uid_of(pod))
        held = {hold.node_name for hold in self._state.ledger.holds.of_pod(uid_of(pod))}
        if standing is None or not standing.admitted or held != {binding.node}:
            self.violations.append(f"{binding.pod} to {binding.node}, held {held}, standing {standing}")

    # What the loops see and call.

    def objects(self) -> Sequence[JsonObject]:
        return list(self._shown.values())

    def by_index(self, index: str, value: str) -> Sequence[JsonObject]:
        return [pod for pod in self.objects() if value in planned(pod)]

    def by_uid(self, uid: str) -> JsonObject | None:
        return self._shown.get(uid)

    def get(self, name: str, namespace: str = "") -> JsonObject | None:
        return next((pod for pod in self._shown.values() if pod["metadata"]["name"] == name), None)

    async def evict(self, pod: PodRef) -> str:
        def act() -> None:
            found = self._world.api.pods.get(pod.name, {})
            if uid_of(found) == pod.uid and "deletionTimestamp" not in found["metadata"]:
                self._world.api.begin_delete(pod.name)

        await Call(act)
        return ""

    async def request_checkpoint(self, pod: PodRef, at: datetime) -> None:
        raise NotFoundError("nobody asks for time here")

    def tell(self, pod: JsonObject, reason: str, message: str, *, warning: bool = False) -> None:
        return

    async def size_of(self, pod: JsonObject) -> int | None:
        return None

    async def write(self, reservation: GpuReservation, status: GpuReservationStatus) -> None:
        return


class _NoBudgets:
    async def list(self) -> Sequence[DisruptionBudget]:
        return ()


class _Nodes:
    def __init__(self, world: Surroundings) -> None:
        self._world = world

    def objects(self) -> Sequence[JsonObject]:
        return [_node(machine) for machine in self._world.machines.values()]

    def get(self, name: str, namespace: str = "") -> JsonObject | None:
        return _node(self._world.machines[name])

    def by_index(self, index: str, value: str) -> Sequence[JsonObject]:
        return [pod for pod in self.objects() if value in planned(pod)]

    def by_uid(self, uid: str) -> JsonObject | None:
        return None


def _node(machine: Machine) -> JsonObject:
    offers = {"cpu": "64", "memory": "256Gi", "pods": "110", "gpuloom.dev/gpu-milli": "8000"}
    return {
        "metadata": {"name": machine.name, "uid": machine.uid, "resourceVersion": "1"},
        "status": {"allocatable": offers},
    }


async def one_by_one(work: Sequence[Callable[[], Awaitable[Outcome]]]) -> Sequence[Outcome]:
    return [await each() for each in work]
