"""Who holds what, by the kubelet's list, by names in Kubernetes, and by processes."""

from dataclasses import replace
from typing import Any

import pytest

from gpuloom.model.gpu import DeviceRef
from gpuloom.model.mig import MigPlacement
from gpuloom.model.node import Holder, HolderSource, PodRef
from services.node_agent.attribution.core.holders import Listing, kubelet_holders, process_holders
from services.node_agent.attribution.core.ownership import MPS_NAME, OwnedProcess, own
from services.node_agent.core.readings import Process
from services.node_agent.ports import NamedPod, PodDevices, PodNames, ProcessOwner
from tests.unit.node_agent.builders import FakeMachine, a_holder, a_process, pod_devices

TRAIN = PodRef("team-a", "train", "uid-train")
ALIVE: PodNames = {("team-a", "train"): NamedPod("uid-train")}
OVER: PodNames = {("team-a", "train"): NamedPod("uid-train", over=True)}
UNSURE: PodNames = {("team-a", "train"): NamedPod("")}
GIVEN = pod_devices("train", "GPU-a")
SLICE, NEXT_SLICE = MigPlacement(0, "3g.20gb"), MigPlacement(4, "3g.20gb")


def listing(*pods: PodDevices, before: PodNames = ALIVE, after: PodNames | None = None) -> Listing:
    return Listing(pods, before, before if after is None else after)


def owned(process: Process, uid: str = "uid-train", name: str = "python3", **machine: Any) -> OwnedProcess:
    """A process in the pod of this UID; of no pod if it is empty."""
    known = FakeMachine(**({"uids": {"train": "uid-train"}} | machine))
    (found,) = own([process], {process.pid: ProcessOwner(name, uid, "id-main")}, known)
    return found


def test_a_pod_that_can_not_be_identified_holds_its_devices_anyway() -> None:
    known, strange = kubelet_holders(listing(GIVEN, pod_devices("strange", "GPU-b")), ())

    assert known == Holder(TRAIN, "main", (DeviceRef("GPU-a"),), HolderSource.KUBELET)
    assert strange.pod == PodRef("team-a", "strange", "")
    assert strange.devices == (DeviceRef("GPU-b"),)


def test_how_many_replicas_of_a_gpu_were_given_is_told() -> None:
    (holder,) = kubelet_holders(listing(replace(GIVEN, given=2)), ())

    assert (holder.devices, holder.count) == ((DeviceRef("GPU-a"),), 2)


def test_a_container_without_devices_holds_nothing() -> None:
    assert kubelet_holders(listing(pod_devices("train")), ()) == ()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(ALIVE, {("team-a", "train"): NamedPod("uid-new")}, id="made anew while it was asked"),
        pytest.param({}, ALIVE, id="seen only after it was asked"),
        pytest.param(ALIVE, {}, id="gone when it answered"),
        pytest.param(UNSURE, UNSURE, id="not yet taken in"),
        pytest.param(UNSURE, ALIVE, id="taken in while it was asked"),
    ],
)
def test_a_name_that_may_mean_two_pods_means_none(before: PodNames, after: PodNames) -> None:
    (holder,) = kubelet_holders(listing(GIVEN, before=before, after=after), ())

    assert holder.pod == PodRef("team-a", "train", "")


def test_a_replaced_pod_still_listed_is_told_by_its_process() -> None:
    old = owned(a_process(7), "uid-old", gone={"uid-old": PodRef("team-a", "train", "uid-old")})

    (holder,) = kubelet_holders(listing(GIVEN, before=UNSURE), [old])

    assert holder.pod.uid == "uid-old"
    assert process_holders([old], [holder]) == ()


def test_a_process_of_another_name_or_device_tells_nothing() -> None:
    stranger = owned(a_process(7), "uid-x", gone={"uid-x": PodRef("team-a", "other", "uid-x")})
    elsewhere = owned(a_process(8, "GPU-b"))

    (holder,) = kubelet_holders(listing(GIVEN, before=UNSURE), [stranger, elsewhere])

    assert holder.pod.uid == ""


def test_a_pod_that_kubernetes_does_not_show_is_told_by_the_one_stranger_on_its_device() -> None:
    stranger = owned(a_process(7), "uid-x")

    (holder,) = kubelet_holders(listing(GIVEN, before={}), [stranger])
    shared = kubelet_holders(listing(GIVEN, pod_devices("other", "GPU-a"), before={}), [stranger])
    two = kubelet_holders(listing(GIVEN, before={}), [stranger, owned(a_process(8), "uid-y")])

    assert holder.pod == PodRef("team-a", "train", "uid-x")
    assert [each.pod.uid for each in (*shared, *two)] == ["", "", ""]


def test_processes_of_two_pods_of_one_name_tell_nothing() -> None:
    old = owned(a_process(7), "uid-old", gone={"uid-old": PodRef("team-a", "train", "uid-old")})

    (holder,) = kubelet_holders(listing(GIVEN, before=UNSURE), [old, owned(a_process(8))])

    assert holder.pod.uid == ""


