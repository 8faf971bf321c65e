"""What GPUNodeConfigs and sharing policies are told of the nodes that they are about. Pure."""

from collections.abc import Iterable, Sequence

from gpuloom.kube.conditions import Condition
from gpuloom.model.gpu import MILLI_PER_GPU, Gpu, SharingMode
from gpuloom.model.node import NodeMode
from gpuloom.model.sharing import (
    DividedGpu,
    GpuSharingPolicySpec,
    InstanceState,
    MigStage,
    SharingStrategy,
)
from gpuloom.model.snapshot import NodeFacts
from services.mig_controller.core.cards import NO_CLIENTS, Card
from services.mig_controller.core.steering import LABEL_CONFIG, LABEL_STATE

_REPLICAS = "nvidia.com/gpu.replicas"
_SHARING = "nvidia.com/gpu.sharing-strategy"


def divided_by_nvidia(node: NodeFacts) -> tuple[DividedGpu, ...]:
    """GPUs of a node on which NVIDIA's plugin gives devices, as the driver shows them."""
    return tuple(_divided(node, gpu) for gpu in node.state.gpus)


def _divided(node: NodeFacts, gpu: Gpu) -> DividedGpu:
    given = {d.device for each in node.allocations for d in each.devices}
    held = {d for holder in node.state.holders for d in holder.devices}
    instances = []
    for one in gpu.mig_instances:
        mine = [d for d in given | held if d.gpu_uuid == gpu.uuid and d.mig == one.placement]
        stage = MigStage.AVAILABLE
        if mine:
            stage = MigStage.IN_USE if held & set(mine) else MigStage.ALLOCATED
        elif one.fault:
            stage = MigStage.PARTITION_CREATED
        instances.append(InstanceState(one.placement.profile, one.placement.start, stage))
    stage = MigStage.MIG_ENABLED if gpu.mig_enabled else MigStage.GPU_DISCOVERED
    return DividedGpu(gpu.uuid, stage, tuple(instances))


def nvidia_text(node: NodeFacts) -> str:
    """How NVIDIA's own parts divide the GPUs of this node, as their labels say."""
    labels = dict(node.place.labels)
    told = []
    if labels.get(LABEL_CONFIG):
        told.append(f"MIG layout {labels[LABEL_CONFIG]} ({labels.get(LABEL_STATE, 'state not told')})")
    replicas, how = labels.get(_REPLICAS, ""), labels.get(_SHARING, "none")
    if replicas.isdigit() and int(replicas) > 1 and how != "none":
        told.append(f"{replicas} replicas of each GPU by {how}")
    return "; ".join(told) or "whole GPUs"


def policy_condition(
    spec: GpuSharingPolicySpec, cards: Sequence[Card], nodes: Iterable[NodeFacts]
) -> Condition:
    """Whether pods that the policy selects can be given what it says, now."""
    foreign = _foreign(nodes)
    if not cards:
        reason = "there is no GPU on a node of mode gpuloom; pods stay as they are"
        return Condition("Ready", False, "NoGpuloomNodes", f"{reason}{foreign}")
    if spec.strategy is SharingStrategy.MIG:
        return _mig_condition(spec, cards)
    if spec.strategy is SharingStrategy.MPS and not any(card.takes_clients for card in cards):
        return Condition("Ready", False, "NoLimits", f"no pod can be limited by MPS: {NO_CLIENTS}{foreign}")
    if spec.strategy is SharingStrategy.MPS:
        shared = sum(card.sharing is SharingMode.MPS for card in cards)
        limits = "limits are the driver's; a GPU gets its MPS daemon when a pod waits for it"
        return Condition("Ready", True, "OnDemand", f"{shared} GPUs are shared by MPS now; {limits}{foreign}")
    milli = MILLI_PER_GPU // (spec.replicas_per_gpu or 1)
    what = f"a pod gets {milli} thousandths of a GPU, accounted for and not limited"
    return Condition("Ready", True, "Shares", f"{what}{foreign}")


def _mig_condition(spec: GpuSharingPolicySpec, cards: Sequence[Card]) -> Condition:
    profile = spec.mig_profile
    able = [c for c in cards if (c.cuttable if profile is None else c.geometry.profile(profile) is not None)]
    what = profile or "slices"
    if not able:
        return Condition("Ready", False, "NoSuchProfile", f"no GPU of a gpuloom node can be cut into {what}")
    free = sum(
        one.free and one.placement.profile == (profile or one.placement.profile)
        for c in able
        for one in c.slices
    )
    return Condition(
        "Ready", True, "OnDemand", f"{len(able)} GPUs can be cut into {what}; {free} are free now"
    )


def _foreign(nodes: Iterable[NodeFacts]) -> str:
    """Where NVIDIA's plugin gives devices its own configuration counts, so that is told."""
    texts: dict[str, list[str]] = {}
    for node in nodes:
        if node.state.mode is NodeMode.NVIDIA and node.state.gpus:
            texts.setdefault(nvidia_text(node), []).append(node.state.node_name)
    if not texts:
        return ""
    told = [f"{_names(names)}: {text}" for text, names in sorted(texts.items())]
    return f". NVIDIA's device plugin has its own way on {'; '.join(told)}"


def _names(names: Sequence[str]) -> str:
    shown = sorted(names)[:3]
    return ", ".join(shown) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
