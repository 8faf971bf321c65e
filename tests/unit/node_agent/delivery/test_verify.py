"""A container gets devices only by an allocation that is plainly its own and fits what others have."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.codec.allocation import encode_allocation
from gpuloom.errors import NotAllowedError
from gpuloom.model.allocation import Allocation
from gpuloom.model.gpu import MILLI_PER_GPU, GpuHealth
from gpuloom.model.mig import MigInstance, MigPlacement
from gpuloom.model.node import HolderSource
from services.node_agent.delivery.core.comparison import Requested
from services.node_agent.delivery.core.verify import (
    Delivered,
    NodeFacts,
    device_names,
    given_by_others,
    verify,
)
from tests.unit.node_agent.builders import a_holder
from tests.unit.node_agent.delivery.builders import (
    MEMORY_MIB,
    a_cut_gpu,
    a_device,
    a_gpu,
    a_slice,
    an_allocation,
    asking,
    delivered,
    facts,
)


def test_an_allocation_for_this_container_is_delivered() -> None:
    allocation = an_allocation(a_device("GPU-b"), a_slice())

    found = verify(asking(allocation), facts(), [])

    assert found == allocation
    assert device_names(allocation, facts().gpus) == ("GPU-b", "MIG-0")


def test_a_pod_without_an_allocation_gets_nothing() -> None:
    assert verify(asking(None), facts(), []) is None


def test_a_container_that_the_allocation_does_not_name_gets_nothing() -> None:
    assert verify(asking(an_allocation(), container="side"), facts(), []) is None


@pytest.mark.parametrize(
    ("allocation", "reason"),
    [
        ("{", "can't be read"),
        (an_allocation(pod_uid="uid-other"), "names another pod"),
        (an_allocation(node_uid="uid-elsewhere"), "names another node"),
        (an_allocation(advisory=True), "advisory"),
        (an_allocation(a_device("GPU-x")), "no GPU GPU-x"),
        (an_allocation(a_device("GPU-m")), "cut into MIG instances"),
        (an_allocation(a_slice(start=4)), "no MIG instance 1g.5gb at 4"),
        (an_allocation(a_slice("GPU-a")), "no MIG instance"),
        (an_allocation(a_device(milli=900, memory_mib=50_000)), "has 40960 MiB, not 50000"),
    ],
)
def test_a_forged_allocation_is_refused_with_its_reason(allocation: Allocation | str, reason: str) -> None:
    with pytest.raises(NotAllowedError, match=reason):
        verify(asking(allocation), facts(), [])


def test_a_forged_allocation_stops_every_container_of_its_pod() -> None:
    copied = an_allocation(pod_uid="uid-other")

    with pytest.raises(NotAllowedError, match="another pod"):
        verify(asking(copied, container="side"), facts(), [])


def test_nothing_is_delivered_while_the_node_does_not_know_itself() -> None:
    with pytest.raises(NotAllowedError, match="not known yet"):
        verify(asking(an_allocation()), NodeFacts("", facts().gpus), [])


def test_nothing_is_delivered_before_the_first_look_at_the_cards() -> None:
    with pytest.raises(NotAllowedError, match="not known yet"):
        verify(asking(an_allocation()), NodeFacts(facts().node_uid, ()), [])


@pytest.mark.parametrize(
    ("health", "told"),
    [
        (
            GpuHealth.UNHEALTHY,
            "is unhealthy: XID 48, uncorrectable.*delete the pod, so that it is placed anew",
        ),
        (GpuHealth.LOST, "is lost: XID 48, uncorrectable.*delete the pod, so that it is placed anew"),
    ],
)
@pytest.mark.parametrize("held", [[], [delivered("train")]])
def test_a_gpu_that_is_broken_is_not_delivered_also_not_again(
    health: GpuHealth, told: str, held: list[Delivered]
) -> None:
    gpu = a_gpu(health=health, health_reason="XID 48, uncorrectable memory error")

    with pytest.raises(NotAllowedError, match=told):
        verify(asking(an_allocation()), facts(gpu, a_gpu("GPU-b", 1)), held)
    assert verify(asking(an_allocation(a_device("GPU-b"))), facts(gpu, a_gpu("GPU-b", 1)), []) is not None


@given(st.sampled_from(GpuHealth), st.booleans())
def test_only_what_is_known_to_be_broken_is_kept_back(health: GpuHealth, faulty: bool) -> None:
    cut = a_cut_gpu()
    instance = replace(cut.mig_instances[0], fault="XID 48" if faulty else "")
    gpus = (a_gpu(health=health), replace(cut, health=health, mig_instances=(instance,)))
    usable = health in (GpuHealth.HEALTHY, GpuHealth.UNKNOWN)

    for device, expected in ((a_device(), usable), (a_slice(), usable and not faulty)):
        try:
            found = verify(asking(an_allocation(device)), facts(*gpus), []) is not None
        except NotAllowedError:
            found = False
        assert found is expected


def test_a_faulty_mig_instance_is_refused_and_its_neighbour_is_not() -> None:
    sound = MigInstance(MigPlacement(1, "1g.5gb"), 1, 4864, "MIG-1")
    faulty = MigInstance(MigPlacement(0, "1g.5gb"), 1, 4864, "MIG-0", fault="XID 48, uncorrectable")
    cut = replace(a_cut_gpu(), mig_instances=(faulty, sound))

    with pytest.raises(
        NotAllowedError, match=r"1g\.5gb at 0 of GPU GPU-m is unhealthy: XID 48.*delete the pod"
    ):
        verify(asking(an_allocation(a_slice())), facts(cut), [])
    assert verify(asking(an_allocation(a_slice(start=1))), facts(cut), []) is not None


def test_the_container_must_be_the_one_that_asks_by_the_spec() -> None:
    other, asks = an_allocation(container="side"), Requested("main", 1000)

    known = verify(asking(an_allocation(), requested=asks), facts(), [])
    for container in ("main", "side", "init"):
        with pytest.raises(NotAllowedError, match="for container side, but main asks for GPUs"):
            verify(asking(other, container=container, requested=asks), facts(), [])
    unknown = verify(asking(other, container="side"), facts(), [])

    assert known == an_allocation()
    assert unknown == other


@pytest.mark.parametrize("container", ["main", "side"])
def test_an_allocation_of_more_than_the_pod_asks_for_stops_every_container_of_it(container: str) -> None:
    small = Requested("main", 100)

    with pytest.raises(NotAllowedError, match="gives 1000 milli, but container main asks for 100 milli"):
        verify(asking(an_allocation(), container=container, requested=small), facts(), [])


def test_shares_beyond_a_whole_card_are_refused() -> None:
    others = [delivered("one", a_device(milli=400)), delivered("two", a_device(milli=300))]

    fits = verify(asking(an_allocation(a_device(milli=300))), facts(), others)
    with pytest.raises(NotAllowedError, match="not 1001 beside pods team-a/one, team-a/two"):
        verify(asking(an_allocation(a_device(milli=301))), facts(), others)

    assert fits is not None


@pytest.mark.parametrize("source", [HolderSource.KUBELET, HolderSource.CLAIM])
def test_what_somebody_else_gave_out_is_refused(source: HolderSource) -> None:
    """NVIDIA's device plugin, before the node changed its mode, or a DRA driver."""
    holders = (a_holder("old", "GPU-a", source=source), a_holder("ours", "GPU-b"))
    known = replace(facts(), given_by_others=given_by_others(holders))

    with pytest.raises(NotAllowedError, match="beside pods team-a/old"):
        verify(asking(an_allocation(a_device("GPU-a", 500))), known, ())

    assert verify(asking(an_allocation(a_device("GPU-b", 500))), known, ()) is not None


