import asyncio
import os
import signal
import sys
from pathlib import Path
from unittest.mock import patch

import aiohttp
import pytest

from gpuloom.runtime.clock import FakeClock
from gpuloom.sim.kubeapi.__main__ import main
from gpuloom.sim.kubeapi.storage import journal as journal_module
from gpuloom.sim.kubeapi.storage.journal import Journal, StateError
from gpuloom.sim.kubeapi.verbs.store import Store

from .builders import PODS, Client, a_config_map, a_definition, a_pod, a_server, eventually

DEFINITIONS = "customresourcedefinitions.apiextensions.k8s.io"


def reopened(path: Path) -> tuple[Journal, Store]:
    journal, changes = Journal.open(path)
    return journal, Store(FakeClock(), changes=changes, sink=journal.append)


def content(store: Store) -> list[object]:
    return [store.select(resource) for resource in ("pods", "configmaps", "namespaces", DEFINITIONS)]


def test_all_objects_come_back_and_versions_go_on(tmp_path: Path) -> None:
    journal, store = reopened(tmp_path / "state")
    store.create("pods", a_pod("p"))
    store.create("configmaps", a_config_map("c"))
    store.delete("configmaps", "c")
    before, version = content(store), int(store.resource_version)
    journal.close()

    journal, again = reopened(tmp_path / "state")
    later = again.create("configmaps", a_config_map("d"))
    journal.close()

    assert before[0] == again.select("pods")
    assert int(later["metadata"]["resourceVersion"]) > version


def test_a_torn_last_line_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "state"
    journal, store = reopened(path)
    store.create("configmaps", a_config_map("whole"))
    size = path.stat().st_size
    store.create("configmaps", a_config_map("torn"))
    journal.close()

    for cut in (size + 1, size + 20, path.stat().st_size - 1):
        os.truncate(path, max(cut, size))
        journal, again = reopened(path)
        names = [one["metadata"]["name"] for one in again.select("configmaps")]
        again.create("configmaps", a_config_map("torn"))
        journal.close()

        assert names == ["whole"]


def test_damage_in_the_middle_refuses_to_load(tmp_path: Path) -> None:
    path = tmp_path / "state"
    journal, _ = reopened(path)
    journal.close()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)

    with pytest.raises(StateError, match="damaged at line"):
        Journal.open(path)


def test_a_file_of_something_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("my notes\n")

    with pytest.raises(StateError, match="not a state file"):
        Journal.open(path)

    assert path.read_text() == "my notes\n"


def test_two_processes_can_not_share_a_file(tmp_path: Path) -> None:
    journal, _ = reopened(tmp_path / "state")

    with pytest.raises(StateError, match="another process"):
        Journal.open(tmp_path / "state")

    journal.close()


async def test_compaction_keeps_the_state_and_what_changed_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "state"
    journal, store = reopened(path)
    store.create(DEFINITIONS, a_definition())
    store.create("widgets.example.com", {"metadata": {"name": "w"}})
    for number in range(300):
        store.create("configmaps", a_config_map(f"c{number}"))
        store.delete("configmaps", f"c{number}")
    size = path.stat().st_size

    compacting = asyncio.create_task(journal.compact(store.database.snapshot))
    await asyncio.sleep(0)
    store.create("configmaps", a_config_map("meanwhile"))
    await compacting
    store.create("configmaps", a_config_map("afterwards"))
    smaller = path.stat().st_size
    journal.close()
    journal, again = reopened(path)
    journal.close()

    assert smaller < size / 5
    assert content(again) == content(store)
    assert again.select("widgets.example.com") == store.select("widgets.example.com")
    assert again.resource_version == store.resource_version


