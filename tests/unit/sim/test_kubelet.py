import random
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.errors import InvalidRequestError
from gpuloom.kube.parse import format_time
from gpuloom.model.gpu import DeviceRef, GpuHealth
from gpuloom.model.node import NodeMode
from gpuloom.runtime.clock import FakeClock
from gpuloom.sim.duration import parse_duration_s
from gpuloom.sim.kubelet.devices import ANNOTATION_CLAIMS, MachineView, Refusal, admit
from gpuloom.sim.kubelet.host import Behaviour, Host
from gpuloom.sim.kubelet.lifecycle import Action, PodView, next_step
from gpuloom.sim.kubelet.podresources import check_socket_path
from gpuloom.sim.kubelet.process import machines_lock
from gpuloom.sim.kubelet.status import node_object, node_status_patch, running_status
from gpuloom.sim.machines.audit import audit
from gpuloom.sim.machines.journal import EntryKind, read_journal
from gpuloom.sim.machines.load import Faults, GpuFault
from gpuloom.sim.machines.machine import HostedPod, Machine
from tests.unit.sim.builders import a_machine, a_pod, an_allocation_annotation, hardware, hosted, share, whole

NVIDIA = hardware(NodeMode.NVIDIA)
GPULOOM = hardware(NodeMode.GPULOOM)
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def live(phase: str = "Running", *, deleting: bool = False) -> PodView:
    return PodView(phase, deleting)


@pytest.mark.parametrize(
    ("pod", "machine_side", "now_s", "action"),
    [
        (live("Pending"), None, 0, Action.ADMIT),
        (live("Pending"), hosted("p", starts_at_s=5), 4, Action.WAIT),
        (live("Pending"), hosted("p", starts_at_s=5), 5, Action.REPORT_RUNNING),
        (live(), hosted("p"), 9, Action.WAIT),
        (live(), hosted("p", ends_at_s=9), 9, Action.EXIT),
        (live(), hosted("p", exited=True), 9, Action.REPORT_END),
        (live("Succeeded"), hosted("p", exited=True), 9, Action.FORGET),
        (live("Succeeded"), None, 9, Action.WAIT),
        (live("Succeeded", deleting=True), None, 9, Action.CONFIRM_DELETE),
        (live("Pending", deleting=True), None, 9, Action.CONFIRM_DELETE),
        (live(deleting=True), hosted("p"), 9, Action.STOP_SOON),
        (live(deleting=True), hosted("p", stops_at_s=10), 9, Action.WAIT),
        (live(deleting=True), hosted("p", stops_at_s=10), 10, Action.EXIT),
        (None, hosted("p"), 9, Action.STOP_SOON),
        (None, hosted("p", stops_at_s=10), 9, Action.STOP_SOON),
        (None, hosted("p", stops_at_s=10, forgotten_at_s=8), 9, Action.WAIT),
        (None, hosted("p", stops_at_s=10, forgotten_at_s=8), 10, Action.EXIT),
        (None, hosted("p", exited=True), 10, Action.FORGET),
        (None, None, 10, Action.FORGET),
        (live("Failed"), hosted("p"), 9, Action.STOP_SOON),
        (live(), None, 9, Action.REPORT_LOST),
    ],
)
def test_the_next_step_follows_from_the_present(
    pod: PodView | None, machine_side: HostedPod | None, now_s: float, action: Action
) -> None:
    assert next_step(pod, machine_side, now_s).action is action


def view(*pods: HostedPod, machine: Any = NVIDIA, faults: Faults | None = None) -> MachineView:
    return MachineView(machine, faults or Faults(), pods)


