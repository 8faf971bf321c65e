"""Many pods at once on a real kube-scheduler, while Bindings go wrong and leaders die.

Who owned what is judged from the machines' journals, which their kubelets write: on nodes of NVIDIA's plugin
they pick devices at random and tell of them late.

GPULOOM_CLUSTER_NODES and GPULOOM_CLUSTER_PODS set the size.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuloom.catalog import load_catalog
from gpuloom.kube.client import KubeClient
from gpuloom.kube.objects import JsonObject
from gpuloom.model.gpu import MILLI_PER_GPU
from gpuloom.model.node import NodeMode
from gpuloom.names import RESOURCE_GPU_MILLI
from gpuloom.runtime.clock import SystemClock
from gpuloom.sim.machines.cluster import plan_machines
from gpuloom.sim.machines.hardware import MachineSpec
from gpuloom.sim.machines.journal import EntryKind, read_journal
from gpuloom.sim.machines.machine import Machine
from tests.cluster.api_proxy import UNTOUCHED, Fate, Treatment
from tests.cluster.binaries import Binaries
from tests.cluster.control_plane import open_control_plane
from tests.cluster.gpu_pods import (
    a_crowd,
    a_gpu_pod,
    all_pods,
    create_all,
    create_namespace,
    has_started,
    is_bound,
    sliced,
)
from tests.cluster.mesh import open_mesh
from tests.cluster.nodes.pods import describe
from tests.cluster.replicas import ReplicaOptions, ReplicatedMesh, open_replicated_mesh
from tests.cluster.scale import in_soak, size_of
from tests.cluster.test_end_to_end import until

pytestmark = [pytest.mark.real, pytest.mark.timeout(in_soak(3600, 600))]

CLOCK = SystemClock()
NODE_COUNT = size_of("GPULOOM_CLUSTER_NODES", 1000, 30)
POD_COUNT = size_of("GPULOOM_CLUSTER_PODS", 2000, 150)
PATIENCE_S = 120.0 + POD_COUNT
# Lists of thousands of pods, one right after the other, would load the API server as no user does.
LOOK_EVERY_S = POD_COUNT / 2000
# This process is also the proxy on the way of leases, which must not wait behind more than these.
CREATED_AT_ONCE = 20

# One Binding in three goes wrong. The extender gives one up after 4 s.
_MISHAPS = {
    Treatment(Fate.FAIL): 6,
    Treatment(Fate.FAIL_APPLIED): 6,
    Treatment(Fate.CONFLICT): 6,
    Treatment(Fate.TWICE): 6,
    Treatment(Fate.SILENT, 6.0): 5,
    Treatment(Fate.LATE, 6.0): 5,
}


async def test_sixteen_halves_at_once_lie_two_on_each_of_eight_cards(
    binaries: Binaries, tmp_path: Path
) -> None:
    machine = eight_cards(NodeMode.GPULOOM)
    halves = [a_gpu_pod(f"half-{number:02d}", {RESOURCE_GPU_MILLI: "500"}) for number in range(16)]
    async with (
        open_control_plane(binaries, tmp_path / "plane", CLOCK) as plane,
        open_mesh(plane, [machine], CLOCK) as mesh,
        plane.client() as client,
    ):
        await create_namespace(client)
        await create_all(client, halves)
        await until_started(client, len(halves))

        report, owners = mesh.audit(), owners_by_card(mesh.machine(machine.node))
        assert report.findings == ()
        assert report.refusals == ()
        assert sorted(owners.values()) == [2] * 8


async def test_no_card_has_two_owners_and_no_pod_is_lost_while_bindings_fail_and_two_leaders_die(
    binaries: Binaries, tmp_path: Path
) -> None:
    machines = sliced(plan_machines(NODE_COUNT, seed=4))
    options = ReplicaOptions(treat=mishaps(seed=7))
    async with (
        open_control_plane(binaries, tmp_path / "plane", CLOCK) as plane,
        open_replicated_mesh(plane, machines, CLOCK, options) as opened,
        plane.client() as client,
    ):
        await create_namespace(client)
        async with asyncio.TaskGroup() as meanwhile:
            meanwhile.create_task(create_by_and_by(client, a_crowd(POD_COUNT)))
            killed = await kill_two_leaders(opened, client)
        took_s = await until_started(client, POD_COUNT)

        report, fates = opened.mesh.audit(), Counter(binding.fate for binding in opened.api.bindings)
        restarts = {name: opened.mesh.supervisor.restarts(name) for name in opened.mesh.extenders}
        said = ", ".join(f"{count} {fate}" for fate, count in fates.items())
        print(f"\n{POD_COUNT} pods, {NODE_COUNT} nodes: {took_s:.0f} s after the second kill; {said}")  # noqa: T201
        assert report.findings == ()
        assert report.refusals == ()
        assert report.starts == POD_COUNT
        assert set(fates) == set(Fate)
        assert restarts == Counter(killed)
        assert opened.mesh.denied_calls() == []


async def create_by_and_by(client: KubeClient, pods: list[JsonObject]) -> None:
    for first in range(0, len(pods), CREATED_AT_ONCE):
        await create_all(client, pods[first : first + CREATED_AT_ONCE])


async def kill_two_leaders(opened: ReplicatedMesh, client: KubeClient) -> list[str]:
    """One when a quarter of the pods is bound, one when half of them are. Who they were."""
    killed: list[str] = []
    for quarter in (1, 2):
        enough = POD_COUNT * quarter // 4
        await until(lambda: bound(client, enough), PATIENCE_S, LOOK_EVERY_S)  # noqa: B023
        killed.append(await opened.leader(other_than=killed[-1] if killed else ""))
        opened.mesh.supervisor.kill(killed[-1])
    return killed


def mishaps(seed: int) -> Callable[[str], Treatment]:
    """Equal seeds give the nth Binding the same treatment. A pod that had three of them is left in peace."""
    chance, suffered = random.Random(seed), Counter[str]()
    treatments = [UNTOUCHED, *_MISHAPS]
    weights = [100 - sum(_MISHAPS.values()), *_MISHAPS.values()]

    def treat(pod: str) -> Treatment:
        (treatment,) = chance.choices(treatments, weights)
        if suffered[pod] >= 3:
            return UNTOUCHED
        suffered[pod] += treatment is not UNTOUCHED
        return treatment

    return treat


async def bound(client: KubeClient, count: int) -> bool:
    return sum(map(is_bound, await all_pods(client))) >= count


async def until_started(client: KubeClient, count: int) -> float:
    """How long it took. Raise AssertionError with those that did not start."""

    async def all_started() -> bool:
        pods = await all_pods(client)
        return len(pods) == count and all(map(has_started, pods))

    try:
        return await until(all_started, PATIENCE_S, LOOK_EVERY_S)
    except TimeoutError:
        waiting = [pod for pod in await all_pods(client) if not has_started(pod)]
        raise AssertionError(
            f"{len(waiting)} pods did not start: {list(map(describe, waiting[:5]))}"
        ) from None


def owners_by_card(machine: Machine) -> Counter[str]:
    """How many pods hold a part of each card now, by the journal."""
    owners: Counter[str] = Counter()
    for entry in read_journal(machine.journal_path).entries:
        step = {EntryKind.START: 1, EntryKind.END: -1}.get(entry.kind, 0)
        for held in entry.devices:
            assert held.milli * 2 == MILLI_PER_GPU
            owners[held.device.gpu_uuid] += step
    return owners


def eight_cards(mode: NodeMode) -> MachineSpec:
    kind = load_catalog().instance("aws", "p4d.24xlarge")
    return MachineSpec(
        node="eight",
        mode=mode,
        gpu_model=kind.gpu.name,
        gpu_count=kind.gpu_count,
        topology=kind.shape.name,
        cpu_cores=kind.vcpus,
        memory_gib=kind.memory_gib,
    )
