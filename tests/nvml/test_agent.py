"""The whole agent as a process of its own, on the stand-in library that its loader finds."""

import asyncio
import os
import shutil
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gpuloom.model.gpu import DeviceRef, GpuHealth
from gpuloom.model.mig import MigPlacement
from gpuloom.model.node import Delivery, NodeMode, NodeState
from gpuloom.rpc.dev_ca import tls_files
from tests.mesh.node_agent.builders import Mesh, a_mesh
from tests.mesh.node_agent.test_agent import first, free_ports, states_at
from tests.mesh.waiting import until
from tests.nvml.library import STATE_VARIABLE, Standin, compile_library
from tests.nvml.machines import GPU_IS_LOST, mig_machine, nvswitch_machine, seven_each, some_gpus, uuid
from tests.unit.node_agent.test_adapters import Lister, a_kubelet, a_pod_with

pytestmark = pytest.mark.real

UNINITIALIZED, DRIVER_NOT_LOADED = 1, 9


@asynccontextmanager
async def an_agent(mesh: Mesh, standin: Standin, library: Path, mode: NodeMode) -> AsyncIterator[int]:
    """The port of an agent for node n1."""
    port = free_ports(1)[0]
    files = tls_files(mesh.folder, "node_agent")
    environ = {
        "PATH": os.environ["PATH"],
        "LD_LIBRARY_PATH": str(library.parent),
        STATE_VARIABLE: str(standin.path),
        "GPULOOM_NODE_NAME": "n1",
        "GPULOOM_AGENT_DRIVER": "nvml",
        "GPULOOM_AGENT_MODE": mode.value,
        "GPULOOM_KUBELET_SOCKET": str(mesh.folder / "kubelet.sock"),
        "GPULOOM_AGENT_DELIVERY": "off",
        "GPULOOM_AGENT_SAMPLE_INTERVAL": "50ms",
        "GPULOOM_AGENT_HEARTBEAT_INTERVAL": "200ms",
        "GPULOOM_GRPC_HOST": "127.0.0.1",
        "GPULOOM_GRPC_PORT": str(port),
        "GPULOOM_HTTP_HOST": "127.0.0.1",
        "GPULOOM_HTTP_PORT": "0",
        "GPULOOM_KUBECONFIG": str(mesh.folder / "kubeconfig"),
        "GPULOOM_TLS_CERT_FILE": str(files.cert_file),
        "GPULOOM_TLS_KEY_FILE": str(files.key_file),
        "GPULOOM_TLS_CA_FILE": str(files.ca_file),
    }
    log = (mesh.folder / "agent.log").open("wb")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.node_agent", env=environ, stdout=log, stderr=log
    )
    log.close()
    try:
        await until(lambda: process.returncode is not None or listens(port))
        assert process.returncode is None, (mesh.folder / "agent.log").read_text()
        yield port
    finally:
        if process.returncode is None:
            process.terminate()
        code = await asyncio.wait_for(process.wait(), 15)
    assert code == 0, (mesh.folder / "agent.log").read_text()


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def test_the_state_stream_shows_what_nvml_and_the_kubelet_say(library: Path, tmp_path: Path) -> None:
    standin = Standin(tmp_path / "state", nvswitch_machine(16))
    pod = a_pod_with("train", **{"nvidia.com/gpu": [uuid(2), f"{uuid(3)}::1"]})
    async with a_mesh(tmp_path) as mesh, a_kubelet(tmp_path / "kubelet.sock", Lister(pod)):
        mesh.add_machine("n1", NodeMode.NVIDIA)
        async with (
            an_agent(mesh, standin, library, NodeMode.NVIDIA) as port,
            states_at(mesh, port) as states,
        ):
            whole = await first(states, lambda state: bool(state.holders) and state.topology is not None)
            standin.report_xid(5, 79)
            standin.set({"gpu.5.fault": GPU_IS_LOST})
            broken = await first(states, lambda state: state.gpus[5].health is GpuHealth.LOST)
            standin.unset("gpu.5.fault")
            back = await first(states, lambda state: state.gpus[5].health is GpuHealth.HEALTHY)

    assert (whole.mode, whole.delivery) == (NodeMode.NVIDIA, Delivery.DEVICE_PLUGIN)
    assert [gpu.uuid for gpu in whole.gpus] == [uuid(gpu) for gpu in range(16)]
    assert whole.topology is not None
    assert (whole.topology.nvswitch, set(whole.topology.nvlinks)) == (True, {12})
    assert whole.holders[0].devices == (DeviceRef(uuid(2)), DeviceRef(uuid(3)))
    assert [gpu.index for gpu in broken.gpus if gpu.health is not GpuHealth.HEALTHY] == [5]
    assert len(back.gpus) == 16
    assert standin.calls()["nvmlInitWithFlags"] == 1


