"""Changes of layouts where the driver lies, hangs, refuses half of it, or has what nobody asked for."""

import asyncio
import os
import stat
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from gpuloom.catalog import load_catalog
from gpuloom.errors import UnavailableError
from gpuloom.model.layout import ChangeState, LayoutRequest
from gpuloom.model.mig import MigPlacement
from gpuloom.runtime.clock import SystemClock
from services.node_agent.delivery.cdi_folders import CdiFolders
from services.node_agent.layout.adapters.device_files import DevicePlaces, NvidiaDeviceFiles
from services.node_agent.layout.adapters.nvml import NvmlLayoutOptions, NvmlLayouts
from services.node_agent.nvml.driver import NvmlDriver
from tests.contract.layout.rigs import Agent, StandinRig
from tests.nvml.drivers import QUICK, Make, a_driver
from tests.nvml.library import Standin
from tests.nvml.machines import mig_machine, uuid

pytestmark = pytest.mark.real

SMALL, LARGE = MigPlacement(6, "1g.5gb"), MigPlacement(0, "3g.20gb")
UNKNOWN = 999
CREATE, CREATE_COMPUTE = "nvmlDeviceCreateGpuInstanceWithPlacement", "nvmlGpuInstanceCreateComputeInstance"

Rigged = Callable[..., StandinRig]


@pytest.fixture
def rigged(machine: Make, tmp_path: Path) -> Rigged:
    def make(*instances: str, **keys: object) -> StandinRig:
        standin = machine(mig_machine(1) | {name.replace("__", "."): value for name, value in keys.items()})
        standin.put_instances(*instances)
        return StandinRig(tmp_path, standin)

    return make


def create(*places: MigPlacement, destroy: tuple[MigPlacement, ...] = ()) -> LayoutRequest:
    return LayoutRequest("c1", uuid(0), None, destroy, places)


async def test_an_instance_that_the_driver_only_claims_to_have_made_is_undone(rigged: Rigged) -> None:
    rig = rigged("0 1 19 6 1 1 MIG-a")
    agent = await Agent.start(rig)
    rig.standin.set({f"gpu.0.lie.{CREATE}": 1})

    change = await agent.change(create(LARGE))
    places = await agent.places()
    await rig.close()

    assert change.state is ChangeState.ROLLED_BACK
    assert "create 3g.20gb at 0" in change.reason
    assert places == {SMALL}


async def test_half_an_instance_does_not_stay(rigged: Rigged) -> None:
    """The GPU instance is made and its compute instance is refused."""
    rig = rigged("0 1 19 6 1 1 MIG-a", **{f"gpu__0__fault__{CREATE_COMPUTE}": UNKNOWN})
    agent = await Agent.start(rig)

    change = await agent.change(create(LARGE))
    layout = await agent.layout()
    await rig.close()

    assert change.state is ChangeState.ROLLED_BACK
    assert layout.placements == (SMALL,)


async def test_a_change_that_can_neither_be_made_nor_undone_is_told_and_adopted(rigged: Rigged) -> None:
    rig = rigged(**{f"gpu__0__fault__{CREATE_COMPUTE}": UNKNOWN})
    rig.standin.set({"gpu.0.lie.nvmlGpuInstanceDestroy": 1})
    agent = await Agent.start(rig)

    change = await agent.change(create(LARGE))
    rig.standin.unset("gpu.0.lie.nvmlGpuInstanceDestroy", f"gpu.0.fault.{CREATE_COMPUTE}")
    again = await agent.change(LayoutRequest("c2", uuid(0), None, (), (LARGE,)))
    layout = await agent.layout()
    await rig.close()

    assert change.state is ChangeState.STUCK
    assert "undoing it failed" in change.reason
    assert again.state is ChangeState.DONE
    assert layout.usable == {LARGE}


async def test_a_call_that_hangs_leaves_the_gpu_marked_until_it_is_known_what_it_did(rigged: Rigged) -> None:
    rig = rigged()
    rig.standin.set({f"gpu.0.hang.{CREATE}": 1})
    agent = await Agent.start(rig)
    working = asyncio.create_task(agent.layouts.run())

    asking = asyncio.create_task(agent.layouts.change(create(LARGE)))
    await asyncio.sleep(1.5)
    (under_way,) = (await agent.layouts.list_now()).changes
    rig.standin.release_hangs()
    asking.cancel()
    working.cancel()
    await asyncio.gather(working, asking, return_exceptions=True)
    async with asyncio.timeout(10):
        # The thread that hung has to come back first.
        while not (await (later := await Agent.start(rig)).layouts.list_now()).changes[0].state.ended:
            continue
    places = await later.places()
    await rig.close()

    assert not under_way.state.ended
    assert places in (set(), {LARGE})


async def test_instances_that_nobody_asked_for_are_adopted_and_survive_a_boot(rigged: Rigged) -> None:
    rig = rigged("0 1 9 0 4 1 MIG-foreign")
    agent = await Agent.start(rig)
    await agent.change(create(SMALL))
    rig.boot()

    places = await (await Agent.start(rig)).places()
    await rig.close()

    assert places == {SMALL, LARGE}


