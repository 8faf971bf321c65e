"""MPS daemons and time slices, with a stand-in for NVIDIA's programs."""

import asyncio
import shutil
import stat
import sys
from pathlib import Path

import pytest

from gpuloom.model.gpu import SharingMode
from gpuloom.model.layout import Sharing
from gpuloom.runtime.clock import SystemClock
from services.node_agent.layout.adapters.mps import MpsDaemons, MpsOptions
from services.node_agent.layout.ports import StepError
from tests.mesh.waiting import until
from tests.nvml.drivers import Make, a_driver
from tests.nvml.machines import some_gpus, uuid

pytestmark = pytest.mark.real

CONTROL = """#!{python}
import os, pathlib, sys, time
pipe = pathlib.Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
alive, threads = pipe / "alive", pipe / "threads"
if sys.argv[1:] == ["-f"]:
    alive.write_text(os.environ["CUDA_VISIBLE_DEVICES"])
    while alive.exists():
        time.sleep(0.01)
    sys.exit(0)
if not alive.exists():
    sys.exit(1)
command = sys.stdin.read().split()
slow = pipe / "slow"
if slow.exists():
    slow.unlink()
    time.sleep(0.5)
    sys.exit(0 if alive.exists() else 1)
if command[0] == "quit" and (pipe / "keeps").exists():
    sys.exit(1)
if command[0] == "set_default_active_thread_percentage":
    threads.write_text(command[1])
elif command[0] == "get_default_active_thread_percentage":
    print(f"{{float(threads.read_text()) if threads.exists() else 100.0}}")
elif command[0] == "quit":
    alive.unlink()
"""


def options(folder: Path, boot: str = "1") -> MpsOptions:
    control, smi = folder / "control", folder / "smi"
    control.write_text(CONTROL.format(python=sys.executable))
    smi.write_text(f'#!/bin/sh\necho "$@" >> {folder}/smi.log\n')
    for program in (control, smi):
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return MpsOptions(folder / "mps", str(control), str(smi), lambda: boot)


async def test_a_daemon_of_one_gpu_starts_with_its_limits_and_is_started_again_if_it_dies(
    machine: Make, tmp_path: Path
) -> None:
    standin = machine(some_gpus(2))
    wanted = Sharing(SharingMode.MPS, thread_percentage=25, memory_mib=4096)
    async with a_driver() as driver:
        daemons = MpsDaemons(driver, SystemClock(), options(tmp_path))
        await daemons.start(uuid(1), wanted)
        started = await daemons.read(uuid(1)), await daemons.read(uuid(0))
        pipe = tmp_path / "mps" / uuid(1) / "pipe"
        exclusive = standin.path.with_name("state.settings").read_text()
        (pipe / "alive").unlink()
        dead = await daemons.read(uuid(1))
        deaths = await daemons.tend(lambda gpu: ("team/a", "team/b"))
        again = await daemons.read(uuid(1))
        await daemons.stop(uuid(1))
        stopped = await daemons.read(uuid(1))

    assert started == (wanted, Sharing())
    assert "1 compute_mode 3" in exclusive
    assert (dead, deaths, again, stopped) == (Sharing(), 1, wanted, Sharing())


async def test_a_daemon_that_can_not_be_started_again_dies_once_and_its_agent_lives(
    machine: Make, tmp_path: Path
) -> None:
    machine(some_gpus(1))
    async with a_driver() as driver:
        daemons = MpsDaemons(driver, SystemClock(), options(tmp_path))
        await daemons.start(uuid(0), Sharing(SharingMode.MPS))
        folder = tmp_path / "mps" / uuid(0)
        (folder / "pipe/alive").unlink()
        shutil.rmtree(folder / "pipe")
        (folder / "pipe").write_text("in the way")
        deaths = [await daemons.tend(lambda gpu: ()) for _ in range(2)]
        (folder / "pipe").unlink()
        await daemons.tend(lambda gpu: ())
        again = await daemons.read(uuid(0))
        await daemons.stop(uuid(0))

    assert deaths == [1, 0]
    assert again.mode is SharingMode.MPS


async def test_a_daemon_that_is_stopped_while_it_is_looked_after_is_not_started_again(
    machine: Make, tmp_path: Path
) -> None:
    standin = machine(some_gpus(1))
    async with a_driver() as driver:
        daemons = MpsDaemons(driver, SystemClock(), options(tmp_path))
        await daemons.start(uuid(0), Sharing(SharingMode.MPS))
        pipe = tmp_path / "mps" / uuid(0) / "pipe"
        (pipe / "slow").touch()
        tending = asyncio.create_task(daemons.tend(lambda gpu: ()))
        await until(lambda: not (pipe / "slow").exists())

        await daemons.stop(uuid(0))
        deaths = await tending
        is_alive = (pipe / "alive").exists()
        modes = standin.path.with_name("state.settings").read_text().split("compute_mode ")

    assert (deaths, is_alive) == (0, False)
    assert modes[-1].strip() == "0", "the GPU takes one process at a time, and nobody serves more"


async def test_a_daemon_that_can_not_be_stopped_is_still_told_of(machine: Make, tmp_path: Path) -> None:
    machine(some_gpus(1))
    wanted = Sharing(SharingMode.MPS)
    async with a_driver() as driver:
        daemons = MpsDaemons(driver, SystemClock(), options(tmp_path))
        await daemons.start(uuid(0), wanted)
        keeps = tmp_path / "mps" / uuid(0) / "pipe/keeps"
        keeps.touch()
        with pytest.raises(StepError):
            await daemons.stop(uuid(0))
        after = await daemons.read(uuid(0))
        keeps.unlink()
        await daemons.stop(uuid(0))
        in_the_end = await daemons.read(uuid(0))

    assert (after, in_the_end) == (wanted, Sharing())


async def test_a_time_slice_is_set_and_forgotten_with_the_boot(machine: Make, tmp_path: Path) -> None:
    machine(some_gpus(1))
    wanted = Sharing(SharingMode.TIME_SLICING, time_slice=2)
    async with a_driver() as driver:
        await MpsDaemons(driver, SystemClock(), options(tmp_path)).start(uuid(0), wanted)
        kept = await MpsDaemons(driver, SystemClock(), options(tmp_path)).read(uuid(0))
        later = await MpsDaemons(driver, SystemClock(), options(tmp_path, "2")).read(uuid(0))

    assert (kept, later) == (wanted, Sharing())
    assert f"compute-policy -i {uuid(0)} --set-timeslice=2" in (tmp_path / "smi.log").read_text()


async def test_a_program_that_is_not_there_is_told(machine: Make, tmp_path: Path) -> None:
    machine(some_gpus(1))
    async with a_driver() as driver:
        daemons = MpsDaemons(driver, SystemClock(), MpsOptions(tmp_path, "/nonexistent/control"))

        with pytest.raises(StepError, match="can't be run"):
            await daemons.start(uuid(0), Sharing(SharingMode.MPS))