async def test_slices_that_the_kubelet_gave_are_known_by_their_place(library: Path, tmp_path: Path) -> None:
    standin = Standin(tmp_path / "state", mig_machine(8))
    standin.put_instances(*seven_each(8))
    pod = a_pod_with("infer", **{"nvidia.com/mig-1g.5gb": ["MIG-1-6"]})
    async with a_mesh(tmp_path) as mesh, a_kubelet(tmp_path / "kubelet.sock", Lister(pod)):
        mesh.add_machine("n1", NodeMode.NVIDIA)
        async with (
            an_agent(mesh, standin, library, NodeMode.NVIDIA) as port,
            states_at(mesh, port) as states,
        ):
            state = await first(states, lambda state: bool(state.holders and state.gpus))

    assert [len(gpu.mig_instances) for gpu in state.gpus] == [7] * 8
    assert state.holders[0].devices == (DeviceRef(uuid(1), MigPlacement(6, "1g.5gb")),)


async def test_a_hung_call_stops_neither_heartbeats_nor_other_gpus(library: Path, tmp_path: Path) -> None:
    standin = Standin(tmp_path / "state", some_gpus(4))
    async with a_mesh(tmp_path) as mesh:
        mesh.add_machine("n1")
        async with (
            an_agent(mesh, standin, library, NodeMode.GPULOOM) as port,
            states_at(mesh, port) as states,
        ):
            await first(states, lambda state: powers(state) == [61.5] * 4)
            standin.set({"gpu.2.hang.nvmlDeviceGetPowerUsage": 1, "all.power_mw": 70000})
            during = await first(states, lambda state: powers(state) == [70.0, 70.0, None, 70.0])
            await heartbeat(states)
            standin.set({"all.power_mw": 80000})
            later = await first(states, lambda state: powers(state) == [80.0, 80.0, None, 80.0])
            standin.release_hangs()
            back = await first(states, lambda state: powers(state) == [80.0] * 4)

    assert [gpu.uuid for gpu in during.gpus] == [uuid(gpu) for gpu in range(4)]
    assert [gpu.health for gpu in later.gpus if gpu.index != 2] == [GpuHealth.HEALTHY] * 3
    assert [gpu.health for gpu in back.gpus] == [GpuHealth.HEALTHY] * 4


async def test_a_driver_that_is_restarted_under_the_agent_is_read_again(
    library: Path, tmp_path: Path
) -> None:
    standin = Standin(tmp_path / "state", some_gpus(2))
    async with a_mesh(tmp_path) as mesh:
        mesh.add_machine("n1")
        async with (
            an_agent(mesh, standin, library, NodeMode.GPULOOM) as port,
            states_at(mesh, port) as states,
        ):
            before = await first(states, lambda state: powers(state) == [61.5] * 2)
            standin.set({"all.fault": UNINITIALIZED, "fault.nvmlInitWithFlags": DRIVER_NOT_LOADED})
            away = await first(states, lambda state: "not loaded" in state.gpus[0].health_reason)
            standin.unset("all.fault", "fault.nvmlInitWithFlags")
            after = await first(states, lambda state: state.gpus[0].health is GpuHealth.HEALTHY)

    assert [gpu.health for gpu in away.gpus] == [GpuHealth.UNKNOWN] * 2
    assert after.gpus == before.gpus


async def test_without_a_driver_the_agent_is_up_says_what_to_do_and_keeps_trying(
    library: Path, tmp_path: Path
) -> None:
    standin = Standin(tmp_path / "state", some_gpus(2))
    missing = tmp_path / "driver" / library.name
    missing.parent.mkdir()
    async with a_mesh(tmp_path) as mesh:
        mesh.add_machine("n1")
        async with (
            an_agent(mesh, standin, missing, NodeMode.GPULOOM) as port,
            states_at(mesh, port) as states,
        ):
            without = await first(states, lambda state: bool(state.node_uid))
            await heartbeat(states)
            log = (mesh.folder / "agent.log").read_text()
            shutil.copy(library, missing.with_suffix(".new"))
            missing.with_suffix(".new").replace(missing)
            found = await first(states, lambda state: bool(state.gpus))

    assert without.gpus == ()
    assert "libnvidia-ml.so.1 was not found: install the NVIDIA driver" in log
    assert [gpu.health for gpu in found.gpus] == [GpuHealth.HEALTHY] * 2


def powers(state: NodeState) -> list[float | None]:
    return [usage.power_w for usage in state.usage]


async def heartbeat(states: AsyncIterator[NodeState | None]) -> None:
    """Wait for one."""
    async with asyncio.timeout(15):
        while await anext(states) is not None:
            pass


async def test_an_old_driver_gives_what_it_has_and_nothing_made_up(tmp_path: Path) -> None:
    library = compile_library(tmp_path / "old", "-DOLD_DRIVER")
    standin = Standin(tmp_path / "state", some_gpus(2) | {"gpu.1.remapped_rows": "0 1 1 0"})
    async with a_mesh(tmp_path) as mesh:
        mesh.add_machine("n1")
        async with (
            an_agent(mesh, standin, library, NodeMode.GPULOOM) as port,
            states_at(mesh, port) as states,
        ):
            state = await first(states, lambda state: len(state.gpus) == 2)

    # No recovery action to read: what waits for a reset is told by the rows.
    assert [gpu.health for gpu in state.gpus] == [GpuHealth.HEALTHY, GpuHealth.UNHEALTHY]
    # The old call counts reserved memory as used; temperature comes from the older function.
    assert (state.usage[0].memory_used_mib, state.usage[0].temperature_c) == (1536, 33.0)
    assert state.delivery is Delivery.NONE
    assert state.holders_unknown_reason != ""
