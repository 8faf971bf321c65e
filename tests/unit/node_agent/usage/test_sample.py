"""What counts as measured."""

from dataclasses import replace

from gpuloom.model.gpu import DeviceRef, GpuHealth
from gpuloom.model.mig import MigInstance, MigPlacement
from gpuloom.model.node import Holder, HolderSource, NodeState
from gpuloom.model.process import GpuProcess
from services.node_agent.core.picture import Picture
from services.node_agent.core.readings import Activity, DriverReading, GpuSample, Process
from services.node_agent.usage.core.sample import Moment, Reading, sample_of
from tests.unit.node_agent.builders import a_gpu, a_start
from tests.unit.node_agent.usage.builders import NOON, a_pod

CARD = DeviceRef("GPU-a")
MIB = 1024 * 1024
TRAIN, SERVE = a_pod("train"), a_pod("serve")


def a_picture(
    *pods: str, processes: tuple[GpuProcess, ...] = (), sample: GpuSample | None = None, **state: object
) -> Picture:
    gpu = a_gpu("GPU-a", health=GpuHealth.HEALTHY)
    holders = tuple(Holder(a_pod(pod), "main", (CARD,), HolderSource.RUNTIME) for pod in pods)
    known: NodeState = replace(a_start(), gpus=(gpu,), holders=holders, holders_unknown_reason="", **state)  # type: ignore[arg-type]
    listed = tuple(Process(each.pid, each.device, each.memory_mib, each.sm_ratio) for each in processes)
    reading = DriverReading(
        gpus=(gpu,),
        usage=(),
        topology=None,
        samples={"GPU-a": sample or GpuSample(utilization_ratio=0.8, memory_used_mib=500)},
        processes={"GPU-a": listed},
    )
    return Picture(known, reading, processes, 0.0)


def a_process(pod: str, sm_ratio: float | None, memory_mib: int | None = 100) -> GpuProcess:
    return GpuProcess(1, "python", CARD, memory_mib, sm_ratio, a_pod(pod))


def readings_of(picture: Picture, **milli: int) -> dict[object, Reading]:
    given = {f"uid-{pod}": {CARD: amount} for pod, amount in milli.items()}
    sample = sample_of(picture, given, Moment(0, NOON))
    return {pod: reading for (pod, _), reading in sample.readings.items()}


def test_a_card_that_one_pod_has_alone_is_as_busy_as_the_pod() -> None:
    found = readings_of(a_picture("train", processes=(a_process("train", None),)), train=1000)

    assert found == {TRAIN: Reading(1000, 0.8, 100 * MIB)}


def test_a_shared_card_is_divided_by_what_processes_really_used() -> None:
    processes = (a_process("train", 0.5), a_process("serve", None))

    found = readings_of(a_picture("train", "serve", processes=processes), train=500)

    assert (found[TRAIN].utilization_ratio, found[SERVE].utilization_ratio) == (0.5, 0.0)
    assert (found[TRAIN].milli, found[SERVE].milli) == (500, None)


def test_a_shared_card_whose_processes_are_not_timed_is_not_measured() -> None:
    processes = (a_process("train", None), a_process("serve", None))

    busy = readings_of(a_picture("train", "serve", processes=processes))
    idle = readings_of(a_picture("train", "serve", processes=processes, sample=GpuSample(0.0)))

    assert [reading.utilization_ratio for reading in busy.values()] == [None, None]
    assert [reading.utilization_ratio for reading in idle.values()] == [0.0, 0.0]


def test_nothing_is_measured_while_it_is_not_known_who_has_what() -> None:
    picture = a_picture("train")
    unknown = replace(picture, state=replace(picture.state, holders_unknown_reason="the kubelet is silent"))

    assert readings_of(unknown)[TRAIN] == Reading()


def test_an_instance_is_measured_only_where_the_card_says_so() -> None:
    one, two = MigPlacement(0, "3g.40gb"), MigPlacement(4, "3g.40gb")
    instances = tuple(MigInstance(place, 4, 40_000) for place in (one, two))
    picture = a_picture()
    gpu = replace(picture.state.gpus[0], mig_enabled=True, mig_instances=instances)
    holders = (Holder(TRAIN, "main", (DeviceRef("GPU-a", one),), HolderSource.KUBELET),)
    state = replace(picture.state, gpus=(gpu,), holders=holders)
    assert picture.reading is not None
    activity = {DeviceRef("GPU-a", one): Activity(graphics_ratio=0.25)}
    for known, ratio in ((activity, 0.25), ({}, None)):
        reading = replace(picture.reading, activity=known)
        sample = sample_of(replace(picture, state=state, reading=reading), {}, Moment(0, NOON))

        assert sample.readings[TRAIN, DeviceRef("GPU-a", one)].utilization_ratio == ratio
        assert sample.readings[None, DeviceRef("GPU-a", two)] == Reading()
