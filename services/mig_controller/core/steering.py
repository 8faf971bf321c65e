"""Which idle node of mode nvidia NVIDIA's MIG manager is asked to cut otherwise, by what pods wait for. Pure.

Whole nodes: the manager gives all GPUs of a node the layout of one label. A node that anybody uses, or of
which that is not known, is never asked about; slices that are free already are left to NVIDIA's plugin.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpuloom.catalog import load_catalog
from gpuloom.codec.fields import JsonObject
from gpuloom.codec.node_labels import DESCRIPTIVE_LABELS
from gpuloom.codec.pod import bound_node, is_terminal, pod_request
from gpuloom.errors import InvalidRequestError
from gpuloom.model.gpu import GpuHealth
from gpuloom.model.node import NodeMode
from gpuloom.model.request import Authority, RequestKind
from gpuloom.model.snapshot import NodeFacts, NodePlace
from services.mig_controller.core.destinations import Destination, destination_of
from services.mig_controller.core.wishes import waits

LABEL_CONFIG = "nvidia.com/mig.config"
LABEL_STATE = "nvidia.com/mig.config.state"
LABEL_CAPABLE = "nvidia.com/mig.capable"
SETTLED = frozenset({"", "success", "failed"})
"""States in which the manager is not at work."""

NODE_HOLD = "mig-node-"
"""What the names of holds on nodes that the manager is asked about begin with; their UID follows."""

WHOLE = ""
"""The profile of a demand for GPUs that are not cut."""

_LABEL_PRODUCT = "nvidia.com/gpu.product"
_OF_LAYOUT = (
    "nvidia.com/mig",
    *(
        f"nvidia.com/gpu.{what}"
        for what in ("count", "engines", "memory", "multiprocessors", "replicas", "slices")
    ),
)
"""What labels begin with that say how GPUs are cut: another layout changes them."""


@dataclass(frozen=True, slots=True)
class Want:
    """What waiting pods of one kind ask NVIDIA's plugin for. Empty `models` and `architectures`: any."""

    profile: str
    models: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    destination: Destination | None = None
    """None: it is not known to which nodes they can go."""

    def takes(self, node: NodeFacts) -> bool:
        """Whether they could go there, however it is cut."""
        gpus = node.state.gpus
        return (
            (not self.models or any(gpu.model in self.models for gpu in gpus))
            and (not self.architectures or any(gpu.architecture in self.architectures for gpu in gpus))
            and (
                self.destination is None or self.destination.admits(node.state.node_name, _uncut(node.place))
            )
        )


@dataclass(frozen=True, slots=True)
class Steer:
    """The layout that one idle node is to have."""

    node_name: str
    node_uid: str
    config: str


def unmet_demand(pods: Iterable[JsonObject], facts: Sequence[NodeFacts]) -> Counter[Want]:
    """How many devices waiting pods ask NVIDIA's plugin for, beyond what is free where they can go."""
    wanted: Counter[Want] = Counter()
    for pod in pods:
        if waits(pod):
            wanted.update(_asked(pod))
    nodes = [node for node in facts if node.state.mode is NodeMode.NVIDIA and not node.untrusted_reasons]
    places = {want: [node for node in nodes if want.takes(node)] for want in wanted}
    free = {node.state.node_name: _free(node) for node in nodes}
    # Those with the least choice first: the others can take what these leave.
    for want in sorted(wanted, key=lambda want: len(places[want])):
        for node in places[want]:
            left = free[node.state.node_name]
            given = min(left[want.profile], wanted[want])
            left[want.profile] -= given
            wanted[want] -= given
    return +wanted


def steers(
    demand: Mapping[Want, int], facts: Sequence[NodeFacts], busy: frozenset[str], format_: str, off: str
) -> tuple[Steer, ...]:
    """The best node of each profile in demand, the most wanted first, each node once.

    `busy` are nodes to which a pod is bound that asks for GPUs. `format_` makes the name of a layout of
    `{profile}`; `off` is that of GPUs that are not cut.
    """
    found: list[Steer] = []
    idle = [node for node in facts if is_idle(node, busy)]
    totals: Counter[str] = Counter()
    for want, count in demand.items():
        totals[want.profile] += count
    for profile, _ in sorted(totals.items(), key=lambda item: (-item[1], item[0])):
        best = _best(profile, demand, [node for node in idle if _could(node, profile)])
        if best is not None:
            idle.remove(best)
            config = config_of(profile, format_, off)
            found.append(Steer(best.state.node_name, best.state.node_uid, config))
    return tuple(found)


