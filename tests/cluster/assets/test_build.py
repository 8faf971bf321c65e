"""What is built, and how; a script stands for Go."""

import json
from pathlib import Path

import pytest

from tests.cluster.assets.build import (
    CONTROL_PLANE,
    DEVICE_PLUGIN,
    HELM,
    NETWORK,
    NODE,
    PROGRAMS,
    VERSIONS_FILE,
    main,
)

A_GO = """#!/bin/sh
while [ $# -gt 1 ]; do
  [ "$1" = -o ] && target=$2
  shift
done
echo "$1 cgo=$CGO_ENABLED" >"$target"
[ "$1" = "$FAIL" ] && exit 1
/bin/chmod +x "$target"
"""


@pytest.fixture(autouse=True)
def _go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go = tmp_path / "path" / "go"
    go.parent.mkdir()
    go.write_text(A_GO)
    go.chmod(0o755)
    monkeypatch.setenv("PATH", str(go.parent))


def build(folder: Path, *arguments: str) -> int:
    return main([*arguments, "--folder", str(folder)])


def built(folder: Path) -> dict[str, str]:
    """What was written for each program of the folder."""
    return {name: (folder / name).read_text().strip() for name in PROGRAMS if (folder / name).exists()}


def test_a_folder_that_lacks_one_program_gets_that_one_and_keeps_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert build(tmp_path / "made", "--nodes") == 0
    for name in (*CONTROL_PLANE, *NODE):
        (tmp_path / "made" / name).write_text("kept")
    (tmp_path / "made" / DEVICE_PLUGIN).unlink()
    capsys.readouterr()

    code = build(tmp_path / "made", "--nodes")

    said = capsys.readouterr()
    assert (code, said.out) == (0, f"{tmp_path / 'made'}\n")
    assert f"[1/1] building {DEVICE_PLUGIN} {PROGRAMS[DEVICE_PLUGIN].version()}" in said.err
    rebuilt = {name for name, content in built(tmp_path / "made").items() if content != "kept"}
    assert rebuilt == {DEVICE_PLUGIN}


def test_another_version_is_built_anew(tmp_path: Path) -> None:
    build(tmp_path / "made", "etcd")
    (tmp_path / "made" / VERSIONS_FILE).write_text(json.dumps({"etcd": "0.0.1"}))
    (tmp_path / "made" / "etcd").write_text("old")

    build(tmp_path / "made", "etcd")

    assert built(tmp_path / "made")["etcd"] != "old"
    assert json.loads((tmp_path / "made" / VERSIONS_FILE).read_text()) == {"etcd": PROGRAMS["etcd"].version()}


def test_nodes_add_their_programs_and_only_the_device_plugin_is_partly_c(tmp_path: Path) -> None:
    build(tmp_path / "plain")
    build(tmp_path / "nodes", "--nodes")

    with_c = {name for name, content in built(tmp_path / "nodes").items() if content.endswith("cgo=1")}
    assert set(built(tmp_path / "plain")) == set(CONTROL_PLANE)
    assert set(built(tmp_path / "nodes")) == {*CONTROL_PLANE, *NODE}
    assert with_c == {DEVICE_PLUGIN}


def test_a_network_and_helm_add_their_programs(tmp_path: Path) -> None:
    build(tmp_path / "made", "--nodes", "--network", "--helm")

    assert set(built(tmp_path / "made")) == set(PROGRAMS) == {*CONTROL_PLANE, *NODE, *NETWORK, HELM}


def test_a_build_that_fails_leaves_no_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIL", PROGRAMS[DEVICE_PLUGIN].package)

    code = build(tmp_path / "made", DEVICE_PLUGIN)

    assert code == 1
    assert built(tmp_path / "made") == {}
