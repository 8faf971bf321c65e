"""Nodes as placement sees them: what closes them, and when a kept view is made anew."""

from dataclasses import replace

from gpuloom.model.node import HolderSource, NodeMode
from gpuloom.model.request import Authority, GpuRequest, PodRequest, RequestKind
from gpuloom.model.snapshot import ClosedGpu
from gpuloom.placement.devices import NodeView
from gpuloom.placement.fit import Fit, fit
from gpuloom.placement.occupancy.node_view import NO_FACTS, SLICE_GONE, STALE, host_capacity
from gpuloom.placement.occupancy.nominations import Asker, Nomination, Nominations
from gpuloom.placement.reasons import KEPT
from services.scheduler_extender.core.ledger.attempts import Attempt
from services.scheduler_extender.core.ledger.ledger import Ledger
from services.scheduler_extender.core.objects.pods import HostShare
from services.scheduler_extender.core.views.hosts import Hosts, HostTotals
from services.scheduler_extender.core.views.views import Views
from tests.unit.scheduler_extender.builders import (
    MEMORY_MIB,
    a_given_slice,
    a_gpu,
    a_holder,
    a_pod,
    a_ref,
    an_allocation,
    an_observed_pod,
    given,
    nvidia_cards,
    some_facts,
)

POD = a_ref("pod")
CARDS = (a_gpu("GPU-0", 0), a_gpu("GPU-1", 1))


class Sight:
    def __init__(self) -> None:
        self.stale = False
        self.ledger = Ledger(30.0)
        self.hosts = Hosts()
        self.nominations = Nominations()
        self.views = Views(self.ledger, self.hosts, lambda: self.stale, self.nominations)
        self.ledger.observe_node("node", "uid-node")

    def view(self, asker: Asker | str = "") -> NodeView:
        view = self.views.view("node", asker)
        assert view is not None
        return view

    def nominate(self, uid: str, cards: int = 1, priority: int = 0) -> None:
        request = PodRequest(GpuRequest(RequestKind.WHOLE, Authority.GPULOOM, cards), "main")
        self.nominations.note(uid, Nomination(Asker(uid, priority, nominated_node="node"), request))

    def free_cards(self, asker: Asker | str = "") -> int:
        return sum(gpu.untouched for gpu in self.view(asker).gpus)


def an_open_sight() -> Sight:
    sight = Sight()
    sight.ledger.observe_facts("uid-node", some_facts("node", *CARDS), 0.0)
    return sight


def test_a_share_that_gives_way_to_one_of_equal_milli_but_more_memory_leaves_less() -> None:
    sight, other = an_open_sight(), a_ref("other")
    small = Attempt(POD, "node", an_allocation(POD, given("GPU-0", 500, 1000)))
    large = Attempt(other, "node", an_allocation(other, given("GPU-0", 500, 9000)))
    sight.ledger.begin(small)
    before = sight.view().gpus[0]

    sight.ledger.refused(small)
    sight.ledger.begin(large)

    after = sight.view().gpus[0]
    assert before.free_milli == after.free_milli == 500
    assert (before.free_memory_mib, after.free_memory_mib) == (MEMORY_MIB - 1000, MEMORY_MIB - 9000)


def test_a_node_that_kubernetes_does_not_show_has_no_view() -> None:
    assert Sight().views.view("nowhere") is None


def test_a_node_without_facts_is_closed() -> None:
    assert Sight().view().closed_reason == NO_FACTS


def test_stale_facts_close_every_node_and_fresh_ones_open_it_again() -> None:
    sight = an_open_sight()
    reasons = []

    for sight.stale in (False, True, False):
        reasons.append(sight.view().closed_reason)

    assert reasons == ["", STALE, ""]


def test_untrusted_facts_close_the_node_with_their_reason() -> None:
    sight = an_open_sight()

    sight.ledger.observe_facts("uid-node", some_facts("node", *CARDS, untrusted="silent for long"), 1.0)

    assert sight.view().closed_reason == "silent for long"


def test_a_device_without_the_uuid_of_a_gpu_may_be_any_and_closes_the_node() -> None:
    sight = an_open_sight()
    shown = some_facts("node", *CARDS, holders=[a_holder(POD, "MIG-unknown", source=HolderSource.RUNTIME)])

    sight.ledger.observe_facts("uid-node", shown, 1.0)

    assert sight.view().closed_reason == "a pod on the node has a device that its agent does not show"


def test_a_bound_pod_without_a_record_closes_the_node_until_its_devices_are_shown() -> None:
    sight = Sight()
    sight.ledger.observe_facts("uid-node", some_facts("node", *CARDS, mode=NodeMode.NVIDIA), 0.0)
    sight.ledger.observe_pod(an_observed_pod(a_pod(POD, nvidia_cards(), node="node")), 0.0)

    before = sight.view().closed_reason
    held = some_facts("node", *CARDS, mode=NodeMode.NVIDIA, holders=[a_holder(POD, "GPU-1")])
    sight.ledger.observe_facts("uid-node", held, 1.0)

    assert before == "the devices of a GPU pod on the node are not known yet"
    assert sight.view().closed_reason == ""
    assert [gpu.untouched for gpu in sight.view().gpus] == [True, False]


