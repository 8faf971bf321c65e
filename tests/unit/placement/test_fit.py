import pytest

from gpuloom.model.gpu import GpuHealth
from gpuloom.model.node import Delivery, NodeMode
from gpuloom.model.request import Authority, PodRequest, TopologyPreference
from gpuloom.placement.devices import GpuView, HostCapacity, NodeView
from gpuloom.placement.fit import Fit, Refusal, fit, host_refusal, share_memory_mib
from tests.unit.placement.builders import (
    a_card,
    a_cut_card,
    a_node,
    a_shaped_node,
    a_share,
    a_slice,
    whole,
)

NVLINK, NUMA, PCIE = TopologyPreference.NVLINK, TopologyPreference.NUMA, TopologyPreference.PCIE


def with_runtime_class(request: PodRequest, name: str, *, exact: bool = True) -> PodRequest:
    return PodRequest(request.gpu, request.container, runtime_class=name, sees_only_its_allocation=exact)


def test_fully_free_cards_can_serve_a_whole_request() -> None:
    node = a_node(a_card(0), a_card(1, 999), a_card(2), a_card(3, 1000, free_memory_mib=10), a_card(4))

    outcome = fit(whole(2), node)

    assert outcome == Fit(0b10101)
    assert isinstance(outcome, Fit)
    assert outcome.positions == (0, 2, 4)


def test_a_share_fits_where_both_share_and_memory_are_free() -> None:
    node = a_node(a_card(0, 400), a_card(1, 300), a_card(2, 700, free_memory_mib=100), a_card(3))

    assert fit(a_share(400), node) == Fit(0b1001)


def test_as_many_shares_as_make_a_card_have_memory_for_all_of_them() -> None:
    gpu = a_card().gpu

    for milli in range(1, 1000):
        assert 1000 // milli * share_memory_mib(a_share(milli).gpu, gpu) <= gpu.memory_mib


def test_a_mig_slice_fits_where_an_instance_of_its_profile_is_free() -> None:
    node = a_node(
        a_card(0),
        a_cut_card(1, ("1g.5gb", 0), ("3g.20gb", 4), used=1),
        a_cut_card(2, ("1g.5gb", 0), ("1g.5gb", 1)),
    )

    assert fit(a_slice("1g.5gb", milli=125), node) == Fit(0b100)
    assert fit(a_slice("3g.20gb", milli=500), node) == Fit(0b010)


def test_nvidias_slices_fit_on_nvidia_nodes_by_count() -> None:
    node = a_node(
        a_cut_card(0, ("1g.5gb", 0)),
        a_cut_card(1, ("1g.5gb", 0), ("1g.5gb", 1)),
        mode=NodeMode.NVIDIA,
        delivery=Delivery.DEVICE_PLUGIN,
    )

    assert fit(a_slice("1g.5gb", 3, authority=Authority.NVIDIA), node) == Fit(0b11)
    assert isinstance(fit(a_slice("1g.5gb", 4, authority=Authority.NVIDIA), node), Refusal)


OPEN = with_runtime_class(whole(), "nvidia", exact=False)
UNHEALTHY = a_card(1, health=GpuHealth.UNHEALTHY)
CLOSED = a_card(1, closed_reason="two owners")
REFUSED = [
    (whole(), a_node(a_card(), closed_reason="agent silent"), "node closed: agent silent", False),
    (whole(), a_node(a_card(), mode=NodeMode.UNKNOWN), "not known who gives out", False),
    (whole(), a_node(a_card(), mode=NodeMode.NVIDIA), "the pod asks for gpuloom.dev", False),
    (whole(authority=Authority.NVIDIA), a_node(a_card()), "the pod asks for nvidia.com", False),
    (whole(), a_node(a_card(), delivery=Delivery.NONE), "cannot hand chosen GPUs", False),
    (whole(), a_node(a_card(), delivery=Delivery.UNKNOWN), "cannot hand chosen GPUs", False),
    (whole(), a_node(a_card(), delivery=Delivery.ENV), "the pod needs runtimeClassName nvidia", False),
    (OPEN, a_node(a_card(), delivery=Delivery.ENV), "must set NVIDIA_VISIBLE_DEVICES", False),
    (OPEN, a_node(a_card(), delivery=Delivery.NRI), "an image could take every GPU", False),
    (whole(), a_node(), "node has fewer than 1 GPUs outside MIG mode", False),
    (whole(2), a_node(a_card(0)), "node has fewer than 2 GPUs outside MIG mode", False),
    (whole(), a_node(a_cut_card(0, ("1g.5gb", 0))), "node has fewer than 1 GPUs outside MIG mode", False),
    (whole(models=("T4",)), a_node(a_card()), "fewer than 1 GPUs of model T4", False),
    (whole(architectures=("hopper", "ada")), a_node(a_card()), "of architecture hopper or ada", False),
    (whole(memory_mib=50_000), a_node(a_card()), "with 50000 MiB", False),
    (whole(2), a_node(a_card(0), UNHEALTHY), "too few usable GPUs: unhealthy GPUs", False),
    (whole(2), a_node(a_card(0), CLOSED), "too few usable GPUs: two owners", False),
    (whole(), a_node(a_card(health=GpuHealth.UNKNOWN)), "GPUs of unknown health", False),
    (whole(), a_node(a_card(health=GpuHealth.LOST)), "GPUs that no longer answer", False),
    (whole(2), a_node(a_card(0), a_card(1, 500)), "not enough free GPUs: 2 asked", True),
    (a_share(500), a_node(a_card(0, 400)), "no GPU with 500 milli free", True),
    (a_share(100, 9000), a_node(a_card(0, 900, 8000)), "no GPU with 100 milli and 9000 MiB free", True),
    (
        a_share(100, 90_000),
        a_node(a_card(0)),
        "node has no GPU with 90000 MiB outside MIG mode for shares of 100 milli",
        False,
    ),
    (a_share(100), a_node(a_cut_card(0)), "node has no GPU outside MIG mode for shares of 100 milli", False),
    (a_slice("1g.5gb"), a_node(a_card(0)), "node has fewer than 1 MIG slices 1g.5gb", False),
    (a_slice("1g.10gb", milli=125), a_node(a_cut_card(0, ("1g.10gb", 0))), "fewer than 1 MIG slices", False),
    (
        a_slice("1g.5gb", milli=125),
        a_node(a_cut_card(0, ("1g.5gb", 0), used=1)),
        "not enough free MIG slices 1g.5gb: 1 asked",
        True,
    ),
    (
        a_slice("1g.5gb", milli=125),
        a_node(a_cut_card(0, ("1g.5gb", 0), closed_reason="layout is changing")),
        "too few usable GPUs: layout is changing",
        False,
    ),
    (whole(2, topology=NVLINK, required=True), a_shaped_node("dgx-1v", 0b100001), "have NVLink", True),
    (whole(5, topology=NVLINK, required=True), a_shaped_node("dgx-1v", 0xFF), "no 5 free GPUs", False),
    (whole(2, topology=NUMA, required=True), a_shaped_node("pcie-8-far", 0b10001), "one NUMA node", True),
    (whole(4, topology=PCIE, required=True), a_shaped_node("dgx-1v", 0xFF), "one PCIe switch", False),
]


