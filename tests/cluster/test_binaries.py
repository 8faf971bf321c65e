from pathlib import Path

import pytest

from gpuloom.errors import NotFoundError
from tests.cluster.assets.build import CONTROL_PLANE, PROGRAMS, cache_folder, main
from tests.cluster.binaries import find_binaries, require_binaries


def a_folder_with(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    return folder


def test_a_named_folder_comes_before_the_cache(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path)}
    a_folder_with(cache_folder(environ), *CONTROL_PLANE)
    named = a_folder_with(tmp_path / "named", *CONTROL_PLANE)

    assert find_binaries(environ).folder == cache_folder(environ)
    assert find_binaries(environ | {"KUBEBUILDER_ASSETS": str(named)}).folder == named
    assert find_binaries(environ | {"KUBE_ASSETS": str(named), "KUBEBUILDER_ASSETS": "/x"}).folder == named


def test_missing_programs_skip_loudly_and_fail_where_the_tests_must_run(tmp_path: Path) -> None:
    environ = {"KUBE_ASSETS": str(a_folder_with(tmp_path, "etcd"))}

    with pytest.raises(NotFoundError, match="has no program kube-apiserver; `make kube-assets ARGS"):
        find_binaries(environ)
    with pytest.raises(pytest.skip.Exception, match="THE CLUSTER TESTS DID NOT RUN"):
        require_binaries(environ)
    with pytest.raises(pytest.fail.Exception, match="THE CLUSTER TESTS DID NOT RUN"):
        require_binaries(environ | {"GPULOOM_REQUIRE_REAL": "1"})


def test_every_program_is_pinned() -> None:
    versions = {name: program.version() for name, program in PROGRAMS.items()}

    modules = {PROGRAMS[name].module for name in versions}
    assert len({(PROGRAMS[name].module, version) for name, version in versions.items()}) == len(modules)
    assert all(version.count(".") == 2 for version in versions.values())


def test_without_go_it_says_what_is_missing_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    code = main(["etcd", "--folder", str(tmp_path / "made")])

    said = capsys.readouterr().err
    assert code == 1
    assert "Go is needed to build etcd" in said
    assert "KUBE_ASSETS" in said