async def test_a_growing_file_is_compacted_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "COMPACT_ABOVE_BYTES", 20_000)
    clock = FakeClock()
    journal, changes = Journal.open(tmp_path / "state")
    async with a_server(clock=clock, journal=journal, changes=changes) as (api, _):
        for number in range(200):
            api.store.create("configmaps", a_config_map(f"c{number}"))
            api.store.delete("configmaps", f"c{number}")
        size = (tmp_path / "state").stat().st_size
        await clock.advance(1)

        await eventually(lambda: (tmp_path / "state").stat().st_size < size / 2)


def test_a_write_that_fails_half_way_leaves_whole_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state"
    journal, store = reopened(path)
    real_write = os.write

    def fail_half_way(descriptor: int, data: memoryview) -> int:
        real_write(descriptor, data[: len(data) // 2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", fail_half_way)
    with pytest.raises(OSError, match="No space"):
        store.create("configmaps", a_config_map("lost"))
    monkeypatch.undo()
    store.create("configmaps", a_config_map("kept"))
    journal.close()
    journal, again = reopened(path)
    journal.close()

    assert [one["metadata"]["name"] for one in again.select("configmaps")] == ["kept"]


async def started(*arguments: str) -> tuple[asyncio.subprocess.Process, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gpuloom.sim.kubeapi", "--port", "0", *arguments, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    line = (await process.stdout.readline()).decode()
    return process, line.removeprefix("listening on ").strip()


async def test_a_killed_process_loses_no_acknowledged_write(tmp_path: Path) -> None:
    state = str(tmp_path / "state")
    acknowledged: list[str] = []

    async def write(client: Client, worker: int) -> None:
        for number in range(10_000):
            reply = await client.post(PODS, a_pod(f"p-{worker}-{number}"))
            acknowledged.append(reply.body["metadata"]["name"])

    async with aiohttp.ClientSession() as session:
        process, url = await started("--state", state)
        writers = [asyncio.create_task(write(Client(session, url), worker)) for worker in range(4)]
        await eventually(lambda: len(acknowledged) >= 100)
        process.kill()
        await process.wait()
        await asyncio.gather(*writers, return_exceptions=True)

        process, url = await started("--state", state)
        pods = (await Client(session, url).get(PODS)).body
        made = await Client(session, url).post(PODS, a_pod("next"))
        process.send_signal(signal.SIGTERM)
        code = await process.wait()

    kept = {pod["metadata"]["name"] for pod in pods["items"]}
    newest = max(int(pod["metadata"]["resourceVersion"]) for pod in pods["items"])
    assert set(acknowledged) <= kept
    assert int(made.body["metadata"]["resourceVersion"]) > newest
    assert code == 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--port", "70000"], "is not a port"),
        (["--port", "x"], "is not a port"),
        (["--prot", "1"], "--port"),
    ],
)
def test_a_wrong_option_is_one_clear_line(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)

    assert ended.value.code == 2
    assert text in capsys.readouterr().err


def test_files_that_can_not_be_used_are_one_clear_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "token"
    empty.write_text("")

    codes = [
        main(["--port", "0", "--token-file", str(tmp_path / "missing")]),
        main(["--port", "0", "--token-file", str(empty)]),
        main(["--port", "0", "--state", str(tmp_path / "no" / "folder" / "state")]),
    ]

    errors = capsys.readouterr().err.splitlines()
    assert codes == [1, 1, 1]
    assert len(errors) == 3
    assert all(line.startswith("kubeapi: ") for line in errors)


async def test_a_taken_port_is_one_clear_line(capsys: pytest.CaptureFixture[str]) -> None:
    async with a_server() as (api, _):
        port = api.url.rpartition(":")[2]

        code = await asyncio.to_thread(main_without_signals, ["--port", port])

    assert code == 1
    assert "address already in use" in capsys.readouterr().err


def main_without_signals(arguments: list[str]) -> int:
    """Signals belong to the main thread; nothing else of `main` cares which thread it runs in."""
    with patch("gpuloom.sim.kubeapi.__main__._stop_on_signals", asyncio.Event):
        return main(arguments)