@pytest.mark.parametrize(("request_", "node", "told", "resolvable"), REFUSED)
def test_a_refusal_says_why_and_whether_evictions_could_help(
    request_: PodRequest, node: NodeView, told: str, resolvable: bool
) -> None:
    outcome = fit(request_, node)

    assert isinstance(outcome, Refusal)
    assert told in outcome.reason
    assert outcome.resolvable is resolvable


def test_refusals_name_no_node_and_no_device() -> None:
    for request, node, _, _ in REFUSED:
        outcome = fit(request, node)
        assert isinstance(outcome, Refusal)
        assert "GPU-" not in outcome.reason
        assert "uid-node" not in outcome.reason


def test_a_refusal_is_short_however_many_models_a_pod_would_take() -> None:
    outcome = fit(whole(models=tuple(f"{number:0128}" for number in range(32))), a_node(a_card()))

    assert isinstance(outcome, Refusal)
    assert len(outcome.reason) < 1536


def test_delivery_by_environment_needs_the_nvidia_runtime_class() -> None:
    node = a_node(a_card(), delivery=Delivery.ENV)

    assert fit(with_runtime_class(whole(), "nvidia"), node) == Fit(1)


def test_nvidias_resources_need_no_delivery_of_ours() -> None:
    node = a_node(a_card(), mode=NodeMode.NVIDIA, delivery=Delivery.DEVICE_PLUGIN)

    assert fit(whole(authority=Authority.NVIDIA), node) == Fit(1)


def test_a_required_topology_is_no_matter_for_one_gpu() -> None:
    assert fit(whole(1, topology=NVLINK, required=True), a_node(a_card())) == Fit(1)


def test_gpus_out_of_index_order_count_as_not_linked() -> None:
    linked = a_shaped_node("nvlink-bridge-2", 0b11)
    swapped = a_node(*reversed(linked.gpus), topology=linked.topology)

    assert isinstance(fit(whole(2, topology=NVLINK, required=True), linked), Fit)
    assert isinstance(fit(whole(2, topology=NVLINK, required=True), swapped), Refusal)


def test_a_view_with_a_free_instance_that_does_not_exist_is_a_mistake() -> None:
    cut = a_cut_card(0, ("1g.5gb", 0))

    with pytest.raises(ValueError, match="not one of the GPU's instances"):
        GpuView(a_card().gpu, 0, 0, free_mig=cut.free_mig)


def test_the_reason_comes_from_a_gpu_that_would_have_served() -> None:
    unrelated = a_cut_card(0, ("3g.20gb", 0), closed_reason="unrelated")
    closed = a_cut_card(1, ("1g.5gb", 0), closed_reason="layout is changing")

    outcome = fit(a_slice("1g.5gb", milli=125), a_node(unrelated, closed))

    assert outcome == Refusal("too few usable GPUs: layout is changing", resolvable=False)


def test_cpu_and_memory_are_asked_for_apart() -> None:
    host = HostCapacity(8000, 2000, 100, 50)
    node = a_node(a_card(), host=host)

    def needing(cpu_milli: int, memory_bytes: int) -> PodRequest:
        return PodRequest(whole().gpu, "main", cpu_milli, memory_bytes)

    assert isinstance(fit(needing(9000, 0), node), Fit)
    assert host_refusal(needing(2000, 50), node) is None
    assert host_refusal(needing(3000, 50), node) == Refusal("not enough free CPU", resolvable=True)
    assert host_refusal(needing(2000, 101), node) == Refusal("not enough free memory", resolvable=False)
    assert host_refusal(needing(9000, 0), a_node(a_card())) is None
