"""A real Docker engine: whether there is one, and how tests talk to it."""

import json
import os
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest

from deploy.docker.build import ROOT
from tests.cluster.binaries import REQUIRE_REAL

LONGEST_WAIT_S = 180.0
POLL_S = 0.5
PROMETHEUS_LOCALLY = "prom/prometheus:latest"

Answer = TypeVar("Answer")


def require_engine(environ: Mapping[str, str] = os.environ) -> None:
    for command in (("docker", "info"), ("docker", "compose", "version")):
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=30)
        except (OSError, subprocess.SubprocessError) as error:
            reason = f"THE TESTS IN CONTAINERS DID NOT RUN: {' '.join(command)}: {error}"
            if environ.get(REQUIRE_REAL) == "1":
                pytest.fail(reason, pytrace=False)
            pytest.skip(reason)


def docker(*arguments: str, **options: Any) -> str:
    done: subprocess.CompletedProcess[str] = subprocess.run(
        ("docker", *arguments), capture_output=True, text=True, check=False, timeout=600, **options
    )
    if done.returncode:
        pytest.fail(f"docker {' '.join(arguments)}: {done.stderr[-3000:]}", pytrace=False)
    return done.stdout


def inspect(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(docker("inspect", name))[0]
    return found


def eventually(question: Callable[[], Answer], what: str) -> Answer:
    """The first answer that is true. Containers go by the real clock, so this waits by it too."""
    end_s = time.monotonic() + LONGEST_WAIT_S
    while True:
        answer = question()
        if answer:
            return answer
        if time.monotonic() > end_s:
            pytest.fail(f"{what}: not within {LONGEST_WAIT_S:g} s")
        time.sleep(POLL_S)


@dataclass(frozen=True)
class Project:
    """A mesh of docker-compose.yml under its own name, on any free ports."""

    name: str
    settings: Mapping[str, str] = field(default_factory=dict)
    directory: Path = ROOT

    @property
    def environment(self) -> dict[str, str]:
        names = (line.partition("=")[0] for line in (ROOT / ".env").read_text().splitlines())
        ports = {name: "0" for name in names if name.startswith("PORT_")}
        return {
            **os.environ,
            **_images_at_hand(),
            **ports,
            "COMPOSE_PROJECT_NAME": self.name,
            **self.settings,
        }

    def compose(self, *arguments: str) -> str:
        return docker("compose", *arguments, cwd=self.directory, env=self.environment)

    def container(self, service: str) -> dict[str, Any]:
        return inspect(self.compose("ps", "--all", "--quiet", service).strip())

    def address(self, service: str, port: int) -> str:
        """Where a port is published now; another restart, another port."""
        return self.compose("port", service, str(port)).strip()


def _images_at_hand() -> dict[str, str]:
    """Where nothing can be pulled, a Prometheus that is there already will do."""
    there = docker("image", "ls", "--format", "{{.Repository}}:{{.Tag}}").split()
    return {"PROMETHEUS_IMAGE": PROMETHEUS_LOCALLY} if PROMETHEUS_LOCALLY in there else {}