@given(seed=st.integers(0, 1000), count=st.integers(1, 8), taken=st.integers(0, 8))
def test_an_nvidia_machine_gives_only_free_cards_or_refuses(seed: int, count: int, taken: int) -> None:
    held = [whole(gpu.uuid) for gpu in NVIDIA.gpus[:taken]]
    pods = (hosted("old", *held),) if held else ()

    given_out = admit(a_pod("p", {"nvidia.com/gpu": str(count)}), view(*pods), random.Random(seed))

    if count + taken > 8:
        assert isinstance(given_out, Refusal)
        assert given_out.reason == "UnexpectedAdmissionError"
        assert (given_out.resource, given_out.requested) == ("nvidia.com/gpu", count)
    else:
        assert not isinstance(given_out, Refusal)
        chosen = {device.device for device in given_out[0].devices}
        assert len(chosen) == count
        assert not chosen & {device.device for device in held}


def test_an_nvidia_machine_does_not_choose_in_order() -> None:
    pod = a_pod("p", {"nvidia.com/gpu": "2"})

    choices = set()
    for seed in range(20):
        outcome = admit(pod, view(), random.Random(seed))
        assert not isinstance(outcome, Refusal)
        choices.add(tuple(device.device.gpu_uuid for device in outcome[0].devices))

    assert len(choices) > 10


def test_a_faulty_card_is_not_given() -> None:
    faults = Faults({gpu.uuid: GpuFault(GpuHealth.UNHEALTHY, "XID 48") for gpu in NVIDIA.gpus[:7]})

    one = admit(a_pod("p", {"nvidia.com/gpu": "1"}), view(faults=faults), random.Random(0))
    two = admit(a_pod("p", {"nvidia.com/gpu": "2"}), view(faults=faults), random.Random(0))

    assert not isinstance(one, Refusal)
    assert one[0].devices[0].device.gpu_uuid == NVIDIA.gpus[7].uuid
    assert isinstance(two, Refusal)


def test_containers_get_their_own_cards_and_init_containers_reuse_them() -> None:
    pod = a_pod("p")
    one_gpu = {"limits": {"nvidia.com/gpu": "1"}}
    pod["spec"]["containers"] = [{"name": "a", "resources": one_gpu}, {"name": "b", "resources": one_gpu}]
    pod["spec"]["initContainers"] = [{"name": "init", "resources": {"limits": {"nvidia.com/gpu": "2"}}}]

    outcome = admit(pod, view(), random.Random(0))

    assert not isinstance(outcome, Refusal)
    assert [(container.name, len(container.devices)) for container in outcome] == [("a", 1), ("b", 1)]
    assert outcome[0].devices != outcome[1].devices


def test_mig_resources_are_given_by_profile() -> None:
    machine = hardware(mig=True)
    pod = a_pod("p", {"nvidia.com/mig-1g.5gb": "2"})

    outcome = admit(pod, view(machine=machine), random.Random(0))

    assert not isinstance(outcome, Refusal)
    assert {device.device.mig.start for device in outcome[0].devices if device.device.mig} == {4, 5}


def test_a_gpuloom_machine_gives_exactly_what_the_allocation_says_even_if_it_is_taken() -> None:
    device = share(GPULOOM.gpus[3].uuid, 500, 20480)
    pod = a_pod("p", {"gpuloom.dev/gpu-milli": "500"}, annotations=an_allocation_annotation(device))

    outcome = admit(pod, view(hosted("old", whole(GPULOOM.gpus[3].uuid)), machine=GPULOOM), random.Random(0))

    assert not isinstance(outcome, Refusal)
    assert outcome[0].devices == (device,)


@pytest.mark.parametrize(
    ("annotations", "text"),
    [
        ({}, "is missing"),
        ({"gpuloom.dev/allocation": "{"}, "not JSON"),
        (an_allocation_annotation(whole("GPU-x"), container="other"), "'other', not in the pod"),
    ],
)
def test_a_gpuloom_pod_without_a_good_allocation_is_not_started(
    annotations: dict[str, str], text: str
) -> None:
    pod = a_pod("p", {"gpuloom.dev/gpu-milli": "500"}, annotations=annotations)

    outcome = admit(pod, view(machine=GPULOOM), random.Random(0))

    assert isinstance(outcome, Refusal)
    assert text in outcome.message


