import asyncio
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from gpuloom.codec.node import apply_node_delta
from gpuloom.model.gpu import DeviceRef, GpuHealth
from gpuloom.model.node import Delivery, HolderSource, NodeMode, PodRef
from gpuloom.model.wiring import GpuWiring
from gpuloom.runtime.clock import FakeClock, settle
from services.node_agent.attribution.census import Census
from services.node_agent.metrics import AgentMetrics
from services.node_agent.node import Node
from services.node_agent.ports import PodDevices, ProcessOwner
from services.node_agent.sampler import Owners, Sampler
from tests.unit.node_agent.builders import (
    FakeMachine,
    a_gpu,
    a_holder,
    a_process,
    a_reading,
    a_start,
    pod_devices,
    processes_on,
)

ONE = a_reading(a_gpu())


class Bench:
    """A sampler before a fake machine, and a reader of the node's feed."""

    def __init__(self, machine: FakeMachine, mode: NodeMode = NodeMode.NVIDIA) -> None:
        self.clock = FakeClock()
        self.registry = CollectorRegistry()
        self.node = Node(a_start(mode), self.clock, max_age_s=10.0)
        metrics = AgentMetrics(self.registry)
        metrics.watch(self.node)
        owners = Owners(machine, machine, machine, Census(machine, machine), machine)
        self.sampler = Sampler(self.node, machine, owners, self.clock, metrics)
        self.reader = self.node.state
        self._updates = self.node.feed.subscribe()

    async def look(self) -> None:
        """Look once, and let the reader follow."""
        await self.sampler.look()
        while self._updates.number < self.node.feed.number:
            update = await anext(self._updates)
            assert update is not None
            self.reader = apply_node_delta(self.reader, update.delta)

    def looks(self, problem: str) -> float:
        found = self.registry.get_sample_value("gpuloom_node_agent_samples_total", {"problem": problem})
        return found or 0.0


async def test_a_reader_of_the_deltas_has_the_node_s_state() -> None:
    machine = FakeMachine(kubelet_pods=(pod_devices("train", "GPU-a"),), uids={"train": "uid-train"})
    bench = Bench(machine)

    await bench.look()
    machine.reading = a_reading(a_gpu("GPU-new"), utilization=0.7)
    await bench.look()
    machine.kubelet_pods = ()
    await bench.look()

    assert bench.reader == bench.node.state
    assert [gpu.uuid for gpu in bench.reader.gpus] == ["GPU-new"]
    assert bench.reader.holders == ()


async def test_a_value_that_can_not_be_true_reaches_nobody_and_is_counted() -> None:
    bench = Bench(FakeMachine(a_reading(a_gpu(), utilization=2.55)))

    await bench.look()

    (usage,) = bench.reader.usage
    assert usage.utilization_ratio is None
    counted = {"quantity": "utilization"}
    assert bench.registry.get_sample_value("gpuloom_node_agent_implausible_values_total", counted) == 1
    assert bench.looks("none") == 1


async def test_a_look_that_finds_nothing_new_publishes_nothing() -> None:
    bench = Bench(FakeMachine())
    await bench.look()
    number = bench.node.feed.number

    await bench.look()

    assert bench.node.feed.number == number == 1


async def test_on_an_nvidia_node_the_kubelet_says_who_holds_devices() -> None:
    machine = FakeMachine(
        kubelet_pods=(pod_devices("train", "GPU-a"),),
        uids={"train": "uid-train"},
        runtime_holders=(a_holder("other"),),
    )
    bench = Bench(machine, NodeMode.NVIDIA)

    await bench.look()

    (holder,) = bench.reader.holders
    assert (holder.pod.uid, holder.devices) == ("uid-train", (DeviceRef("GPU-a"),))


async def test_a_kubelet_that_has_just_started_takes_nothing_from_pods_that_run() -> None:
    machine = FakeMachine(
        kubelet_pods=(pod_devices("train", "GPU-a"), pod_devices("ended", "GPU-b")),
        uids={"train": "uid-train", "ended": "uid-ended"},
        containers_run={"train"},
    )
    bench = Bench(machine, NodeMode.NVIDIA)
    await bench.look()
    machine.kubelet_pods = ()

    await bench.look()

    assert [holder.pod.name for holder in bench.reader.holders] == ["train"]


async def test_readers_are_told_of_usage_less_often_than_the_node_is_looked_at() -> None:
    machine = FakeMachine(reading=a_reading(a_gpu(), utilization=0.1))
    bench = Bench(machine)
    await bench.look()
    machine.reading = a_reading(a_gpu(), utilization=0.9)

    await bench.sampler.look(with_usage=False)
    between = bench.node.state.usage
    await bench.sampler.look(with_usage=True)

    assert [each.utilization_ratio for each in between] == [0.1]
    assert [each.utilization_ratio for each in bench.node.state.usage] == [0.9]


async def test_on_a_gpuloom_node_the_runtime_says_who_holds_devices() -> None:
    machine = FakeMachine(runtime_holders=(a_holder("train"),))
    bench = Bench(machine, NodeMode.GPULOOM)

    await bench.look()

    assert bench.reader.holders == (a_holder("train"),)
    assert bench.reader.holders_unknown_reason == ""


