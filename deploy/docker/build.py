"""`make images`: builds the images of all services, of the cli and of the simulation, and prints their sizes.

The arguments of a build are docker-compose.yml's. This adds what only the machine knows: the version of
pyproject.toml, the commit, and this machine's own pip configuration, which goes in as build secrets and stays
out of the images.
"""

import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from gpuloom.roster import ROSTER

ROOT = Path(__file__).parents[2]
BASE = "python:3.13-slim"
# By compose service: the job that makes certificates runs the cli's image.
IMAGES = {"certificates": "cli", "simulation": "simulation", **{row.extra: row.extra for row in ROSTER}}
# Files named by other options are paths of this machine, which a build can't see.
_PIP_OPTIONS = ("index-url", "extra-index-url", "trusted-host", "timeout", "retries")


def version() -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project["version"])


def image(name: str) -> str:
    return f"gpuloom/{name}:{os.environ.get('GPULOOM_VERSION') or version()}"


def main(services: Sequence[str]) -> int:
    wanted = services or tuple(IMAGES)
    with _pip_files(_pip_options()) as files:
        environment = {"GPULOOM_VERSION": version(), "GPULOOM_REVISION": _revision(), **files, **os.environ}
        # One after the other: side by side they would download the same wheels.
        for service in wanted:
            command = ("docker", "compose", "--progress", "plain", "build", service)
            code = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
            if code:
                return code
    _print_sizes([IMAGES[service] for service in wanted])
    return 0


def _pip_options() -> dict[str, str]:
    """What pip goes by on this machine, from its files and the environment; the last one counts."""
    command = (sys.executable, "-m", "pip", "config", "list")
    listed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    options = {}
    for line in listed.splitlines():
        key, _, value = line.partition("=")
        options[key.rpartition(".")[2]] = value.strip("'").replace("\\n", "\n    ")
    return options


@contextmanager
def _pip_files(options: Mapping[str, str]) -> Iterator[dict[str, str]]:
    lines = [f"{name} = {options[name]}" for name in _PIP_OPTIONS if name in options]
    with tempfile.TemporaryDirectory(prefix="gpuloom-build-") as folder:
        config = Path(folder, "pip.conf")
        config.write_text("\n".join(["[global]", *lines, ""]), encoding="utf-8")
        bundle = options.get("cert", "")
        trusted = {"GPULOOM_CA_BUNDLE": bundle} if Path(bundle).is_file() else {}
        yield {"GPULOOM_PIP_CONFIG": str(config), **trusted}


def _revision() -> str:
    command = ("git", "-C", str(ROOT), "rev-parse", "--short", "HEAD")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def size_mb(reference: str) -> float:
    command = ("docker", "image", "inspect", reference)
    found = subprocess.run(command, capture_output=True, check=True).stdout
    return float(json.loads(found)[0]["Size"]) / 1e6


def _print_sizes(names: Sequence[str]) -> None:
    base_mb = size_mb(os.environ.get("PYTHON_IMAGE") or BASE)
    sys.stdout.write(f"{'IMAGE':<40} {'MB':>5}  above {BASE}\n")
    for name in names:
        reference = image(name)
        sys.stdout.write(f"{reference:<40} {size_mb(reference):>5.0f} {size_mb(reference) - base_mb:>6.0f}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