def test_each_mode_refuses_the_other_ones_resources() -> None:
    on_nvidia = admit(a_pod("p", {"gpuloom.dev/gpu-milli": "500"}), view(), random.Random(0))
    on_gpuloom = admit(a_pod("p", {"nvidia.com/gpu": "1"}), view(machine=GPULOOM), random.Random(0))

    assert isinstance(on_nvidia, Refusal)
    assert on_nvidia.reason == "OutOfgpuloom.dev/gpu-milli"
    assert isinstance(on_gpuloom, Refusal)


def test_an_unreadable_amount_refuses_the_pod_only() -> None:
    outcome = admit(a_pod("p", {"nvidia.com/gpu": "many"}), view(), random.Random(0))

    assert isinstance(outcome, Refusal)
    assert outcome.reason == "InvalidPodSpec"


@pytest.mark.parametrize("machine", [NVIDIA, GPULOOM])
def test_what_a_dra_driver_gave_is_held_and_the_device_plugin_does_not_know_it(machine: Any) -> None:
    pod = a_pod("claims", annotations={ANNOTATION_CLAIMS: "gpu.nvidia.com/gpu-1,dra.net/eth1"})

    outcome = admit(pod, view(machine=machine), random.Random(0))

    assert not isinstance(outcome, Refusal)
    claiming = replace(hosted("claims"), containers=outcome)
    free = view(claiming, machine=machine).free_devices("nvidia.com/gpu")
    assert [claim.device for claim in outcome[0].claims] == ["gpu-1", "eth1"]
    assert [held.device for held in claiming.devices] == [DeviceRef(machine.gpus[1].uuid)]
    assert len(free) == len(view(machine=machine).free_devices("nvidia.com/gpu"))


def a_host(tmp_path: Path, clock: FakeClock, mode: NodeMode = NodeMode.NVIDIA) -> Host:
    return Host(a_machine(tmp_path, mode=mode), Behaviour(seed=1), clock)


async def test_podresources_shows_a_pod_late_although_it_holds_its_cards(tmp_path: Path) -> None:
    clock = FakeClock()
    host = a_host(tmp_path, clock)

    host.admit(a_pod("p", {"nvidia.com/gpu": "3"}))
    shown_at_once = host.published()
    await clock.advance(10.0)

    assert shown_at_once == ()
    assert len(host.machine.containers()[0].devices) == 3
    assert [pod.pod.name for pod in host.published()] == ["p"]
    host.close()


async def test_a_killed_kubelet_goes_on_where_the_machine_stands(tmp_path: Path) -> None:
    clock = FakeClock()
    first = a_host(tmp_path, clock)
    first.admit(a_pod("p", {"nvidia.com/gpu": "8"}, annotations={"sim.gpuloom.dev/duration": "40s"}))
    before = first.hosted["uid-p"]
    first.close()

    second = a_host(tmp_path, clock)
    second.admit(a_pod("q", {"nvidia.com/gpu": "1"}))

    assert second.hosted["uid-p"] == before
    assert second.hosted["uid-q"].reason == "UnexpectedAdmissionError"
    assert [entry.kind for entry in read_journal(second.machine.journal_path).entries] == [
        EntryKind.START,
        EntryKind.REFUSED,
    ]
    second.close()


KILL_POINTS: list[Callable[[Machine], object]] = [
    lambda machine: machine.journal_path.write_bytes(b""),
    lambda machine: machine.write_hosted([]),
    lambda machine: machine.journal_path.write_bytes(machine.journal_path.read_bytes()[:-5]),
]