def test_a_kept_view_is_given_again_until_something_about_its_node_changes() -> None:
    sight = an_open_sight()
    first = sight.view()

    again = sight.view()
    sight.ledger.begin(Attempt(POD, "node", an_allocation(POD, given("GPU-0", 300, 1000))))
    changed = sight.view()

    assert again is first
    assert (changed.gpus[0].free_milli, changed.gpus[0].free_memory_mib) == (700, MEMORY_MIB - 1000)


def test_new_facts_and_the_passing_of_time_change_a_kept_view() -> None:
    sight = an_open_sight()
    sight.ledger.begin(Attempt(POD, "node", an_allocation(POD, given("GPU-0"))))
    sight.ledger.observe_gone(POD.uid, 0.0)
    held = sight.view()

    sight.ledger.tick(30.0)
    freed = sight.view()
    sight.ledger.observe_facts("uid-node", some_facts("node", CARDS[0]), 31.0)

    assert (held.gpus[0].untouched, freed.gpus[0].untouched) == (False, True)
    assert len(sight.view().gpus) == 1


def test_what_a_pod_holds_by_its_own_attempt_is_free_for_it_alone() -> None:
    sight = an_open_sight()
    sight.ledger.begin(Attempt(POD, "node", an_allocation(POD, given("GPU-0"))))

    own, others = sight.view(POD.uid), sight.view("uid-other")

    assert [gpu.untouched for gpu in own.gpus] == [True, True]
    assert [gpu.untouched for gpu in others.gpus] == [False, True]


def test_what_a_pod_is_nominated_for_is_taken_for_those_below_and_free_for_itself() -> None:
    sight = an_open_sight()
    everybody = sight.view()

    sight.nominate("uid-urgent", priority=5)

    askers = (Asker("uid-other"), Asker("uid-equal", 5), Asker("uid-above", 6), "uid-urgent", "uid-other")
    assert [sight.free_cards(asker) for asker in askers] == [1, 1, 2, 2, 1]
    assert sight.view() is everybody


def test_a_nominated_pod_whose_bind_is_under_way_counts_once() -> None:
    sight = an_open_sight()
    sight.nominate(POD.uid)

    sight.ledger.begin(Attempt(POD, "node", an_allocation(POD, given("GPU-0"))))

    assert sight.free_cards("uid-other") == 1


def test_a_nominated_pod_that_waits_for_room_keeps_all_that_is_free() -> None:
    sight = an_open_sight()
    sight.ledger.begin(Attempt(POD, "node", an_allocation(POD, given("GPU-0"))))

    sight.nominate("uid-urgent", cards=2)

    assert sight.view(Asker("uid-other")).closed_reason == KEPT
    assert sight.view(Asker("uid-above", 1)).closed_reason == ""


def test_a_pod_with_a_bind_under_way_sees_its_own_devices_beside_a_nominated_pod() -> None:
    sight = an_open_sight()
    sight.ledger.begin(Attempt(POD, "node", an_allocation(POD, given("GPU-0"))))

    sight.nominate("uid-urgent")

    assert (sight.free_cards(POD.uid), sight.free_cards("uid-other")) == (1, 0)


def test_a_nominated_pod_with_a_bind_under_way_elsewhere_is_promised_nothing_meanwhile() -> None:
    sight, urgent = an_open_sight(), a_ref("urgent")
    attempt = Attempt(urgent, "elsewhere", an_allocation(urgent, given("GPU-9"), node_uid="uid-elsewhere"))
    sight.nominate(urgent.uid, priority=5)

    def own() -> list[str]:
        return [view.name for view in sight.views.viewer(Asker("uid-other")).own_views()]

    before = own()
    sight.ledger.begin(attempt)
    meanwhile = own()
    sight.ledger.refused(attempt)

    assert (before, meanwhile, own()) == (["node"], [], ["node"])


def test_a_viewer_has_its_own_views_only_where_nominated_pods_come_first() -> None:
    sight = an_open_sight()
    before = sight.views.viewer("uid-other").own_views()

    sight.nominate("uid-urgent", priority=5)
    own = [sight.views.viewer(asker).own_views() for asker in (Asker("uid-other"), Asker("uid-above", 6))]

    assert not before
    assert [[view.name for view in views] for views in own] == [["node"], []]


def test_taken_slices_are_not_free_and_a_card_given_whole_has_no_free_slice() -> None:
    sight = Sight()
    cut = a_gpu("GPU-0", 0, slices=[("3g.20gb", 0), ("3g.20gb", 4)])
    sight.ledger.observe_facts("uid-node", some_facts("node", cut), 0.0)

    sight.ledger.begin(Attempt(POD, "node", an_allocation(POD, a_given_slice("GPU-0", "3g.20gb", 0))))
    starts = [instance.placement.start for instance in sight.view().gpus[0].free_mig]
    sight.ledger.observe_facts(
        "uid-node", some_facts("node", cut, holders=[a_holder(a_ref("other"), "GPU-0")]), 1.0
    )

    assert starts == [4]
    assert sight.view().gpus[0].free_mig == ()
    assert sight.view().gpus[0].closed_reason


