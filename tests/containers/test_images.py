"""What is in the images, and that a changed line does not build them anew."""

import json
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from deploy.docker import sbom
from deploy.docker.build import BASE, ROOT, size_mb, version
from gpuloom.roster import ROSTER
from tests.containers.engine import Project, docker, inspect

pytestmark = [pytest.mark.real, pytest.mark.timeout(1500)]

CONTEXT = ("gpuloom", "services", "deploy", "pyproject.toml", "constraints.txt", "LICENSE")
COMPOSE = ("docker-compose.yml", ".env", ".dockerignore")
CONFINED = ("--rm", "--read-only", "--cap-drop", "ALL", "--network", "none")
MOST_ADDED_MB = 110
# By a library that is large itself: azure's comes with two more clouds', sklearn with scipy and numpy.
MOST_ADDED_WITH_MB = {"numpy": 250, "botocore": 250, "azure": 250, "sklearn": 340}
LISTING = f"""
import importlib.util, os
print(*os.listdir("/app/services"))
print(*filter(importlib.util.find_spec, {tuple(MOST_ADDED_WITH_MB)}))
"""


def test_an_image_runs_confined_as_nobody_and_says_what_it_is(images: dict[str, str]) -> None:
    for reference in images.values():
        config = inspect(reference)["Config"]

        assert config["User"] == "65532:65532"
        assert config["Healthcheck"]["Test"][0] == "CMD"
        assert config["Entrypoint"] == ["python", "/app/start.py"]
        assert config["Labels"]["org.opencontainers.image.version"] == version()
        assert docker("run", *CONFINED, reference, "--help")


def test_an_image_has_the_code_of_its_own_service_only_and_is_small(images: dict[str, str]) -> None:
    base_mb = size_mb(BASE)
    for row in ROSTER:
        answer = docker("run", *CONFINED, "--entrypoint", "python", images[row.extra], "-c", LISTING)
        folders, libraries = (line.split() for line in answer.split("\n")[:2])

        assert {name for name in folders if not name.startswith("__")} == {row.name}
        most_mb = max([MOST_ADDED_MB, *(MOST_ADDED_WITH_MB[name] for name in libraries)])
        assert size_mb(images[row.extra]) - base_mb <= most_mb, row.name


def test_the_bill_of_materials_of_an_image_names_what_is_in_it_at_the_pinned_versions(
    images: dict[str, str], tmp_path: Path
) -> None:
    sbom.main(["--folder", str(tmp_path), "discovery"])

    document = json.loads((tmp_path / "discovery.cdx.json").read_text(encoding="utf-8"))
    named = {one["name"].lower().replace("_", "-"): one["version"] for one in document["components"]}
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {name.lower().replace("_", "-"): at for name, _, at in (line.partition("==") for line in lines)}
    listing = "from importlib.metadata import distributions; print(*{d.name for d in distributions()})"
    inside = docker("run", *CONFINED, "--entrypoint", "python", images["discovery"], "-c", listing).split()
    assert document["bomFormat"] == "CycloneDX"
    assert set(named) | {"gpuloom"} == {name.lower().replace("_", "-") for name in inside} | {"gpuloom"}
    assert {name: at for name, at in named.items() if pinned.get(name, at) != at} == {}
    assert {"grpcio", "aiohttp"} <= named.keys()
    assert "scikit-learn" not in named


def test_a_changed_line_installs_nothing_anew(images: dict[str, str], tmp_path: Path) -> None:
    copy_of_the_project(tmp_path)
    changed = tmp_path / "services/discovery/app.py"
    changed.write_text(f"{changed.read_text(encoding='utf-8')}\n# a changed line\n", encoding="utf-8")
    project = Project("gpuloom-changed", {"GPULOOM_VERSION": "changed"}, tmp_path)

    began_s = time.monotonic()
    said = build(project, "discovery")
    took_s = time.monotonic() - began_s

    try:
        steps = re.findall(r"^#(\d+) \[discovery dependencies \d+/\d+\] RUN", said, re.MULTILINE)
        assert [step for step in steps if f"#{step} CACHED" in said]
        print(f"a second build with a changed line: {took_s:.1f} s")  # noqa: T201 - a figure for the reader
    finally:
        docker("image", "rm", "gpuloom/discovery:changed")


def copy_of_the_project(folder: Path) -> None:
    for name in CONTEXT:
        source = ROOT / name
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source, folder / name, symlinks=True, ignore=ignored)
    for name in (*CONTEXT, *COMPOSE):
        if (ROOT / name).is_file():
            shutil.copy2(ROOT / name, folder / name)


def build(project: Project, service: str) -> str:
    command = ("docker", "compose", "--progress", "plain", "build", service)
    done = subprocess.run(
        command, cwd=project.directory, env=project.environment, capture_output=True, text=True, check=True
    )
    return done.stdout + done.stderr