async def test_what_a_boot_left_half_made_again_is_completed_and_not_taken_apart(rigged: Rigged) -> None:
    rig = rigged()
    await (await Agent.start(rig)).change(create(LARGE))
    rig.boot()
    rig.standin.set({f"gpu.0.fault.{CREATE_COMPUTE}": UNKNOWN})
    half = await Agent.start(rig)
    closed = [gpu.changing for gpu in half.node.state.gpus]
    rig.standin.unset(f"gpu.0.fault.{CREATE_COMPUTE}")

    whole = await Agent.start(rig)
    places, calls = await whole.places(), rig.standin.calls()
    await rig.close()

    assert all(closed)
    assert places == {LARGE}
    assert not any(gpu.changing for gpu in whole.node.state.gpus)
    assert calls.get("nvmlGpuInstanceDestroy", 0) == 0


async def test_a_mode_that_does_not_take_is_not_believed(rigged: Rigged) -> None:
    rig = rigged(all__mig__mode=0, all__architecture=9)
    rig.standin.set({"gpu.0.lie.nvmlDeviceSetMigMode": 1})
    agent = await Agent.start(rig)

    change = await agent.change(LayoutRequest("c1", uuid(0), True, (), (LARGE,)))
    layout = await agent.layout()
    await rig.close()

    assert change.state is ChangeState.ROLLED_BACK
    assert "switch MIG mode on" in change.reason
    assert not layout.mig_enabled


async def test_an_ampere_gpu_is_reset_while_nobody_has_the_driver_open(machine: Make, tmp_path: Path) -> None:
    standin = machine(mig_machine(2) | {"all.mig.mode": 0, "all.architecture": 7})
    script = tmp_path / "reset"
    script.write_text(
        f"#!/bin/sh\necho \"$1\" > {tmp_path}/was-reset\necho '0 mig.mode 1' >> {standin.path}.settings\n"
    )
    script.chmod(0o755)
    async with a_driver() as driver:
        layouts = NvmlLayouts(driver, SystemClock(), NvmlLayoutOptions((str(script),)))
        before = await layouts.read_layout(uuid(0))
        await layouts.set_mode(uuid(0), True)
        after = await layouts.read_layout(uuid(0))
        calls = standin.calls()

    assert (before.mig_capable, before.mig_enabled, after.mig_enabled) == (True, False, True)
    assert {profile.name for profile in before.profiles} >= {"1g.5gb", "7g.40gb"}
    assert (tmp_path / "was-reset").read_text().strip() == uuid(0)
    assert calls["nvmlShutdown"] == 1
    assert calls["nvmlInitWithFlags"] == 2


async def test_a_gpu_that_is_gone_is_told_so(machine: Make) -> None:
    machine(mig_machine(1))
    async with a_driver() as driver:
        layouts = NvmlLayouts(driver, SystemClock())

        with pytest.raises(UnavailableError, match="does not show this GPU"):
            await layouts.read_layout("GPU-other")


@pytest.mark.skipif(os.geteuid() != 0, reason="making device files needs root")
async def test_a_new_slice_can_be_delivered_at_once(machine: Make, tmp_path: Path) -> None:
    standin: Standin = machine(mig_machine(1))
    proc, cdi = tmp_path / "state.proc", tmp_path / "cdi"
    proc.mkdir()
    (proc / "devices").write_text("Character devices:\n195 nvidia\n240 nvidia-caps\n")
    (tmp_path / "dev").mkdir()
    os.mknod(tmp_path / "dev/nvidia0", stat.S_IFCHR | 0o666, os.makedev(195, 0))
    cdi.mkdir()
    base = {
        "cdiVersion": "0.6.0",
        "kind": "nvidia.com/gpu",
        "devices": [{"name": uuid(0), "containerEdits": {"deviceNodes": [{"path": "/dev/null"}]}}],
        "containerEdits": {"env": ["NVIDIA_DRIVER=there"]},
    }
    (cdi / "nvidia.json").write_bytes(orjson.dumps(base))
    async with NvmlDriver(load_catalog(), SystemClock(), QUICK) as driver:
        layouts = NvmlLayouts(driver, SystemClock())
        await layouts.create(uuid(0), SMALL)
        layout = await layouts.read_layout(uuid(0))
        files = NvidiaDeviceFiles(driver, DevicePlaces(proc, tmp_path / "dev", (cdi,), "nvidia.com/gpu"))
        await files.publish((layout,))
        folders = CdiFolders((cdi,))
        folders.scan()
        edits = folders.edits("nvidia.com/gpu", (layout.instances[0].uuid,))
        await layouts.destroy(uuid(0), SMALL)
        await files.publish((await layouts.read_layout(uuid(0)),))

    assert [node.path for node in edits.nodes] == [
        "/dev/nvidia0",
        "/dev/nvidia-caps/nvidia-cap5",
        "/dev/nvidia-caps/nvidia-cap6",
    ]
    assert [(node.numbers.major, node.numbers.minor) for node in edits.nodes if node.numbers] == [
        (195, 0),
        (240, 5),
        (240, 6),
    ]
    assert edits.environment == (("NVIDIA_DRIVER", "there"),)
    assert sorted(path.name for path in cdi.iterdir()) == ["nvidia.json"]
    assert standin.calls()["nvmlGpuInstanceDestroy"] == 1