def test_a_slice_that_is_claimed_but_not_there_closes_its_card() -> None:
    sight = an_open_sight()

    sight.ledger.begin(Attempt(POD, "node", an_allocation(POD, a_given_slice("GPU-0", "3g.20gb", 0))))

    assert [gpu.closed_reason for gpu in sight.view().gpus] == [SLICE_GONE, ""]


def test_a_gpu_that_discovery_closes_is_not_used_and_the_others_are() -> None:
    sight = Sight()
    facts = replace(some_facts("node", *CARDS), closed_gpus=(ClosedGpu("GPU-0", "a GPU has two owners"),))

    sight.ledger.observe_facts("uid-node", facts, 0.0)
    view = sight.view()

    assert view.closed_reason == ""
    assert [gpu.unusable_reason for gpu in view.gpus] == ["a GPU has two owners", ""]
    assert fit(PodRequest(GpuRequest(RequestKind.WHOLE, Authority.GPULOOM), "main"), view) == Fit(0b10)


def test_a_slice_with_a_fault_is_not_free_and_its_neighbour_is() -> None:
    sight, card = Sight(), a_gpu("GPU-0", slices=[("1g.5gb", 0), ("1g.5gb", 1)])
    faulty, sound = replace(card.mig_instances[0], fault="XID 95"), card.mig_instances[1]

    cut = replace(card, mig_instances=(faulty, sound))
    sight.ledger.observe_facts("uid-node", some_facts("node", cut), 0.0)

    assert sight.view().gpus[0].free_mig == (sound,)


def test_the_view_carries_mode_and_host_capacity() -> None:
    sight = Sight()
    sight.hosts.set_totals("node", HostTotals(8000, 1000))
    sight.hosts.set_share("uid-a", HostShare("node", 3000, 100))
    sight.hosts.set_share("uid-a", HostShare("node", 2000, 100))
    sight.ledger.observe_facts("uid-node", some_facts("node", *CARDS, mode=NodeMode.NVIDIA), 0.0)

    view = sight.view()

    assert view.mode is NodeMode.NVIDIA
    assert view.host is not None
    assert (view.host.cpu_free_milli, view.host.memory_free_bytes) == (6000, 900)


def test_a_bind_under_way_counts_on_the_host_once_though_its_pod_is_there_or_elsewhere_already() -> None:
    free_milli = []
    for share in (None, HostShare("node", 3000, 100), HostShare("elsewhere", 3000, 100)):
        sight = an_open_sight()
        sight.hosts.set_totals("node", HostTotals(8000, 1000))
        sight.hosts.set_share(POD.uid, share)
        sight.ledger.begin(Attempt(POD, "node", an_allocation(POD, given("GPU-0")), 1000, 100))
        host = sight.view().host
        free_milli.append(None if host is None else host.cpu_free_milli)

    assert free_milli == [7000, 5000, 7000]


def test_binds_of_one_pod_to_two_machines_of_one_name_count_on_the_host_once() -> None:
    sight = an_open_sight()
    sight.hosts.set_totals("node", HostTotals(8000, 1000))
    sight.ledger.begin(Attempt(POD, "node", an_allocation(POD, given("GPU-0")), 3000, 100))
    sight.ledger.observe_node("node", "uid-new")
    sight.ledger.observe_facts("uid-new", some_facts("node", *CARDS, uid="uid-new"), 0.0)

    again = an_allocation(POD, given("GPU-0"), node_uid="uid-new")
    sight.ledger.begin(Attempt(POD, "node", again, 3000, 100))

    host = sight.view().host
    assert host is not None
    assert (host.cpu_free_milli, host.memory_free_bytes) == (5000, 900)


def test_more_binds_than_a_host_has_room_for_leave_nothing_of_it() -> None:
    sight = an_open_sight()
    sight.hosts.set_totals("node", HostTotals(8000, 1000))

    sight.ledger.begin(Attempt(POD, "node", an_allocation(POD, given("GPU-0")), 9000, 2000))

    host = sight.view().host
    assert host is not None
    assert (host.cpu_free_milli, host.memory_free_bytes) == (0, 0)


def test_a_pod_that_moves_or_goes_gives_its_cpu_back() -> None:
    hosts = Hosts()
    hosts.set_totals("node", HostTotals(8000, 1000))
    came = hosts.set_share("uid-a", HostShare("node", 3000, 100))

    unchanged = hosts.set_share("uid-a", HostShare("node", 3000, 100))
    left = hosts.set_share("uid-a", None)

    capacity = host_capacity(hosts.account("node"))
    assert (came, unchanged, left) == ({"node"}, set(), {"node"})
    assert capacity is not None
    assert capacity.cpu_free_milli == 8000
