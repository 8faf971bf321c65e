"""What the cluster can give, and what its policies say, for one pod."""

from collections.abc import Mapping, Sequence

from gpuloom.catalog import load_catalog
from gpuloom.catalog.entries import mig_resource
from gpuloom.model.node import Delivery, NodeMode, NodeState
from gpuloom.model.sharing import GpuSharingPolicy, SharingStrategy
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
    profiles = {
        profile.name
        for state in own
        for gpu in state.gpus
        for profile in load_catalog().mig_profiles(gpu.model)
    }
    by_environment = bool(own) and all(state.delivery is Delivery.ENV for state in own)
    return Offers(bool(own), frozenset(profiles), by_environment, plugged)


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
    replicas = policy.spec.replicas_per_gpu
    milli = 1000 // replicas if replicas and policy.spec.strategy is SharingStrategy.TIMESLICING else None
    mode = _MODES[policy.spec.strategy]
    return Surroundings(namespace_labels, offers, sharing_mode=mode, share_milli=milli)