def _best(profile: str, demand: Mapping[Want, int], able: Sequence[NodeFacts]) -> NodeFacts | None:
    """Where most can go; of those the fewest GPUs that are enough: a large node may be wanted whole."""
    wants = {want: count for want, count in demand.items() if want.profile == profile}

    def rank(node: NodeFacts) -> tuple[int, bool, int, str]:
        count = use[node.state.node_name]
        return -count, _made(node, profile) < count, len(node.state.gpus), node.state.node_name

    use = {
        node.state.node_name: sum(count for want, count in wants.items() if want.takes(node)) for node in able
    }
    return min((node for node in able if use[node.state.node_name] > 0), key=rank, default=None)


def config_of(profile: str, format_: str, off: str) -> str:
    """The name of the layout by which the manager knows it."""
    return off if profile == WHOLE else format_.format(profile=profile.replace("+", "."))


def is_idle(node: NodeFacts, busy: frozenset[str]) -> bool:
    """Whether it is certain that nobody uses anything of it."""
    state = node.state
    known = not (node.untrusted_reasons or state.holders_unknown_reason or state.driver_problem)
    free = not (state.holders or node.allocations or state.node_name in busy)
    return known and free and state.mode is NodeMode.NVIDIA and not node.place.unschedulable


def busy_nodes(pods: Iterable[JsonObject]) -> frozenset[str]:
    found = set()
    for pod in pods:
        node = bound_node(pod)
        if node and not is_terminal(pod) and _uses_gpus(pod):
            found.add(node)
    return frozenset(found)


def _uses_gpus(pod: JsonObject) -> bool:
    try:
        return pod_request(pod) is not None
    except InvalidRequestError:
        return True


def _asked(pod: JsonObject) -> dict[Want, int]:
    try:
        request = pod_request(pod)
    except InvalidRequestError:
        return {}
    if request is None or request.gpu.authority is not Authority.NVIDIA:
        return {}
    gpu = request.gpu
    profile = gpu.mig_profile if gpu.kind is RequestKind.MIG else WHOLE
    destination = destination_of(pod, (*DESCRIPTIVE_LABELS, *_OF_LAYOUT))
    return {Want(profile or WHOLE, gpu.models, gpu.architectures, destination): gpu.count}


def _uncut(place: NodePlace) -> NodePlace:
    """With one strategy of NVIDIA's plugin the product's name ends with how it is cut: …-MIG-1g.5gb."""
    labels = ((k, v.partition("-MIG-")[0] if k == _LABEL_PRODUCT else v) for k, v in place.labels)
    return replace(place, labels=tuple(labels))


def _free(node: NodeFacts) -> Counter[str]:
    """Not given to anybody and not broken."""
    held = {device.device for given in node.allocations for device in given.devices}
    held |= {device for holder in node.state.holders for device in holder.devices}
    found: Counter[str] = Counter()
    for gpu in node.state.gpus:
        if gpu.health is not GpuHealth.HEALTHY:
            continue
        if not gpu.mig_enabled:
            found[WHOLE] += not any(device.gpu_uuid == gpu.uuid for device in held)
        for one in gpu.mig_instances:
            taken = any(d.gpu_uuid == gpu.uuid and d.mig == one.placement for d in held)
            found[one.placement.profile] += not (taken or one.fault)
    return found


def _could(node: NodeFacts, profile: str) -> bool:
    """Whether the layout would change something of this node for the better."""
    gpus = node.state.gpus
    if profile == WHOLE:
        return any(gpu.mig_enabled for gpu in gpus)
    return bool(gpus) and _made(node, profile) > 0


def _made(node: NodeFacts, profile: str) -> int:
    """How many instances its GPUs would have; 0 if one of them can't be cut so."""
    if profile == WHOLE:
        return len(node.state.gpus)
    counts = []
    for gpu in node.state.gpus:
        model = load_catalog().find_gpu(gpu.model)
        known = () if model is None else model.mig_profiles
        counts.append(next((one.max_count for one in known if one.name == profile), 0))
    return sum(counts) if counts and all(counts) else 0