async def test_on_a_gpuloom_node_the_kubelet_says_who_has_devices_of_its_plugin_still() -> None:
    machine = FakeMachine(
        kubelet_pods=(pod_devices("before", "GPU-b"),),
        uids={"before": "uid-before"},
        runtime_holders=(a_holder("train"),),
    )
    bench = Bench(machine, NodeMode.GPULOOM)

    await bench.look()

    assert {(holder.pod.name, holder.source) for holder in bench.reader.holders} == {
        ("before", HolderSource.KUBELET),
        ("train", HolderSource.RUNTIME),
    }


@pytest.mark.parametrize("mode", [NodeMode.NVIDIA, NodeMode.GPULOOM])
async def test_a_gpu_of_a_resource_claim_is_held_until_the_kubelet_no_longer_lists_it(mode: NodeMode) -> None:
    claims = PodDevices("team-a", "claims", "main", (), (DeviceRef("GPU-b"),))
    machine = FakeMachine(
        processes_on(ONE, a_process(7, "GPU-b")),
        kubelet_pods=(claims,),
        uids={"claims": "uid-claims"},
        running={7: ProcessOwner("python3", "uid-claims", "id-main")},
        containers_run={"claims"},
    )
    bench = Bench(machine, mode)

    await bench.look()
    held = bench.reader.holders
    machine.kubelet_pods = ()
    await bench.look()
    restarted = bench.reader.holders
    machine.uids, machine.running = {}, {}
    await bench.look()

    claim = a_holder("claims", "GPU-b", source=HolderSource.CLAIM)
    assert held == restarted == (claim,)
    assert bench.reader.holders == ()


async def test_a_driver_that_is_down_does_not_hide_the_holders() -> None:
    machine = FakeMachine(runtime_holders=(a_holder("one"),))
    bench = Bench(machine, NodeMode.GPULOOM)
    await bench.look()

    machine.driver_problem = "the driver does not answer"
    machine.runtime_holders = (a_holder("two"),)
    await bench.look()

    assert [gpu.health for gpu in bench.reader.gpus] == [GpuHealth.UNKNOWN]
    assert bench.reader.holders == (a_holder("two"),)
    assert (bench.looks("driver"), bench.looks("none")) == (1, 1)


@pytest.mark.parametrize(
    ("mode", "problem"),
    [
        (NodeMode.NVIDIA, {"kubelet_problem": "down"}),
        (NodeMode.GPULOOM, {"kubelet_problem": "down"}),
        (NodeMode.GPULOOM, {"runtime_problem": "down"}),
        (NodeMode.NVIDIA, {"unsynced": "down"}),
        (NodeMode.GPULOOM, {"unsynced": "down"}),
    ],
)
async def test_holders_that_are_not_known_do_not_hide_the_gpus(
    mode: NodeMode, problem: dict[str, str]
) -> None:
    machine = FakeMachine(**problem)  # type: ignore[arg-type]
    bench = Bench(machine, mode)

    await bench.look()

    assert [gpu.health for gpu in bench.reader.gpus] == [GpuHealth.HEALTHY]
    assert bench.reader.holders_unknown_reason == "down"
    assert bench.looks("holders") == 1


async def test_the_loop_looks_again_and_again_and_survives_every_part() -> None:
    machine = FakeMachine(driver_problem="down", kubelet_problem="down")
    bench = Bench(machine)
    task = asyncio.create_task(bench.sampler.run(1.0, 10.0))

    await bench.clock.advance(5.0)
    machine.driver_problem = machine.kubelet_problem = ""
    await bench.clock.advance(1.0)

    assert not task.done()
    assert bench.node.state.gpus == (a_gpu(),)
    assert bench.node.state.holders_unknown_reason == ""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()


async def test_a_look_that_hangs_makes_the_state_stale_until_it_comes_back() -> None:
    release = asyncio.Event()

    class HangingMachine(FakeMachine):
        async def holders(self) -> tuple[()]:
            await release.wait()
            return ()

    bench = Bench(HangingMachine(), NodeMode.GPULOOM)
    task = asyncio.create_task(bench.sampler.run(1.0, 10.0))

    await bench.clock.advance(10.0)
    in_time = bench.node.stale_reason()
    await bench.clock.advance(1.0)
    hanging = bench.node.stale_reason()
    release.set()
    await settle()

    assert (in_time, hanging) == (None, "the node was last sampled 11 s ago")
    assert bench.node.stale_reason() is None
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_process_outside_any_pod_holds_its_gpu() -> None:
    machine = FakeMachine(processes_on(ONE, a_process(7)), running={7: ProcessOwner("miner")})
    bench = Bench(machine)

    await bench.look()

    (holder,) = bench.reader.holders
    assert (holder.pod, holder.source, holder.pids) == (PodRef("", "", ""), HolderSource.PROCESS, (7,))
    assert bench.registry.get_sample_value("gpuloom_node_agent_foreign_processes") == 1


