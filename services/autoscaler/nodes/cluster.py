"""The cluster as the core wants it: nodes with what is free, pods that wait, who lives where. Reads only.

Views of devices are the extender's own, made from its ledger and discovery's facts by the same function.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from gpuloom.catalog import load_catalog
from gpuloom.clients.discovery import ClusterMirror
from gpuloom.clients.ledger import LedgerMirror
from gpuloom.codec.custom.inference import inference_policy
from gpuloom.codec.pod import bound_node, is_terminal, pod_ref
from gpuloom.codec.scheduling import schedulable_node
from gpuloom.errors import InvalidRequestError, NotFoundError
from gpuloom.kube.informer import Informer
from gpuloom.kube.objects import JsonObject, key_of, metadata_of, uid_of
from gpuloom.model.claims import ClaimState, GpuNodeClaim
from gpuloom.model.gpu import MILLI_PER_GPU
from gpuloom.model.snapshot import NodeFacts
from gpuloom.names import (
    ANNOTATION_SPOT_TIME,
    ANNOTATION_SPOT_WARNING,
    RESOURCE_GPU_MILLI,
    RESOURCE_NVIDIA_GPU,
)
from gpuloom.placement.constraints.objects import NodeUse, SchedulablePod
from gpuloom.placement.occupancy.node_view import node_view
from services.autoscaler.core.buying.filling import MachineForm, Stencils
from services.autoscaler.core.buying.offerings import Offering
from services.autoscaler.core.buying.offerings import key_of as offering_key
from services.autoscaler.core.buying.pending import PendingPod, Worth
from services.autoscaler.core.buying.simulation import SimulatedNode
from services.autoscaler.core.lifecycle import claims as life
from services.autoscaler.core.lifecycle import drain
from services.autoscaler.core.lifecycle.claims import NodeFact
from services.autoscaler.core.lifecycle.drain import Tenant
from services.autoscaler.core.scaling.scale_down import Resident
from services.autoscaler.nodes.pods import (
    Workload,
    allows,
    controller_of,
    covers,
    daemons,
    gang_of,
    gpus_of,
    is_daemon,
    pending_pod,
    request_of,
    schedulable_of,
    tenant_of,
    time_of,
    workload_of,
)

UNTRUSTED_LIMIT = 0.10
GIVEN_UP_AFTER = timedelta(minutes=5)
"""As long pods tolerate a node that is not ready, unless they say otherwise: then Kubernetes evicts them."""
DEAD_LIMIT, DEAD_ALWAYS_OK = 0.45, 3
"""As in cluster-autoscaler: where more nodes than that are not ready it is rather the network."""
FACTS_TTL_S = 30.0
_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Sources:
    pods: Informer
    nodes: Informer
    budgets: Informer
    facts: ClusterMirror
    ledger: LedgerMirror
    inference: Informer
    """Whose least replicas are always on. Nothing waits for it: without the kind there are none."""

    def unlisted(self) -> str:
        if not (self.pods.synced and self.nodes.synced and self.budgets.synced):
            return "pods and nodes are not listed yet"
        return ""

    def missing(self) -> str:
        """What is not known yet, so that nothing may be decided; empty if all is."""
        if self.unlisted():
            return self.unlisted()
        if not self.facts.synced or self.facts.age_s() > FACTS_TTL_S:
            return "discovery does not answer"
        if not self.ledger.synced or self.ledger.age_s() > FACTS_TTL_S:
            return "the extender's ledger is not known"
        return ""


@dataclass(slots=True)
class Snapshot:
    """Everything at one time. `utilization` None: no GPU tells it."""

    pending: list[PendingPod] = field(default_factory=list)
    nodes: list[SimulatedNode] = field(default_factory=list)
    form: MachineForm = field(default_factory=MachineForm)
    node_use: dict[str, tuple[float | None, bool]] = field(default_factory=dict)
    residents: dict[str, list[Resident]] = field(default_factory=dict)
    node_uids: dict[str, str] = field(default_factory=dict)
    opted_out: set[str] = field(default_factory=set)
    utilization: float | None = None
    told_gpus: int = 0
    untrusted: int = 0
    dead: int = 0
    """Nodes that Kubernetes gave up: what was there is evicted, and waits like any other pod."""
    gpu_nodes: int = 0
    gpus_wanted: float = 0.0
    foreign_gpus: int = 0
    """GPUs of nodes that are not ours to buy or give back."""

    @property
    def frozen_reason(self) -> str:
        """Invariant: where too much is not known, nothing is bought or drained because of it.

        One node alone says nothing of the whole: in a small cluster it would be a tenth of it.
        """
        if self.dead > DEAD_ALWAYS_OK and self.dead / self.gpu_nodes > DEAD_LIMIT:
            return f"{self.dead} of {self.gpu_nodes} GPU nodes are not ready now"
        if self.gpu_nodes and self.untrusted / self.gpu_nodes > UNTRUSTED_LIMIT and self.untrusted > 1:
            return f"{self.untrusted} of {self.gpu_nodes} GPU nodes can't be trusted now"
        return ""


class ClusterReader:
    """`pool_labels`: what nodes of a pool will have; pods select by them before such a node is there."""

    def __init__(
        self, sources: Sources, form: MachineForm, pool_labels: Callable[[str], Mapping[str, str]]
    ) -> None:
        self.sources = sources
        self._form = form
        self._pool_labels = pool_labels

    def snapshot(self, claims: Iterable[GpuNodeClaim], now: datetime) -> Snapshot:
        listed = list(claims)
        pods_by_node = self._pods_by_node()
        found = Snapshot(form=replace(self._form, daemons=daemons(pods_by_node.values())))
        found.pending = self._pending(now)
        facts = {one.state.node_name: one for one in self.sources.facts.snapshot().nodes.values()}
        upcoming = [one for one in listed if one.status.state in life.UPCOMING]
        hidden = {one.status.node_name for one in upcoming}
        # What of it is free is known once its agent tells.
        upcoming = [one for one in upcoming if not self.is_busy(one.status.node_name or "")]
        hidden |= {one.status.node_name for one in listed if one.status.state is ClaimState.DRAINING}
        for node in sorted(self.sources.nodes.objects(), key=key_of):
            told = facts.get(key_of(node)[1])
            if key_of(node)[1] in hidden:
                continue
            if told is not None and not told.trusted and is_given_up(node, now):
                found.dead += 1
                found.gpu_nodes += 1
            else:
                self._add_node(found, node, told, pods_by_node)
        found.nodes.sort(key=_fullest_first)
        expected = (
            expected_claim(one, found.form, self._pool_labels(one.spec.pool_name)) for one in upcoming
        )
        found.nodes.extend(filter(None, expected))
        self._measure(found, facts.values())
        mine = {one.status.node_name for one in listed}
        found.foreign_gpus = sum(
            len(one.state.gpus) for one in facts.values() if one.state.node_name not in mine
        )
        return found

    def node_facts(self) -> dict[str, NodeFact]:
        """By provider id in lower case."""
        facts = {one.state.node_name: one for one in self.sources.facts.snapshot().nodes.values()}
        found = {}
        for node in self.sources.nodes.objects():
            provider_id = str((node.get("spec") or {}).get("providerID") or "")
            if provider_id:
                fact = _node_fact(node, provider_id, facts.get(key_of(node)[1]))
                found[provider_id.lower()] = replace(fact, busy=not fact.gpus and self.is_busy(fact.name))
        return found

    def is_busy(self, node: str) -> bool:
        return any(one.uses_gpu and not one.daemon for one in self.tenants(node))

    def tenants(self, node: str) -> list[Tenant]:
        return [tenant_of(pod) for pod in self.sources.pods.by_index("node", node) if not is_terminal(pod)]

    def warnings(self) -> dict[str, datetime | None]:
        """Nodes that a cloud will take back, with the time it told."""
        found: dict[str, datetime | None] = {}
        for node in self.sources.nodes.objects():
            annotations = metadata_of(node).get("annotations") or {}
            if annotations.get(ANNOTATION_SPOT_WARNING) == "true":
                found[key_of(node)[1]] = time_of(annotations.get(ANNOTATION_SPOT_TIME))
        return found

    def _add_node(
        self,
        found: Snapshot,
        node: JsonObject,
        facts: NodeFacts | None,
        pods_by_node: Mapping[str, list[JsonObject]],
    ) -> None:
        name = key_of(node)[1]
        view = self.sources.ledger.view(name, facts)
        if view is None or facts is None or not facts.state.gpus:
            return
        found.gpu_nodes += 1
        ledger = self.sources.ledger.nodes[name]
        if not facts.trusted:
            # Untrusted is not used, and is no reason to buy: it counts as it will be when trusted again.
            found.untrusted += 1
            view = node_view(ledger, replace(facts, untrusted_reasons=()))
        pods = [pod for pod in pods_by_node.get(name, ()) if not is_terminal(pod)]
        schedulable = [schedulable_of(pod) for pod in pods]
        readable = [pod for pod in schedulable if pod is not None]
        found.nodes.append(SimulatedNode(view, schedulable_node(node), _use(readable), readable))
        found.node_uids[name] = uid_of(node)
        residents = [self._resident(pod) for pod in pods if not is_daemon(pod)]
        found.residents[name] = residents
        if (metadata_of(node).get("annotations") or {}).get(drain.ANNOTATION_NO_DISRUPT) == "true":
            found.opted_out.add(name)
        readings = [one.utilization_ratio for one in facts.state.usage]
        told = [value for value in readings if value is not None]
        complete = facts.trusted and len(told) == len(facts.state.gpus)
        use = sum(told) / len(told) if complete and told else None
        found.node_use[uid_of(node)] = (use, any(one.uses_gpu for one in residents))

    def _measure(self, found: Snapshot, facts: Iterable[NodeFacts]) -> None:
        values = [
            one.utilization_ratio
            for node in facts
            if node.trusted
            for one in node.state.usage
            if one.utilization_ratio is not None
        ]
        found.utilization, found.told_gpus = sum(values) / len(values) if values else None, len(values)
        running = (
            request
            for pod in self.sources.pods.objects()
            if bound_node(pod) and not is_terminal(pod) and (request := request_of(pod)) is not None
        )
        waiting = (one.request for one in found.pending)
        found.gpus_wanted = sum(gpus_of(one) for one in (*running, *waiting))

    def _pending(self, now: datetime) -> list[PendingPod]:
        found = []
        left, settled = self._always_on(), self._settled_members()
        for pod in self.sources.pods.objects():
            spec = pod.get("spec") or {}
            waits = not bound_node(pod) and not is_terminal(pod) and not spec.get("schedulingGates")
            if waits and not metadata_of(pod).get("deletionTimestamp"):
                request, schedulable = request_of(pod), schedulable_of(pod)
                if request is not None and schedulable is not None:
                    made = pending_pod(pod, request, schedulable, now)
                    if made.gang:
                        there = settled[made.ref.namespace, made.gang]
                        made = replace(made, gang_size=max(0, made.gang_size - there))
                    if left.get(workload_of(pod), 0) > 0:
                        left[workload_of(pod)] -= 1
                        made = replace(made, worth=Worth.ALWAYS_ON)
                    found.append(made)
        return sorted(found, key=lambda one: one.ref)

    def _settled_members(self) -> Counter[tuple[str, str]]:
        """How many pods of each gang need no place any more, as the extender counts them.

        Whoever comes in the place of one that failed would else wait for a gang that is never whole again.
        """
        found: Counter[tuple[str, str]] = Counter()
        for pod in self.sources.pods.objects():
            gang = gang_of(pod)
            if gang:
                succeeded = (pod.get("status") or {}).get("phase") == "Succeeded"
                leaves = is_terminal(pod) or bool(metadata_of(pod).get("deletionTimestamp"))
                found[key_of(pod)[0], gang] += succeeded or (bool(bound_node(pod)) and not leaves)
        return found

    def _always_on(self) -> dict[Workload, int]:
        """How many replicas of each workload still have no node, of those that its policy always keeps."""
        left = {}
        for obj in self.sources.inference.objects():
            try:
                spec = inference_policy(obj).spec
            except InvalidRequestError:
                continue
            left[key_of(obj)[0], spec.target.kind, spec.target.name] = spec.min_replicas
        for pod in self.sources.pods.objects() if left else ():
            workload = workload_of(pod)
            if workload in left and bound_node(pod) and not is_terminal(pod):
                left[workload] -= 1
        return left

    def _pods_by_node(self) -> dict[str, list[JsonObject]]:
        found: defaultdict[str, list[JsonObject]] = defaultdict(list)
        for pod in self.sources.pods.objects():
            node = bound_node(pod)
            if node:
                found[node].append(pod)
        return found

    def _resident(self, pod: JsonObject) -> Resident:
        request, schedulable = request_of(pod), schedulable_of(pod)
        name = "/".join(key_of(pod))
        moved = (
            None
            if request is None or schedulable is None
            else PendingPod(pod_ref(pod), request, schedulable, _LONG_AGO)
        )
        return Resident(moved, name, request is not None, self._why_stays(pod))

    def _why_stays(self, pod: JsonObject) -> str:
        metadata = metadata_of(pod)
        if (metadata.get("annotations") or {}).get(drain.ANNOTATION_NO_DISRUPT) == "true":
            return "must not be disrupted"
        if not controller_of(pod):
            return "has no controller that would make it anew"
        labels = metadata.get("labels") or {}
        budgets = [
            one
            for one in self.sources.budgets.objects()
            if key_of(one)[0] == key_of(pod)[0] and covers(one, labels)
        ]
        if len(budgets) > 1:
            return "has several PodDisruptionBudgets, which Kubernetes does not evict"
        if budgets and not allows(budgets[0]):
            return f"is kept by PodDisruptionBudget {key_of(budgets[0])[1]}"
        return ""


def expected_claim(claim: GpuNodeClaim, form: MachineForm, labels: Mapping[str, str]) -> SimulatedNode | None:
    """A machine on its way, with the GPUs that its type will have: F1, F4."""
    offering = claim.spec.offering
    for provider in ("aws", "gcp", "azure"):
        try:
            instance = load_catalog().instance(provider, offering.instance_type)
        except NotFoundError:
            continue
        made = Offering(claim.spec.pool_name, offering_key(claim), instance, 0, labels=labels)
        return Stencils(form).node(made, claim.status.node_name or claim.meta.name)
    return None


def index_by_node(pod: JsonObject) -> Iterable[str]:
    node = (pod.get("spec") or {}).get("nodeName")
    return (node,) if node else ()


def is_given_up(node: JsonObject, now: datetime) -> bool:
    """Whether it has not been ready for so long that Kubernetes evicts what is there."""
    for one in (node.get("status") or {}).get("conditions") or ():
        if one.get("type") == "Ready" and one.get("status") != "True":
            since = time_of(one.get("lastTransitionTime"))
            return since is not None and now - since >= GIVEN_UP_AFTER
    return False


def _node_fact(node: JsonObject, provider_id: str, facts: NodeFacts | None) -> NodeFact:
    status = node.get("status") or {}
    ready = any(
        one.get("type") == "Ready" and one.get("status") == "True" for one in status.get("conditions") or ()
    )
    gpus = 0
    if facts is not None and facts.trusted:
        offered = schedulable_node(node).allocatable
        gpus = max(offered.get(RESOURCE_NVIDIA_GPU, 0), offered.get(RESOURCE_GPU_MILLI, 0) // MILLI_PER_GPU)
    return NodeFact(key_of(node)[1], provider_id, ready, gpus, uid_of(node))


def _use(pods: Iterable[SchedulablePod]) -> NodeUse:
    requested: dict[str, int] = {}
    count = 0
    for pod in pods:
        count += 1
        for resource, amount in pod.requests.items():
            requested[resource] = requested.get(resource, 0) + amount
    return NodeUse(requested, count)


def _fullest_first(node: SimulatedNode) -> tuple[float, str]:
    """Pods go where others are, so that empty nodes can be given back."""
    return (sum(card.free_share_milli for card in node.view.gpus) / max(1, len(node.view.gpus)), node.name)
