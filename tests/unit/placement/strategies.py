"""Random nodes and requests, small enough to collide often."""

from dataclasses import replace

from hypothesis import strategies as st

from gpuloom.model.gpu import GpuHealth, SharingMode
from gpuloom.model.node import Delivery, NodeMode
from gpuloom.model.request import Authority, GpuRequest, PodRequest, RequestKind, TopologyPreference
from gpuloom.model.topology import PcieLevel, Topology, pair_count
from gpuloom.placement.devices import GpuView, HostCapacity, NodeView
from tests.unit.placement.builders import MEMORY_MIB, a_card, a_cut_card, a_node

LAYOUTS: list[tuple[tuple[str, int], ...]] = [
    (),
    (("1g.5gb", 0), ("1g.5gb", 1), ("1g.10gb", 2), ("3g.20gb", 4)),
    (("3g.20gb", 0), ("1g.5gb", 4), ("1g.5gb", 6)),
]
RUNTIME_CLASSES = st.sampled_from(["nvidia", None, None])
TOPOLOGIES = st.sampled_from(list(TopologyPreference))


@st.composite
def gpus(draw: st.DrawFn, index: int) -> GpuView:
    closed = draw(st.sampled_from(["", "", "", "", "closed for a test"]))
    if draw(st.integers(0, 3)) == 0:
        layout = draw(st.sampled_from(LAYOUTS))
        return a_cut_card(index, *layout, used=draw(st.integers(0, len(layout))), closed_reason=closed)
    free = draw(st.sampled_from([0, 100, 250, 500, 750, 1000, 1000, 1000]))
    card = a_card(
        index,
        free,
        MEMORY_MIB if free == 1000 else draw(st.integers(0, MEMORY_MIB)),
        model=draw(st.sampled_from(["A100-SXM4-40GB", "T4"])),
        health=draw(st.sampled_from([GpuHealth.HEALTHY] * 4 + [GpuHealth.UNHEALTHY])),
        closed_reason=closed,
        numa=draw(st.sampled_from([None, 0, 1])),
    )
    sharing = draw(st.sampled_from([SharingMode.NONE, SharingMode.NONE, SharingMode.MPS]))
    least_milli = draw(st.sampled_from([0, 0, 0, 250]))
    return replace(card, gpu=replace(card.gpu, sharing=sharing, least_milli=least_milli))


@st.composite
def nodes(draw: st.DrawFn, name: str = "node") -> NodeView:
    count = draw(st.integers(0, 8))
    pairs = pair_count(count)
    levels = draw(st.lists(st.sampled_from(list(PcieLevel)), min_size=pairs, max_size=pairs))
    links = draw(st.lists(st.sampled_from([0, 2]), min_size=pairs, max_size=pairs))
    host = draw(st.none() | st.builds(HostCapacity, *(st.integers(0, 64_000) for _ in range(4))))
    return a_node(
        *(draw(gpus(i)) for i in range(count)),
        name=name,
        mode=draw(st.sampled_from([NodeMode.GPULOOM, NodeMode.GPULOOM, NodeMode.NVIDIA])),
        delivery=draw(st.sampled_from([Delivery.NRI, Delivery.NRI, Delivery.ENV])),
        topology=Topology(count, tuple(levels), tuple(links)),
        host=host,
    )


@st.composite
def clusters(draw: st.DrawFn, max_nodes: int = 6) -> tuple[NodeView, ...]:
    """Nodes with different names; some are closed, some of an unknown mode, some have equal shapes."""
    found: list[NodeView] = []
    for number in range(draw(st.integers(0, max_nodes))):
        node = draw(nodes(f"n{number}"))
        if found and draw(st.integers(0, 3)) == 0:
            node = replace(draw(st.sampled_from(found)), name=f"n{number}", uid=f"uid-n{number}")
        if draw(st.integers(0, 9)) == 0:
            node = replace(node, closed_reason=draw(st.sampled_from(["no facts", "held"])))
        if draw(st.integers(0, 9)) == 0:
            node = replace(node, mode=NodeMode.UNKNOWN, delivery=draw(st.sampled_from(list(Delivery))))
        found.append(node)
    order = draw(st.permutations(found))
    return tuple(order)


@st.composite
def requests(draw: st.DrawFn) -> PodRequest:
    kind = draw(st.sampled_from(list(RequestKind)))
    authority = draw(st.sampled_from(list(Authority)))
    models = draw(st.sampled_from([(), (), ("A100-SXM4-40GB",), ("T4",)]))
    architectures = draw(st.sampled_from([(), (), (), ("ampere",), ("turing", "hopper")]))
    if kind is RequestKind.MIG:
        profile, milli = draw(st.sampled_from([("1g.5gb", 125), ("1g.10gb", 250), ("3g.20gb", 500)]))
        count = 1 if authority is Authority.GPULOOM else draw(st.integers(1, 4))
        gpu = GpuRequest(
            kind, authority, count, milli, mig_profile=profile, models=models, architectures=architectures
        )
    elif kind is RequestKind.SHARE:
        memory = draw(st.none() | st.integers(1, MEMORY_MIB))
        gpu = GpuRequest(
            kind,
            Authority.GPULOOM,
            1,
            draw(st.integers(1, 999)),
            memory,
            models=models,
            architectures=architectures,
            enforced=draw(st.sampled_from([False, False, True])),
        )
    else:
        topology = draw(TOPOLOGIES)
        required = topology is not TopologyPreference.NONE and draw(st.booleans())
        gpu = GpuRequest(
            kind,
            authority,
            draw(st.integers(1, 5)),
            memory_mib=draw(st.sampled_from([None, None, MEMORY_MIB, MEMORY_MIB + 1])),
            models=models,
            architectures=architectures,
            topology=topology,
            topology_required=required,
        )
    cpu_milli, memory_bytes = draw(st.integers(0, 9000)), draw(st.integers(0, 9000))
    return PodRequest(gpu, "main", cpu_milli, memory_bytes, draw(RUNTIME_CLASSES), draw(st.booleans()))
