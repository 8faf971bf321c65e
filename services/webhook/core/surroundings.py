"""What the cluster can give, and what its policies say, for one pod."""

from collections.abc import Mapping, Sequence

from gpuloom.catalog import load_catalog, slice_milli
from gpuloom.catalog.entries import mig_resource
from gpuloom.model.gpu import MILLI_PER_GPU
from gpuloom.model.node import Delivery, NodeMode, NodeState
from gpuloom.model.sharing import GpuSharingPolicy, GpuSharingPolicySpec, SharingStrategy
from services.webhook.core.pods import Offers, SharingMode, Surroundings

_MODES = {
    SharingStrategy.MIG: SharingMode.MIG,
    SharingStrategy.MPS: SharingMode.MPS,
    SharingStrategy.TIMESLICING: SharingMode.TIMESLICING,
}


def offers_of(states: Sequence[NodeState]) -> Offers:
    plugged = frozenset(
        mig_resource(instance.placement.profile)
        for state in states
        if state.mode is NodeMode.NVIDIA
        for gpu in state.gpus
        for instance in gpu.mig_instances
    )
    own = [state for state in states if state.mode is NodeMode.GPULOOM and state.gpus]
    # One that is not in the catalogue has no profiles that anybody could ask for.
    found = (load_catalog().find_gpu(name) for name in {gpu.model for state in own for gpu in state.gpus})
    milli: dict[str, int] = {}
    for model in filter(None, found):
        for profile in model.mig_profiles:
            here = slice_milli(profile.memory_slices, model.mig_slices)
            milli[profile.name] = min(here, milli.get(profile.name, here))
    by_environment = bool(own) and all(state.delivery is Delivery.ENV for state in own)
    return Offers(bool(own), frozenset(milli), by_environment, plugged, milli)


def chosen_policy(
    policies: Sequence[GpuSharingPolicy], pod_labels: Mapping[str, str], namespace_labels: Mapping[str, str]
) -> GpuSharingPolicy | None:
    """Of those that select the pod and its namespace the one of highest priority, then by name."""
    matching = [
        policy
        for policy in policies
        if policy.spec.pods.matches(pod_labels) and policy.spec.namespaces.matches(namespace_labels)
    ]
    return min(matching, key=lambda policy: (-policy.spec.priority, policy.meta.name), default=None)


def surroundings_of(
    namespace_labels: Mapping[str, str],
    offers: Offers,
    policy: GpuSharingPolicy | None,
) -> Surroundings:
    if policy is None:
        return Surroundings(namespace_labels, offers)
    spec = policy.spec
    return Surroundings(
        namespace_labels,
        offers,
        sharing_mode=_MODES[spec.strategy],
        share_milli=share_milli(spec),
        share_memory_mib=spec.mps.memory_mib if spec.strategy is SharingStrategy.MPS else None,
        mig_profile=spec.mig_profile if spec.strategy is SharingStrategy.MIG else None,
    )


def share_milli(spec: GpuSharingPolicySpec) -> int | None:
    """The part of a GPU that a pod gets by a policy; None if it leaves that to others."""
    if spec.strategy is SharingStrategy.TIMESLICING and spec.replicas_per_gpu:
        return MILLI_PER_GPU // spec.replicas_per_gpu
    if spec.strategy is not SharingStrategy.MPS:
        return None
    if spec.mps.thread_percentage:
        return MILLI_PER_GPU * spec.mps.thread_percentage // 100
    return MILLI_PER_GPU // spec.mps.max_clients if spec.mps.max_clients else None