def test_memory_beyond_the_card_is_refused() -> None:
    others = [delivered("one", a_device(milli=100, memory_mib=30_000))]

    with pytest.raises(NotAllowedError, match="has 40960 MiB, not 46000"):
        verify(asking(an_allocation(a_device(milli=100, memory_mib=16_000))), facts(), others)


@pytest.mark.parametrize("shrunk_mib", [1, 424, MEMORY_MIB // 16])
def test_what_was_given_before_the_cards_memory_shrank_starts_again(shrunk_mib: int) -> None:
    now = facts(a_gpu(memory_mib=MEMORY_MIB - shrunk_mib))
    whole = an_allocation(a_device())
    halves = [a_device(milli=500), a_device(milli=500)]
    uneven = [a_device(milli=200, memory_mib=30_960), a_device(milli=200, memory_mib=10_000)]

    for card in (now, facts(a_gpu(memory_mib=MEMORY_MIB // 2))):
        assert verify(asking(whole, requested=Requested("main", 1000, 40_000)), card, []) == whole
    for mine, other in (halves, uneven):
        requested = Requested("main", mine.milli, None if mine.milli == 500 else mine.memory_mib)
        asked = asking(an_allocation(mine), requested=requested)
        assert verify(asked, now, [delivered("other", other)]) == an_allocation(mine)


def test_a_mig_instance_has_one_owner() -> None:
    with pytest.raises(NotAllowedError, match="held by pod team-a/one"):
        verify(asking(an_allocation(a_slice())), facts(), [delivered("one", a_slice())])


def test_a_card_is_not_given_as_a_whole_and_in_slices_at_once() -> None:
    with pytest.raises(NotAllowedError, match="in use as a whole by pod team-a/one"):
        verify(asking(an_allocation(a_slice())), facts(), [delivered("one", a_device("GPU-m"))])
    with pytest.raises(NotAllowedError, match="in use in MIG instances by pod team-a/one"):
        verify(asking(an_allocation()), facts(), [delivered("one", a_slice("GPU-a"))])


def test_a_container_that_restarts_is_not_in_its_own_way() -> None:
    assert verify(asking(an_allocation()), facts(), [delivered("train")]) is not None


def test_a_slice_without_a_uuid_can_not_be_named() -> None:
    cut = a_cut_gpu()
    nameless = a_gpu(
        "GPU-m",
        mig_enabled=True,
        mig_instances=(type(cut.mig_instances[0])(cut.mig_instances[0].placement, 1, 4864),),
    )

    with pytest.raises(NotAllowedError, match="does not say the UUID"):
        device_names(an_allocation(a_slice()), [nameless])


@given(st.text(max_size=200))
def test_whatever_the_annotation_holds_the_answer_is_a_refusal(text: str) -> None:
    with pytest.raises(NotAllowedError):
        verify(asking(text), facts(), [])


@given(st.lists(st.integers(1, MILLI_PER_GPU), max_size=12))
def test_a_card_is_never_given_beyond_its_capacity(wanted: list[int]) -> None:
    held: list[Delivered] = []
    for number, milli in enumerate(wanted):
        allocation = an_allocation(a_device(milli=milli), pod=f"p{number}")
        try:
            verify(asking(encode_allocation(allocation), pod=f"p{number}"), facts(), held)
        except NotAllowedError:
            continue
        held.append(delivered(f"p{number}", *allocation.devices))

    assert sum(device.milli for entry in held for device in entry.devices) <= MILLI_PER_GPU