@pytest.mark.parametrize("lose", KILL_POINTS)
async def test_a_kill_between_state_and_journal_leaves_an_honest_journal(
    tmp_path: Path, lose: Callable[[Machine], object]
) -> None:
    clock = FakeClock()
    first = a_host(tmp_path, clock)
    first.admit(a_pod("p", {"nvidia.com/gpu": "8"}))
    first.close()
    lose(first.machine)

    second = Host(Machine.open(tmp_path / "n1"), Behaviour(seed=1), clock)
    for uid in tuple(second.hosted):
        second.exit(uid, killed=False)
    second.admit(a_pod("q", {"nvidia.com/gpu": "8"}))
    second.close()

    report = audit(tmp_path)
    assert report.clean
    assert (report.starts, report.ends) == (2, 1)


async def test_the_audit_finds_what_a_wrong_allocation_does(tmp_path: Path) -> None:
    host = a_host(tmp_path, FakeClock(), NodeMode.GPULOOM)
    device = share(host.machine.hardware.gpus[0].uuid, 600, 1000)

    for name in ("a", "b"):
        host.admit(
            a_pod(name, {"gpuloom.dev/gpu-milli": "600"}, annotations=an_allocation_annotation(device))
        )
    host.close()

    assert len(audit(tmp_path).double_bookings) == 1


def test_a_kubelet_registers_its_device_plugins_gpus_and_none_of_ours() -> None:
    nvidia = node_object(NVIDIA, Faults(), NOW)
    gpuloom = node_object(GPULOOM, Faults(), NOW)

    assert nvidia["status"]["allocatable"]["nvidia.com/gpu"] == "8"
    for node in (nvidia, gpuloom):
        assert not any(name.startswith("gpuloom.dev/") for name in node["status"]["allocatable"])
        assert "gpuloom.dev/mode" not in node["metadata"]["labels"]
    assert "nvidia.com/gpu" not in gpuloom["status"]["allocatable"]


def test_a_node_status_is_written_only_when_it_is_news() -> None:
    node = node_object(NVIDIA, Faults(), NOW)
    faults = Faults({NVIDIA.gpus[0].uuid: GpuFault(GpuHealth.LOST, "XID 79")})

    quiet = node_status_patch(node, NVIDIA, Faults(), NOW + timedelta(seconds=10))
    old = node_status_patch(node, NVIDIA, Faults(), NOW + timedelta(minutes=6))
    faulty = node_status_patch(node, NVIDIA, faults, NOW)

    assert quiet is None
    assert old is not None
    assert old["status"]["conditions"][0]["lastTransitionTime"] == format_time(NOW)
    assert faulty is not None
    assert faulty["status"]["allocatable"]["nvidia.com/gpu"] == "7"
    assert faulty["status"]["capacity"]["nvidia.com/gpu"] == "8"


def test_a_running_pod_keeps_conditions_of_others() -> None:
    pod = a_pod("p")
    pod["status"]["conditions"] = [
        {"type": "PodScheduled", "status": "True"},
        {"type": "Ready", "status": "False"},
    ]

    status = running_status(pod, NOW)

    conditions = {condition["type"]: condition["status"] for condition in status["conditions"]}
    assert conditions == {
        "PodScheduled": "True",
        "Initialized": "True",
        "ContainersReady": "True",
        "Ready": "True",
    }


def test_a_socket_path_that_is_too_long_is_refused_with_its_length() -> None:
    with pytest.raises(InvalidRequestError, match="at most 107"):
        check_socket_path(Path("/") / ("x" * 110))


def test_two_kubelet_processes_cannot_share_machines(tmp_path: Path) -> None:
    with (
        machines_lock(tmp_path),
        pytest.raises(InvalidRequestError, match="another kubelet process"),
        machines_lock(tmp_path),
    ):
        pass


@pytest.mark.parametrize(
    ("text", "seconds"), [("40s", 40), ("1m30s", 90), ("250ms", 0.25), ("2h", 7200), ("5", 5)]
)
def test_durations_are_read_as_people_write_them(text: str, seconds: float) -> None:
    assert parse_duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "4x", "-1s", "1s ", "1d", "9" * 40])
def test_other_texts_are_no_durations(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration_s(text)