def test_a_name_listed_twice_means_none_but_for_processes() -> None:
    entries = GIVEN, pod_devices("train", "GPU-b")

    unsure = kubelet_holders(listing(*entries), ())
    told = kubelet_holders(listing(*entries), [owned(a_process(7, "GPU-b"))])

    assert [holder.pod.uid for holder in unsure] == ["", ""]
    assert [holder.pod.uid for holder in told] == ["", "uid-train"]
    assert len(kubelet_holders(listing(*entries, before=OVER), ())) == 2


def test_a_completed_pod_that_an_old_kubelet_still_lists_holds_nothing() -> None:
    assert kubelet_holders(listing(GIVEN, before=OVER), ()) == ()


def test_a_completed_pod_of_which_a_process_runs_still_holds_its_devices() -> None:
    left = owned(a_process(7, "GPU-b"), uids={}, over={"train": "uid-train"})

    (holder,) = kubelet_holders(listing(GIVEN, before=OVER), [left])

    assert (holder.pod, holder.devices) == (TRAIN, (DeviceRef("GPU-a"),))


def test_a_pod_that_ended_while_the_kubelet_was_asked_still_holds_its_devices() -> None:
    new: PodNames = {("team-a", "train"): NamedPod("uid-new", over=True)}

    (holder,) = kubelet_holders(listing(GIVEN, before=ALIVE, after=new), ())

    assert holder.pod.uid == ""


def test_a_pod_on_its_own_device_is_one_holder() -> None:
    assert process_holders([owned(a_process(7))], [a_holder("train", "GPU-a")]) == ()


def test_a_pod_on_a_device_it_was_not_given_holds_that_too() -> None:
    processes = [owned(a_process(8, "GPU-b")), owned(a_process(7, "GPU-b"))]

    (holder,) = process_holders(processes, [a_holder("train", "GPU-a")])

    assert holder == Holder(TRAIN, "main", (DeviceRef("GPU-b"),), HolderSource.PROCESS, (7, 8))


def test_a_pod_that_is_gone_but_computes_holds_its_device_by_its_uid() -> None:
    (holder,) = process_holders([owned(a_process(7), "uid-gone")], ())

    assert (holder.pod, holder.pids) == (PodRef("", "", "uid-gone"), (7,))


def test_processes_of_no_pod_are_one_holder_on_each_device() -> None:
    processes = [owned(a_process(pid, uuid), "") for uuid in ("GPU-a", "GPU-b") for pid in (8, 7)]

    holders = process_holders(processes, [a_holder("train", "GPU-a")])

    assert [(holder.pod.uid, holder.devices, holder.pids) for holder in holders] == [
        ("", (DeviceRef("GPU-a"),), (7, 8)),
        ("", (DeviceRef("GPU-b"),), (7, 8)),
    ]


def test_a_process_that_has_ended_or_whose_owner_is_not_seen_holds_nothing() -> None:
    assert process_holders(own([a_process(7)], {}, FakeMachine()), ()) == ()


@pytest.mark.parametrize(
    ("computes_on", "given", "covered"),
    [
        (SLICE, SLICE, True),
        (SLICE, NEXT_SLICE, False),
        (None, SLICE, True),
        (SLICE, None, True),
    ],
)
def test_slices_are_compared_where_the_driver_tells_them(
    computes_on: MigPlacement | None, given: MigPlacement | None, covered: bool
) -> None:
    holder = replace(a_holder("train"), devices=(DeviceRef("GPU-a", given),))

    found = process_holders([owned(a_process(7, mig=computes_on))], [holder])

    assert (found == ()) is covered


def test_a_static_pod_is_the_same_by_hash_and_by_mirror() -> None:
    class Mirrored(FakeMachine):
        def pod_of(self, uid: str) -> PodRef | None:
            return TRAIN if uid == "hash" else None

    processes = own([a_process(7)], {7: ProcessOwner("python3", "hash")}, Mirrored())
    by_runtime = replace(a_holder("train"), pod=PodRef("team-a", "train", "hash"))

    assert process_holders(processes, [a_holder("train")]) == ()
    assert process_holders(processes, [by_runtime]) == ()


@pytest.mark.parametrize("uid", ["", "uid-train"])
def test_the_server_through_which_others_share_a_gpu_holds_nothing_itself(uid: str) -> None:
    assert process_holders([owned(a_process(7), uid, MPS_NAME)], ()) == ()


@pytest.mark.parametrize("uid", ["uid-done", "uid-gone"])
def test_the_server_of_a_pod_that_ended_still_has_the_gpu(uid: str) -> None:
    left = owned(a_process(7), uid, MPS_NAME, over={"done": "uid-done"})

    (holder,) = process_holders([left], ())

    assert holder.pod.uid == uid
