"""Who is still on the node, though nobody lists it any more."""

from dataclasses import replace

import pytest

from gpuloom.model.node import Holder, HolderSource, NodeMode, PodPresence, PodRef
from services.node_agent.attribution.core.presence import checked, lingering_holders
from services.node_agent.ports import NamedPod, PodNames, ProcessOwner
from tests.unit.node_agent.builders import FakeMachine, a_holder, a_process, pod_devices, processes_on
from tests.unit.node_agent.test_sampler import ONE, Bench

HELD = a_holder("train", "GPU-a", source=HolderSource.KUBELET)
THERE = PodPresence(("uid-train",))
GONE = PodPresence(("uid-other",))
NAMED = ("team-a", "train")


@pytest.mark.parametrize("source", ["kubelet", "runtime", "environment", "cgroup"])
def test_who_had_devices_has_them_until_it_left_the_node(source: str) -> None:
    known = [replace(HELD, source=HolderSource(source))]

    there, gone = (lingering_holders((), known, presence, {}) for presence in (THERE, GONE))

    assert there == (replace(HELD, source=HolderSource.CGROUP),)
    assert gone == ()


@pytest.mark.parametrize(
    ("names", "stays"),
    [
        pytest.param({}, True, id="force-deleted"),
        pytest.param({NAMED: NamedPod("uid-train")}, True, id="between two runs"),
        pytest.param({NAMED: NamedPod("uid-new", over=True)}, True, id="another pod took its name and ended"),
        pytest.param({NAMED: NamedPod("uid-train", over=True)}, False, id="ended by its kubelet's word"),
    ],
)
def test_only_a_pod_that_ended_gives_its_devices_back_while_it_is_there(names: PodNames, stays: bool) -> None:
    assert bool(lingering_holders((), [HELD], THERE, names)) is stays


def test_what_is_listed_is_told_once() -> None:
    listed = replace(HELD, source=HolderSource.RUNTIME)

    assert lingering_holders([listed], [HELD], THERE, {}) == ()


def test_who_only_computes_gives_back_what_it_no_longer_computes_on() -> None:
    computed = Holder(HELD.pod, "main", HELD.devices, HolderSource.PROCESS, (7,))

    assert lingering_holders((), [computed], THERE, {}) == ()


def test_control_groups_without_a_pod_that_runs_are_not_all_there_are() -> None:
    assert checked(THERE, ["uid-train"], FakeMachine()).unknown_reason == ""
    assert "uid-train" in checked(GONE, ["uid-train"], FakeMachine()).unknown_reason


def test_a_static_pod_is_there_by_its_hash_and_by_its_mirror() -> None:
    pods = FakeMachine(gone={"hash": PodRef("kube-system", "static", "uid-mirror")})

    assert checked(PodPresence(("hash",)), (), pods).pod_uids == ("hash", "uid-mirror")


async def test_a_force_deleted_pod_that_computes_nothing_holds_its_card_until_it_is_gone() -> None:
    """The kubelet and Kubernetes forget it at once."""
    machine = FakeMachine(
        kubelet_pods=(pod_devices("train", "GPU-a"),), uids={"train": "uid-train"}, present={"uid-train"}
    )
    bench = Bench(machine)
    await bench.look()

    machine.kubelet_pods, machine.uids = (), {}
    await bench.look()
    (lingering,) = bench.reader.holders
    machine.present = set()
    await bench.look()

    assert lingering == replace(HELD, source=HolderSource.CGROUP)
    assert bench.reader.holders == ()
    assert bench.reader.presence == PodPresence((), boot_id="boot-1", listed_at_ms=3)


async def test_a_list_of_pods_that_says_the_same_stays_as_old_as_it_is() -> None:
    """Readers are told of what came or went, and know which of two lists is the newer one."""
    machine = FakeMachine(present={"uid-train"})
    bench = Bench(machine)
    seen = []

    for present in ({"uid-train"}, {"uid-train"}, set(), {"uid-train"}):
        machine.present = set(present)
        await bench.look()
        seen.append((bench.reader.presence.pod_uids, bench.reader.presence.listed_at_ms))

    assert seen == [(("uid-train",), 1), (("uid-train",), 1), ((), 3), (("uid-train",), 4)]


async def test_a_crashing_container_is_a_holder_between_two_runs() -> None:
    holder = a_holder("train")
    machine = FakeMachine(runtime_holders=(holder,), uids={"train": "uid-train"}, present={"uid-train"})
    bench = Bench(machine, NodeMode.GPULOOM)
    seen = []

    for running in ((holder,), (), (holder,)):
        machine.runtime_holders = running
        await bench.look()
        seen.append([(each.devices, each.source) for each in bench.reader.holders])

    assert seen == [
        [(holder.devices, source)]
        for source in (HolderSource.RUNTIME, HolderSource.CGROUP, HolderSource.RUNTIME)
    ]


async def test_pods_that_can_not_be_looked_for_stay_as_they_were_with_the_reason() -> None:
    machine = FakeMachine(
        kubelet_pods=(pod_devices("train", "GPU-a"),), uids={"train": "uid-train"}, present={"uid-train"}
    )
    bench = Bench(machine)
    await bench.look()

    machine.kubelet_pods, machine.uids, machine.groups_problem = (), {}, "mount the host's /sys/fs/cgroup"
    await bench.look()

    assert [holder.source for holder in bench.reader.holders] == [HolderSource.CGROUP]
    assert bench.reader.presence.pod_uids == ("uid-train",)
    assert bench.reader.presence.unknown_reason == "mount the host's /sys/fs/cgroup"
    assert bench.looks("pods") == 1


async def test_a_process_of_a_pod_without_a_control_group_shows_that_not_all_are_seen() -> None:
    class Blind(FakeMachine):
        async def presence(self) -> PodPresence:
            return PodPresence()

    machine = Blind(processes_on(ONE, a_process(7)), running={7: ProcessOwner("python3", "uid-x")})
    bench = Bench(machine)

    await bench.look()

    assert "uid-x runs" in bench.reader.presence.unknown_reason
