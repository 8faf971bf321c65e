"""Views and requests for placement tests: by keyword, with sensible rest."""

from gpuloom.catalog import load_catalog
from gpuloom.model.gpu import Gpu, GpuHealth
from gpuloom.model.mig import MigInstance, MigPlacement
from gpuloom.model.node import Delivery, NodeMode
from gpuloom.model.request import Authority, GpuRequest, PodRequest, RequestKind, TopologyPreference
from gpuloom.model.topology import Topology
from gpuloom.placement.devices import GpuView, HostCapacity, NodeView

MEMORY_MIB = 40_960


def a_card(
    index: int = 0,
    free_milli: int = 1000,
    free_memory_mib: int | None = None,
    *,
    model: str = "A100-SXM4-40GB",
    health: GpuHealth = GpuHealth.HEALTHY,
    closed_reason: str = "",
    numa: int | None = 0,
) -> GpuView:
    gpu = Gpu(
        uuid=f"GPU-{index}",
        index=index,
        model=model,
        architecture=load_catalog().gpu(model).architecture,
        memory_mib=MEMORY_MIB,
        health=health,
        numa_node=numa,
    )
    free_memory = MEMORY_MIB * free_milli // 1000 if free_memory_mib is None else free_memory_mib
    return GpuView(gpu, free_milli, free_memory, closed_reason=closed_reason)


def a_cut_card(index: int, *places: tuple[str, int], used: int = 0, closed_reason: str = "") -> GpuView:
    """An A100 in MIG mode with these (profile, start); the first `used` of them are taken."""
    profiles = {profile.name: profile for profile in load_catalog().mig_profiles("A100-SXM4-40GB")}
    instances = tuple(
        MigInstance(MigPlacement(start, name), profiles[name].memory_slices, profiles[name].memory_mib)
        for name, start in places
    )
    gpu = Gpu(
        uuid=f"GPU-{index}",
        index=index,
        model="A100-SXM4-40GB",
        architecture="ampere",
        memory_mib=MEMORY_MIB,
        health=GpuHealth.HEALTHY,
        mig_enabled=True,
        mig_instances=instances,
    )
    return GpuView(gpu, 0, 0, free_mig=instances[used:], mig_slices=8, closed_reason=closed_reason)


def a_node(
    *gpus: GpuView,
    name: str = "node",
    mode: NodeMode = NodeMode.GPULOOM,
    delivery: Delivery = Delivery.NRI,
    topology: Topology | None = None,
    closed_reason: str = "",
    host: HostCapacity | None = None,
) -> NodeView:
    return NodeView(name, f"uid-{name}", mode, delivery, gpus, topology, closed_reason, host)


def a_shaped_node(shape: str, free: int, name: str = "node") -> NodeView:
    """A node of the catalogue's shape where the GPUs of the mask are free."""
    links = load_catalog().shape(shape)
    cards = (a_card(i, 1000 * (free >> i & 1), numa=links.numa[i]) for i in range(links.topology.gpu_count))
    return a_node(*cards, name=name, topology=links.topology)


def whole(
    count: int = 1,
    *,
    authority: Authority = Authority.GPULOOM,
    topology: TopologyPreference = TopologyPreference.NONE,
    required: bool = False,
    models: tuple[str, ...] = (),
    architectures: tuple[str, ...] = (),
    memory_mib: int | None = None,
) -> PodRequest:
    return PodRequest(
        GpuRequest(
            RequestKind.WHOLE,
            authority,
            count=count,
            topology=topology,
            topology_required=required,
            models=models,
            architectures=architectures,
            memory_mib=memory_mib,
        ),
        container="main",
    )


def a_share(milli: int, memory_mib: int | None = None) -> PodRequest:
    return PodRequest(
        GpuRequest(RequestKind.SHARE, Authority.GPULOOM, milli=milli, memory_mib=memory_mib), container="main"
    )


def a_slice(
    profile: str, count: int = 1, milli: int = 1000, authority: Authority = Authority.GPULOOM
) -> PodRequest:
    return PodRequest(
        GpuRequest(RequestKind.MIG, authority, count=count, milli=milli, mig_profile=profile),
        container="main",
    )