@pytest.mark.parametrize("mode", [NodeMode.NVIDIA, NodeMode.GPULOOM])
async def test_a_pod_that_ended_holds_its_gpu_until_its_last_process_is_gone(mode: NodeMode) -> None:
    machine = FakeMachine(
        processes_on(ONE, a_process(7)),
        kubelet_pods=(pod_devices("train", "GPU-a"),) if mode is NodeMode.NVIDIA else (),
        runtime_holders=(a_holder("train"),),
        uids={"train": "uid-train"},
        running={7: ProcessOwner("python3", "uid-train", "id-main")},
    )
    bench = Bench(machine, mode)
    await bench.look()
    given = bench.reader.holders

    machine.kubelet_pods, machine.runtime_holders = (), ()
    machine.uids, machine.over = {}, {"train": "uid-train"}
    await bench.look()
    left = bench.reader.holders
    machine.reading, machine.running = processes_on(ONE), {}
    await bench.look()

    assert [holder.pod.uid for holder in given] == ["uid-train"]
    assert [(holder.pod.uid, holder.source) for holder in left] == [("uid-train", HolderSource.PROCESS)]
    assert bench.reader.holders == ()


async def test_a_completed_job_that_an_old_kubelet_still_lists_holds_nothing() -> None:
    machine = FakeMachine(
        processes_on(ONE), kubelet_pods=(pod_devices("job", "GPU-a"),), over={"job": "uid-job"}
    )
    bench = Bench(machine)

    await bench.look()

    assert (bench.reader.holders, bench.reader.holders_unknown_reason) == ((), "")


async def test_a_pod_replaced_while_the_kubelet_is_asked_is_not_taken_for_the_one_before() -> None:
    class Replacing(FakeMachine):
        async def pod_devices(self) -> tuple[PodDevices, ...]:
            self.uids = {"train-0": "uid-new"}
            return self.kubelet_pods

    machine = Replacing(kubelet_pods=(pod_devices("train-0", "GPU-a"),), uids={"train-0": "uid-old"})
    bench = Bench(machine)

    await bench.look()
    during = bench.reader.holders
    await bench.look()

    assert [holder.pod.uid for holder in during] == [""]
    assert [holder.pod.uid for holder in bench.reader.holders] == ["uid-new"]


async def test_a_host_that_can_not_be_seen_is_reported_and_hides_nothing_that_was_given() -> None:
    machine = FakeMachine(
        processes_on(ONE, a_process(7)),
        kubelet_pods=(pod_devices("train", "GPU-a"),),
        uids={"train": "uid-train"},
        host_problem="set hostPID: true",
    )
    bench = Bench(machine)

    await bench.look()

    assert [holder.pod.uid for holder in bench.reader.holders] == ["uid-train"]
    assert bench.reader.holders_unknown_reason == ""
    assert bench.looks("processes") == 1


async def test_a_driver_that_is_down_frees_no_gpu_on_which_a_process_was_seen() -> None:
    machine = FakeMachine(processes_on(ONE, a_process(7)), running={7: ProcessOwner("miner")})
    bench = Bench(machine)
    await bench.look()
    before = bench.reader.holders

    machine.driver_problem = "the driver does not answer"
    await bench.look()

    assert bench.reader.holders == before != ()


async def test_a_look_leaves_a_picture_with_everything_in_it() -> None:
    machine = FakeMachine(
        processes_on(ONE, a_process(7)),
        uids={"train": "uid-train"},
        running={7: ProcessOwner("python3", "uid-train", "id-main")},
    )
    bench = Bench(machine)
    before = bench.node.picture

    await bench.look()
    picture = bench.node.picture
    bench.node.deliver_by(Delivery.NONE)

    assert before is None
    assert picture is not None
    assert picture.reading is machine.reading
    assert [(each.name, str(each.pod), each.container) for each in picture.processes] == [
        ("python3", "team-a/train", "main")
    ]
    assert bench.node.picture is not None
    assert bench.node.picture.state is bench.node.state


async def test_a_picture_of_a_driver_that_is_down_has_no_reading() -> None:
    machine = FakeMachine(replace(ONE, wiring=(GpuWiring("GPU-a", 0),)))
    bench = Bench(machine)
    await bench.look()

    machine.driver_problem = "down"
    await bench.look()

    assert bench.node.picture is not None
    assert bench.node.picture.reading is None
    assert bench.node.wiring == (GpuWiring("GPU-a", 0),)


async def test_metrics_count_gpus_by_health_and_holders() -> None:
    machine = FakeMachine(
        reading=a_reading(a_gpu(), a_gpu("GPU-b", 1, health=GpuHealth.LOST)),
        runtime_holders=(a_holder("one"), a_holder("two")),
    )
    bench = Bench(machine, NodeMode.GPULOOM)

    await bench.look()

    counted = {
        health: bench.registry.get_sample_value("gpuloom_node_agent_gpus", {"health": health})
        for health in GpuHealth
    }
    assert (counted[GpuHealth.HEALTHY], counted[GpuHealth.LOST], counted[GpuHealth.UNKNOWN]) == (1, 1, 0)
    assert bench.registry.get_sample_value("gpuloom_node_agent_holders") == 2
