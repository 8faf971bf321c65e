from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuloom.model.allocation import AllocatedDevice
from gpuloom.model.gpu import DeviceRef, GpuHealth
from gpuloom.model.mig import MigPlacement
from gpuloom.model.node import NodeMode
from gpuloom.model.request import Authority, PodRequest, RequestKind, TopologyPreference
from gpuloom.placement.choose import choose_devices
from gpuloom.placement.devices import GpuView, NodeView
from gpuloom.placement.fit import Fit, Refusal, fit
from tests.effort import examples
from tests.unit.placement.builders import (
    MEMORY_MIB,
    a_card,
    a_cut_card,
    a_node,
    a_shaped_node,
    a_share,
    a_slice,
    whole,
)
from tests.unit.placement.strategies import nodes, requests


def chosen(request: PodRequest, node: NodeView) -> tuple[AllocatedDevice, ...]:
    outcome = choose_devices(request, node)
    assert not isinstance(outcome, Refusal), outcome
    return outcome


def names(request: PodRequest, node: NodeView) -> list[str]:
    return [device.device.gpu_uuid for device in chosen(request, node)]


def after(node: NodeView, devices: tuple[AllocatedDevice, ...]) -> NodeView:
    """The node once these devices are taken."""
    return replace(node, gpus=tuple(_taken_from(view, devices) for view in node.gpus))


def _taken_from(view: GpuView, devices: tuple[AllocatedDevice, ...]) -> GpuView:
    for taken in devices:
        if taken.device.gpu_uuid != view.gpu.uuid:
            continue
        if taken.device.mig is None:
            view = replace(
                view,
                free_milli=view.free_milli - taken.milli,
                free_memory_mib=view.free_memory_mib - taken.memory_mib,
            )
        else:
            left = tuple(free for free in view.free_mig if free.placement != taken.device.mig)
            assert len(left) == len(view.free_mig) - 1, "a taken instance was given again"
            view = replace(view, free_mig=left)
    return view


def test_whole_gpus_are_the_best_linked_ones() -> None:
    node = a_shaped_node("dgx-1v", 0b110101)

    devices = chosen(whole(2), node)

    assert devices == (
        AllocatedDevice(DeviceRef("GPU-0"), 1000, MEMORY_MIB),
        AllocatedDevice(DeviceRef("GPU-4"), 1000, MEMORY_MIB),
    )


def test_a_topology_wish_changes_the_choice() -> None:
    node = a_shaped_node("dgx-1v", 0b110101)

    assert names(whole(2, topology=TopologyPreference.NUMA), node) == ["GPU-4", "GPU-5"]
    assert names(whole(2, topology=TopologyPreference.NVLINK, required=True), node) == ["GPU-0", "GPU-4"]


def test_a_share_goes_to_the_fullest_card_that_still_fits() -> None:
    node = a_node(a_card(0), a_card(1, 600), a_card(2, 300), a_card(3, 100))

    assert names(a_share(200), node) == ["GPU-2"]
    assert names(a_share(100), node) == ["GPU-3"]
    assert names(a_share(700), node) == ["GPU-0"]


def test_a_share_gets_memory_in_proportion_unless_it_says_how_much() -> None:
    node = a_node(a_card(0))

    assert chosen(a_share(333), node) == (AllocatedDevice(DeviceRef("GPU-0"), 333, MEMORY_MIB * 333 // 1000),)
    assert chosen(a_share(333, 100), node) == (AllocatedDevice(DeviceRef("GPU-0"), 333, 100),)


def test_a_slice_comes_from_the_gpu_with_the_fewest_free_ones() -> None:
    node = a_node(
        a_cut_card(0, ("1g.5gb", 0), ("1g.5gb", 1), ("1g.5gb", 2)),
        a_cut_card(1, ("3g.20gb", 0), ("1g.5gb", 5), ("1g.5gb", 4), used=1),
    )

    devices = chosen(a_slice("1g.5gb", milli=125), node)

    assert devices == (AllocatedDevice(DeviceRef("GPU-1", MigPlacement(4, "1g.5gb")), 125, 4864),)


def test_a_slice_of_nvidias_plugin_is_accounted_at_what_it_stands_for() -> None:
    node = a_node(a_cut_card(0, ("3g.20gb", 4)), mode=NodeMode.NVIDIA)

    (device,) = chosen(a_slice("3g.20gb", authority=Authority.NVIDIA), node)

    assert device.milli == 500


@settings(max_examples=examples(100))
@given(requests(), nodes())
def test_choosing_succeeds_exactly_when_the_node_fits(request: PodRequest, node: NodeView) -> None:
    outcome, devices = fit(request, node), choose_devices(request, node)

    assert isinstance(outcome, Fit) == (not isinstance(devices, Refusal))
    if isinstance(outcome, Refusal):
        assert devices == outcome
    else:
        assert isinstance(devices, tuple)
        assert len(devices) == request.gpu.count
    assert choose_devices(request, node) == devices


@settings(max_examples=examples(100))
@given(requests(), nodes())
def test_only_usable_devices_of_the_right_kind_are_given(request: PodRequest, node: NodeView) -> None:
    devices = choose_devices(request, node)
    if isinstance(devices, Refusal):
        return

    assert len({device.device for device in devices}) == len(devices)
    for device in devices:
        (view,) = (view for view in node.gpus if view.gpu.uuid == device.device.gpu_uuid)
        assert view.gpu.health is GpuHealth.HEALTHY
        assert not view.closed_reason
        assert view.gpu.mig_enabled == (request.gpu.kind is RequestKind.MIG)
        assert not request.gpu.models or view.gpu.model in request.gpu.models
        if request.gpu.kind is RequestKind.WHOLE:
            assert (view.free_milli, view.free_memory_mib) == (1000, MEMORY_MIB)


@settings(max_examples=examples(150))
@given(nodes(), st.lists(requests(), max_size=12))
def test_placing_again_and_again_never_exceeds_a_card(node: NodeView, pods: list[PodRequest]) -> None:
    for request in pods:
        devices = choose_devices(request, node)
        if not isinstance(devices, Refusal):
            node = after(node, devices)

        assert all(view.free_milli >= 0 and view.free_memory_mib >= 0 for view in node.gpus)


@settings(max_examples=examples(100))
@given(requests(), nodes(), st.data())
def test_freeing_capacity_never_takes_a_fit_away(
    request: PodRequest, node: NodeView, data: st.DataObject
) -> None:
    def freed(view: GpuView) -> GpuView:
        if not data.draw(st.booleans()):
            return view
        if view.gpu.mig_enabled:
            return replace(view, free_mig=view.gpu.mig_instances)
        return replace(view, free_milli=1000, free_memory_mib=view.gpu.memory_mib, closed_reason="")

    if isinstance(fit(request, node), Fit):
        assert isinstance(fit(request, replace(node, gpus=tuple(freed(view) for view in node.gpus))), Fit)


@settings(max_examples=examples(100))
@given(requests(), nodes())
def test_evictions_help_exactly_when_the_refusal_says_so(request: PodRequest, node: NodeView) -> None:
    outcome = fit(request, node)
    emptied = tuple(
        replace(view, free_mig=view.gpu.mig_instances)
        if view.gpu.mig_enabled
        else replace(view, free_milli=1000, free_memory_mib=view.gpu.memory_mib)
        for view in node.gpus
    )

    if isinstance(outcome, Refusal):
        assert isinstance(fit(request, replace(node, gpus=emptied)), Fit) == outcome.resolvable
