"""The host's processes, from a folder that looks like /proc."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.errors import UnavailableError
from services.node_agent.attribution import host_processes
from services.node_agent.attribution.host_processes import HostProcesses
from services.node_agent.ports import ProcessOwner

UID = "6f1c1d3e-8b9a-4c5d-9e0f-112233445566"
OTHER = "aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee"
ID = "c0ffee" + "0" * 58


class Proc:
    """A folder with processes; that of a host shows the kernel's threads."""

    def __init__(self, folder: Path, *, host: bool = True) -> None:
        self.folder = folder
        if host:
            (folder / "2").mkdir(parents=True)
            (folder / "2" / "comm").write_text("kthreadd\n")

    def run(self, pid: int, uid: str = UID, name: bytes = b"python3", started: int = 77) -> None:
        path = self.folder / str(pid)
        path.mkdir(parents=True, exist_ok=True)
        fields = b" ".join([b"S", *[b"0"] * 18, str(started).encode(), *[b"0"] * 30])
        (path / "stat").write_bytes(str(pid).encode() + b" (" + name + b") " + fields + b"\n")
        self.move(pid, f"/kubepods/pod{uid}/{ID}" if uid else "/system.slice/x.service")

    def move(self, pid: int, path: str) -> None:
        (self.folder / str(pid) / "cgroup").write_text(f"0::{path}\n")


async def test_processes_are_told_with_their_pods(tmp_path: Path) -> None:
    proc = Proc(tmp_path)
    proc.run(100)
    proc.run(200, uid="", name=b"Xorg")

    owners = await HostProcesses(tmp_path).owners([100, 200, 300])

    assert owners == {100: ProcessOwner("python3", UID, ID), 200: ProcessOwner("Xorg")}


@pytest.mark.parametrize(
    ("name", "shown"),
    [(b"a) R 1 (b", "a) R 1 (b"), (b"", ""), (b"\xff\xfe", "��"), (b"x y", "x y")],
)
async def test_a_process_may_call_itself_anything(tmp_path: Path, name: bytes, shown: str) -> None:
    Proc(tmp_path).run(100, name=name)

    owners = await HostProcesses(tmp_path).owners([100])

    assert owners == {100: ProcessOwner(shown, UID, ID)}


async def test_a_number_that_is_used_again_is_another_process(tmp_path: Path) -> None:
    proc = Proc(tmp_path)
    table = HostProcesses(tmp_path)
    proc.run(100)
    before = await table.owners([100])

    proc.run(100, uid=OTHER, started=99)
    after = await table.owners([100])

    assert (before[100].pod_uid, after[100].pod_uid) == (UID, OTHER)


async def test_the_control_group_of_a_process_is_read_once(tmp_path: Path) -> None:
    proc = Proc(tmp_path)
    table = HostProcesses(tmp_path)
    proc.run(100)
    await table.owners([100])

    proc.move(100, "/elsewhere")

    assert (await table.owners([100]))[100].pod_uid == UID


async def test_a_process_that_gives_way_to_another_while_it_is_read_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proc = Proc(tmp_path)
    proc.run(100)
    read = host_processes._read_bounded

    def read_and_replace(path: Path, limit: int) -> bytes | None:
        content = read(path, limit)
        if path.name == "cgroup":
            proc.run(100, uid=OTHER, started=99)
        return content

    monkeypatch.setattr(host_processes, "_read_bounded", read_and_replace)

    assert await HostProcesses(tmp_path).owners([100]) == {}


async def test_without_the_host_s_processes_it_says_what_to_set(tmp_path: Path) -> None:
    Proc(tmp_path, host=False).run(1)

    with pytest.raises(UnavailableError, match=r"hostPID: true.*GPULOOM_AGENT_PROC_DIR"):
        await HostProcesses(tmp_path).owners([4000])
    with pytest.raises(UnavailableError, match="hostPID"):
        await HostProcesses(tmp_path / "missing").owners([4000])


async def test_a_host_whose_gpu_processes_all_ended_is_still_a_host(tmp_path: Path) -> None:
    Proc(tmp_path / "host")
    nested = Proc(tmp_path / "nested", host=False)
    nested.run(100)
    table = HostProcesses(tmp_path / "nested")
    await table.owners([100])

    assert await HostProcesses(tmp_path / "host").owners([4000]) == {}
    assert await table.owners([4000]) == {}


async def test_nobody_asked_for_is_nobody_looked_up(tmp_path: Path) -> None:
    assert await HostProcesses(tmp_path / "missing").owners([0, -1]) == {}


async def test_more_processes_than_a_node_runs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="more than a node can run"):
        await HostProcesses(tmp_path).owners(range(1, 20_002))


async def test_a_file_without_end_is_not_read_whole(tmp_path: Path) -> None:
    proc = Proc(tmp_path)
    proc.run(100)
    (tmp_path / "100" / "cgroup").unlink()
    (tmp_path / "100" / "cgroup").symlink_to("/dev/zero")

    owners = await HostProcesses(tmp_path).owners([100])

    assert owners == {100: ProcessOwner("python3")}


async def test_the_present_process_is_found_in_the_real_proc() -> None:
    owners = await HostProcesses().owners([os.getpid()])

    assert set(owners) == {os.getpid()}


@given(st.binary(max_size=200))
def test_no_stat_is_too_strange(content: bytes) -> None:
    parsed = host_processes._parse_stat(content)

    assert parsed is None or parsed.started >= 0
