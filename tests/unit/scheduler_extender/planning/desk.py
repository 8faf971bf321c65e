"""A leader that plans, on a few nodes of whole cards, beside a Kubernetes that answers at once."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import datetime

import orjson

from gpuloom.errors import ConflictError, NotAllowedError, NotFoundError, UnavailableError
from gpuloom.kube.cache import Change
from gpuloom.kube.client import PodBinding
from gpuloom.kube.objects import JsonObject, uid_of
from gpuloom.kube.parse import format_time
from gpuloom.model.gpu import Gpu, GpuHealth
from gpuloom.model.node import PodRef
from gpuloom.names import (
    ANNOTATION_CHECKPOINT_REQUESTED,
    ANNOTATION_GANG_SIZE,
    ANNOTATION_GANG_TIMEOUT,
    LABEL_GANG,
)
from gpuloom.placement.gangs.sites import neutral_judge
from gpuloom.placement.gangs.victims import DisruptionBudget
from gpuloom.placement.points import DEFAULT_WEIGHTS
from gpuloom.runtime.clock import FakeClock
from services.scheduler_extender.core.gangs.guard import NOTHING, Board, Entitlement, Guard
from services.scheduler_extender.core.gangs.index import planned
from services.scheduler_extender.core.ledger.ledger import Ledger
from services.scheduler_extender.core.objects.schedulers import SchedulerNames
from services.scheduler_extender.core.verbs.evaluator import Evaluator
from services.scheduler_extender.core.verbs.filtering import Preferences
from services.scheduler_extender.core.verbs.wire import BindCall
from services.scheduler_extender.holds.holding import Holding
from services.scheduler_extender.inquiries.decisions import DecisionLog
from services.scheduler_extender.planning.gangs import GangLoop, GangParts
from services.scheduler_extender.planning.gathering import GatheringLoop, GatheringParts
from services.scheduler_extender.planning.preemptions import Mode, PreemptionLoop, PreemptionParts
from services.scheduler_extender.planning.promises import Promises
from services.scheduler_extender.planning.sites import SiteBook
from services.scheduler_extender.planning.slices import at_once
from services.scheduler_extender.state.cluster import ClusterState
from services.scheduler_extender.verbs.binding import BindContext, Bindings
from services.scheduler_extender.verbs.verbs import Verbs
from tests.unit.scheduler_extender.builders import a_gpu, a_pod, gpuloom_share, some_facts
from tests.unit.scheduler_extender.planning.hold_objects import HoldObjects


@dataclass
class Kubernetes:
    """Nodes and pods. Bindings of `unbindable` pods are refused, evictions of `guarded` ones too.

    `silent`: nobody is told that a Binding was refused.
    """

    cards: Mapping[str, int]
    labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    pods: dict[str, JsonObject] = field(default_factory=dict)
    uids: dict[str, JsonObject] = field(default_factory=dict)
    holds: HoldObjects = field(default_factory=HoldObjects)
    unbindable: set[str] = field(default_factory=set)
    silent: bool = False
    guarded: set[str] = field(default_factory=set)
    evicted: list[str] = field(default_factory=list)
    warned: list[str] = field(default_factory=list)
    told: list[tuple[str, str, str]] = field(default_factory=list)
    budgets: list[DisruptionBudget] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)
    """UUIDs of GPUs that are unhealthy."""
    leaders: list["Leader"] = field(default_factory=list)
    version: int = 0

    def put(self, pod: JsonObject) -> None:
        self.version += 1
        pod = deepcopy(pod)
        pod["metadata"]["resourceVersion"] = str(self.version)
        old = self.pods.get(pod["metadata"]["name"])
        self.pods[pod["metadata"]["name"]] = self.uids[uid_of(pod)] = pod
        for leader in self.leaders:
            leader.state.observe_pod(Change(old, pod))

    def create(
        self,
        name: str,
        cards: int = 1,
        *,
        gang: str = "",
        size: int | None = None,
        timeout_s: int = 60,
        priority: int = 0,
        node: str = "",
        gated: bool = False,
        notes: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        milli: int = 0,
        spec: Mapping[str, object] | None = None,
    ) -> JsonObject:
        """`milli`: a share of one card instead of whole ones."""
        ref = PodRef("default", name, f"uid-{name}-{self.version}")
        annotations = dict(notes or {})
        if gang and size is not None:
            annotations |= {ANNOTATION_GANG_SIZE: str(size), ANNOTATION_GANG_TIMEOUT: str(timeout_s)}
        pod = a_pod(ref, gpuloom_share(milli or 1000 * cards), annotations=annotations)
        pod["spec"] |= spec or {}
        pod["metadata"]["creationTimestamp"] = (
            f"2026-01-01T00:{self.version // 60:02d}:{self.version % 60:02d}Z"
        )
        pod["metadata"]["labels"] = {**(labels or {}), **({LABEL_GANG: gang} if gang else {})}
        pod["spec"]["priority"] = priority
        if gated:
            pod["spec"]["schedulingGates"] = [{"name": "queue"}]
        self.put(pod)
        return self.pods[name]

    def gang(self, name: str, size: int, cards: int = 1, **rest: object) -> list[str]:
        names = [f"{name}-{i}" for i in range(size)]
        for member in names:
            self.create(member, cards, gang=name, size=size, **rest)  # type: ignore[arg-type]
        return names

    def delete(self, name: str) -> None:
        pod = self.pods.pop(name)
        del self.uids[uid_of(pod)]
        for leader in self.leaders:
            leader.state.observe_pod(Change(pod, None))
        self.show_facts()

    def show_facts(self) -> None:
        """Every node shows that nobody holds anything that has gone."""
        for leader in self.leaders:
            leader.hear_facts()

    def bound(self) -> dict[str, str]:
        found = ((name, pod["spec"].get("nodeName")) for name, pod in self.pods.items())
        return {name: node for name, node in found if node}

    def gpu(self, uuid: str, index: int) -> Gpu:
        health = GpuHealth.UNHEALTHY if uuid in self.broken else GpuHealth.HEALTHY
        return a_gpu(uuid, index, health=health)

    # What the extender calls.

    def get(self, name: str, namespace: str = "") -> JsonObject | None:
        return self.pods.get(name)

    def objects(self) -> Sequence[JsonObject]:
        return list(self.pods.values())

    def by_index(self, index: str, value: str) -> Sequence[JsonObject]:
        return [pod for pod in self.objects() if value in planned(pod)]

    def by_uid(self, uid: str) -> JsonObject | None:
        return self.uids.get(uid)

    async def read(self, namespace: str, name: str) -> JsonObject:
        if name not in self.pods:
            raise NotFoundError(name)
        return self.pods[name]

    async def bind(self, binding: PodBinding, *, timeout_s: float) -> None:
        if binding.pod in self.unbindable:
            if self.silent:
                raise UnavailableError("no answer")
            raise NotAllowedError("a webhook refuses it")
        pod = deepcopy(self.pods[binding.pod])
        if pod["spec"].get("nodeName"):
            raise ConflictError("bound already")
        pod["spec"]["nodeName"] = binding.node
        pod["metadata"]["annotations"] |= binding.annotations
        self.put(pod)

    async def evict(self, pod: PodRef) -> str:
        if pod.name in self.guarded:
            return "a PodDisruptionBudget forbids it"
        found = self.pods.get(pod.name)
        if found is None or uid_of(found) != pod.uid:
            return ""
        self.evicted.append(pod.name)
        changed = deepcopy(found)
        changed["metadata"]["deletionTimestamp"] = "2026-01-01T01:00:00Z"
        self.put(changed)
        return ""

    async def request_checkpoint(self, pod: PodRef, at: datetime) -> None:
        self.warned.append(pod.name)
        changed = deepcopy(self.pods[pod.name])
        changed["metadata"]["annotations"][ANNOTATION_CHECKPOINT_REQUESTED] = format_time(at)
        self.put(changed)

    def tell(self, pod: JsonObject, reason: str, message: str, *, warning: bool = False) -> None:
        self.told.append((pod["metadata"]["name"], reason, message))

    async def list(self) -> Sequence[DisruptionBudget]:
        return self.budgets

    def run(self, name: str, *, since: str = "2026-01-01T00:00:00Z", **notes: str) -> None:
        """Its kubelet says that it runs; `notes` are annotations of ours."""
        pod = deepcopy(self.pods[name])
        pod["status"] |= {"phase": "Running", "startTime": since}
        pod["metadata"]["annotations"] |= {f"gpuloom.dev/{k.replace('_', '-')}": v for k, v in notes.items()}
        self.put(pod)

    def finish(self, name: str) -> None:
        pod = deepcopy(self.pods[name])
        pod["status"]["phase"] = "Succeeded"
        self.put(pod)

    def refuse(self, name: str) -> None:
        """kube-scheduler says that it found no node for it."""
        pod = deepcopy(self.pods[name])
        pod["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]
        self.put(pod)

    async def size_of(self, pod: JsonObject) -> int | None:
        return self.sizes.get(pod["metadata"]["labels"][LABEL_GANG])


class Nodes:
    def __init__(self, kubernetes: Kubernetes) -> None:
        self._kubernetes = kubernetes

    def objects(self) -> Sequence[JsonObject]:
        return [self._node(name) for name in sorted(self._kubernetes.cards)]

    def get(self, name: str, namespace: str = "") -> JsonObject | None:
        return self._node(name)

    def by_index(self, index: str, value: str) -> Sequence[JsonObject]:
        return [pod for pod in self.objects() if value in planned(pod)]

    def by_uid(self, uid: str) -> JsonObject | None:
        return next((node for node in self.objects() if uid_of(node) == uid), None)

    def _node(self, name: str) -> JsonObject:
        milli = str(1000 * self._kubernetes.cards[name])
        labels = dict(self._kubernetes.labels.get(name, {}))
        offers = {"cpu": "64", "memory": "256Gi", "pods": "110", "gpuloom.dev/gpu-milli": milli}
        return {
            "metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": "1", "labels": labels},
            "status": {"allocatable": offers},
        }


class Leader:
    """One term of one extender: it knows what Kubernetes shows, and nothing of the terms before."""

    def __init__(
        self,
        kubernetes: Kubernetes,
        clock: FakeClock,
        entitlement_of: Callable[[JsonObject], Entitlement] = lambda _: NOTHING,
    ) -> None:
        self.kubernetes = kubernetes
        self.clock = clock
        self.leads = True
        self.state = ClusterState(Ledger(30.0), lambda: False, clock)
        self.nodes = Nodes(kubernetes)
        for node in self.nodes.objects():
            self.state.observe_node(Change(None, node))
        for pod in kubernetes.pods.values():
            self.state.observe_pod(Change(None, pod))
        for hold in kubernetes.holds.objects.values():
            self.state.observe_hold(Change(None, hold))
        self.hear_facts()
        self.board = Board()
        views, ledger = self.state.views, self.state.ledger
        self.guard = Guard(views, ledger.holds, self.board, entitlement_of)
        self.holding = Holding(ledger, kubernetes.holds, self, lambda: "", clock)
        self.promises = Promises(self.holding, ledger.holds, views, at_once)
        self.book = SiteBook(views, ledger, self.nodes, kubernetes, entitlement_of)
        self.gangs = GangLoop(
            GangParts(
                kubernetes,
                ledger,
                self.book,
                self.promises,
                self.board,
                kubernetes,
                kubernetes,
                kubernetes,
                self.state.wake_for,
                neutral_judge,
            ),
            clock,
        )
        self.preemptions = self.preempting()
        self.gathering = GatheringLoop(
            GatheringParts(
                kubernetes,
                ledger,
                self.book,
                self.promises,
                kubernetes,
                self.gangs,
                self.preemptions.tenants,
            ),
            clock,
        )
        context = BindContext(ledger, views, DecisionLog(clock), clock, guard=self.guard)
        self.bindings = Bindings(context, kubernetes, kubernetes, 4.0)
        evaluator = Evaluator(DEFAULT_WEIGHTS)
        views.keep(evaluator.fleet)
        self.verbs = Verbs(context, self.bindings, Preferences(8, evaluator), schedulers=SchedulerNames())
        kubernetes.leaders.append(self)

    def preempting(self, mode: Mode = Mode.ON, min_run_s: float = 60.0) -> PreemptionLoop:
        kubernetes = self.kubernetes
        parts = PreemptionParts(
            kubernetes,
            self.state.ledger,
            self.book,
            self.promises,
            self.board,
            kubernetes,
            kubernetes,
            kubernetes,
            self.gangs,
            mode,
            min_run_s,
        )
        self.preemptions = PreemptionLoop(parts, self.clock)
        return self.preemptions

    def until_s(self) -> float:
        return 1e9 if self.leads else -1.0

    def die(self) -> None:
        self.leads = False
        self.kubernetes.leaders.remove(self)

    async def released(self) -> None:
        """So much time passes that what left has surely left its node."""
        await self.clock.advance(31.0)
        self.hear_facts()
        self.state.take_reopened()

    def hear_facts(self) -> None:
        for name, cards in self.kubernetes.cards.items():
            gpus = [self.kubernetes.gpu(f"GPU-{name}-{i}", i) for i in range(cards)]
            self.state.observe_facts(f"uid-{name}", some_facts(name, *gpus))

    def offered(self, pod: str, without: Sequence[str] = ()) -> list[str]:
        """The nodes that a filter answers for this pod; refused with reasons if none."""
        names = [name for name in sorted(self.kubernetes.cards) if name not in without]
        body = orjson.dumps({"Pod": self.kubernetes.pods[pod], "NodeNames": names})
        answer = orjson.loads(self.verbs.answer_at_once("filter", body))
        found: list[str] = answer["NodeNames"]
        return found

    async def schedule(self, *pods: str) -> dict[str, str]:
        """kube-scheduler tries these pods once: the first node that filter answers is bound."""
        outcome: dict[str, str] = {}
        for name in pods:
            nodes = self.offered(name) if name in self.kubernetes.pods else []
            if not nodes:
                outcome[name] = "refused"
                continue
            outcome[name] = await self.bind(name, nodes[0])
        return outcome

    async def bind(self, name: str, node: str) -> str:
        pod = self.kubernetes.pods[name]
        return await self.bindings.bind(BindCall("default", name, uid_of(pod), node))

    def free_cards(self) -> int:
        views = [self.state.views.view(name) for name in self.kubernetes.cards]
        return sum(
            card.untouched and not card.closed_reason
            for view in views
            if view is not None and not view.closed_reason
            for card in view.gpus
        )
