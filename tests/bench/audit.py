"""Whether a burst was placed correctly: every pod somewhere it may be, no GPU beyond its capacity. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpuloom.codec.allocation import believable, decode_allocation
from gpuloom.errors import InvalidRequestError
from gpuloom.kube.objects import JsonObject, metadata_of, uid_of
from gpuloom.model.allocation import Allocation
from gpuloom.model.gpu import MILLI_PER_GPU
from gpuloom.model.snapshot import NodeFacts
from gpuloom.names import ANNOTATION_ALLOCATION
from tests.bench.workload import GPUS_PER_NODE, PodPlan


@dataclass(frozen=True, slots=True)
class PlacedPod:
    plan: PodPlan
    uid: str
    node_name: str
    allocation_text: str | None


def placed_pods(plans: Iterable[PodPlan], pods: Iterable[JsonObject]) -> list[PlacedPod]:
    """A pod that is not there any more counts as placed nowhere."""
    found = {metadata_of(pod).get("name"): pod for pod in pods}
    placed = []
    for plan in plans:
        pod = found.get(plan.name, {})
        annotations = metadata_of(pod).get("annotations") or {}
        node_name = (pod.get("spec") or {}).get("nodeName") or ""
        placed.append(PlacedPod(plan, uid_of(pod), node_name, annotations.get(ANNOTATION_ALLOCATION)))
    return placed


def check_nodes(pods: Sequence[PlacedPod], nodes: Mapping[str, NodeFacts]) -> list[str]:
    """What is wrong with the choice of nodes, whoever made it."""
    problems = []
    taken: dict[str, int] = defaultdict(int)
    for pod in pods:
        facts = nodes.get(pod.node_name)
        if facts is None:
            problems.append(f"{pod.plan.name} is bound to no node of the cluster: {pod.node_name!r}")
        elif facts.state.mode is not pod.plan.mode:
            problems.append(f"{pod.plan.name} asks for {pod.plan.mode} and is on a {facts.state.mode} node")
        else:
            taken[pod.node_name] += pod.plan.milli
    over = {name: milli for name, milli in taken.items() if milli > GPUS_PER_NODE * MILLI_PER_GPU}
    return problems + [f"{name} has pods for {milli} milli of GPU" for name, milli in sorted(over.items())]


def check_devices(pods: Sequence[PlacedPod], nodes: Mapping[str, NodeFacts]) -> list[str]:
    """What is wrong with the devices that the pods were given."""
    problems: list[str] = []
    milli: dict[str, int] = defaultdict(int)
    memory_mib: dict[str, int] = defaultdict(int)
    for pod in pods:
        allocation = _allocation(pod, nodes)
        if isinstance(allocation, str):
            problems.append(f"{pod.plan.name}: {allocation}")
            continue
        problems += [f"{pod.plan.name}: {text}" for text in _misfits(pod, allocation, nodes)]
        for given in allocation.devices:
            milli[given.device.gpu_uuid] += given.milli
            memory_mib[given.device.gpu_uuid] += given.memory_mib
    capacity_mib = {gpu.uuid: gpu.memory_mib for facts in nodes.values() for gpu in facts.state.gpus}
    for uuid in sorted(milli):
        if milli[uuid] > MILLI_PER_GPU or memory_mib[uuid] > capacity_mib.get(uuid, 0):
            problems.append(f"{uuid} was given out beyond its capacity: {milli[uuid]} milli")
    return problems


def _allocation(pod: PlacedPod, nodes: Mapping[str, NodeFacts]) -> Allocation | str:
    facts = nodes.get(pod.node_name)
    if pod.allocation_text is None or facts is None:
        return "no allocation"
    try:
        allocation = decode_allocation(pod.allocation_text)
    except InvalidRequestError as error:
        return str(error)
    return believable(allocation, pod.uid, facts.state.node_uid) or allocation


def _misfits(pod: PlacedPod, allocation: Allocation, nodes: Mapping[str, NodeFacts]) -> Iterator[str]:
    there = {gpu.uuid for gpu in nodes[pod.node_name].state.gpus}
    for given in allocation.devices:
        if given.device.gpu_uuid not in there:
            yield f"{given.device.gpu_uuid} is not on {pod.node_name}"
    total = sum(given.milli for given in allocation.devices)
    if total != pod.plan.milli:
        yield f"asked for {pod.plan.milli} milli and was given {total}"
