"""Builds the Kubernetes programs that the cluster tests run, from Go modules, into a cache folder.

    python3 tests/cluster/assets/build.py [--nodes] [--network] [PROGRAM…]

Prints the folder, which is what KUBE_ASSETS wants. Versions and checksums are those of the `go.mod` and
`go.sum` beside this file; a program that is there already in that version is left alone. Needs Go and
nothing of Python but its standard library, so that it runs before anything is installed.
"""

import argparse
import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
VERSIONS_FILE = "versions.json"

_KUBERNETES_VERSION_PACKAGE = "k8s.io/component-base/version"


@dataclass(frozen=True)
class Program:
    """A program of one of the Go modules in this folder. `required` is the module that has its version.

    `with_c` is for one that is partly C, and needs a C compiler.
    """

    module: str
    package: str
    required: str
    with_c: bool = False

    def version(self) -> str:
        """As go.mod pins it, without the v."""
        text = (HERE / self.module / "go.mod").read_text(encoding="utf-8")
        found = re.search(rf"^(?:require )?\s*{re.escape(self.required)} v(\S+)", text, re.MULTILINE)
        if found is None:
            raise SystemExit(f"{HERE / self.module / 'go.mod'} does not require {self.required}")
        return found[1]


def _kubernetes(name: str) -> Program:
    return Program("kubernetes", f"k8s.io/kubernetes/cmd/{name}", "k8s.io/kubernetes")


def _containerd(name: str) -> Program:
    module = "github.com/containerd/containerd/v2"
    return Program("containerd", f"{module}/cmd/{name}", module)


def _nvidia(name: str) -> Program:
    module = "github.com/NVIDIA/k8s-device-plugin"
    return Program("nvidia", f"{module}/cmd/{name}", module, with_c=True)


DEVICE_PLUGIN = "nvidia-device-plugin"
CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-scheduler", "kube-controller-manager", "kubectl")
CONTAINERD = ("containerd", "containerd-shim-runc-v2", "ctr")
NODE = ("kubelet", *CONTAINERD, DEVICE_PLUGIN)
NETWORK = ("kube-proxy", "coredns")
HELM = "helm"
PROGRAMS = {
    HELM: Program(HELM, "helm.sh/helm/v3/cmd/helm", "helm.sh/helm/v3"),
    "etcd": Program("etcd", "go.etcd.io/etcd/server/v3", "go.etcd.io/etcd/server/v3"),
    **{name: _kubernetes(name) for name in (*CONTROL_PLANE[1:], "kubelet", "kube-proxy")},
    **{name: _containerd(name) for name in CONTAINERD},
    DEVICE_PLUGIN: _nvidia(DEVICE_PLUGIN),
    "coredns": Program("coredns", "github.com/coredns/coredns", "github.com/coredns/coredns"),
}


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Where the programs of the pinned Kubernetes version are kept for this user."""
    caches = Path(environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME") or Path.home()) / ".cache")
    return caches / "gpuloom" / "kube-assets" / PROGRAMS["kube-apiserver"].version()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Build the programs of a Kubernetes cluster.")
    parser.add_argument(
        "programs",
        nargs="*",
        metavar="PROGRAM",
        help=f"of {', '.join(PROGRAMS)}; default: {', '.join(CONTROL_PLANE)}",
    )
    parser.add_argument("--nodes", action="store_true", help=f"also {', '.join(NODE)}")
    parser.add_argument("--network", action="store_true", help=f"also {', '.join(NETWORK)}")
    parser.add_argument("--helm", action="store_true", help=f"also {HELM}")
    parser.add_argument("--folder", type=Path, help="default: a folder of the user's cache")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.programs) - set(PROGRAMS))
    if unknown:
        parser.error(f"unknown program {unknown[0]}; known are {', '.join(PROGRAMS)}")
    folder = (options.folder or cache_folder(os.environ)).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    with _only_builder(folder):
        wanted = (
            *(options.programs or CONTROL_PLANE),
            *(NODE if options.nodes else ()),
            *(NETWORK if options.network else ()),
            *((HELM,) if options.helm else ()),
        )
        missing = [name for name in wanted if not _is_current(folder, name)]
        if missing and shutil.which("go") is None:
            _tell(f"Go is needed to build {', '.join(missing)}; install it, or set KUBE_ASSETS to a folder")
            return 1
        for number, name in enumerate(missing, start=1):
            if not _build(folder, name, f"{number}/{len(missing)}"):
                return 1
    sys.stdout.write(f"{folder}\n")
    return 0


def _build(folder: Path, name: str, progress: str) -> bool:
    program, version = PROGRAMS[name], PROGRAMS[name].version()
    _tell(f"[{progress}] building {name} {version} …")
    started_s = time.monotonic()
    # Built aside and renamed: an interrupted build leaves no program that is only half there.
    unfinished = folder / f".{name}.unfinished"
    command = (
        *("go", "build", "-mod=readonly", "-ldflags", _linker_flags(program)),
        *("-o", str(unfinished), program.package),
    )
    environment = {
        **os.environ,
        "CGO_ENABLED": "1" if program.with_c else "0",
        "GOWORK": "off",
        "GOFLAGS": "-buildvcs=false",
    }
    built = subprocess.run(command, cwd=HERE / program.module, env=environment, check=False)  # noqa: S603
    if built.returncode != 0:
        _tell(f"{name} could not be built (go ended with {built.returncode})")
        return False
    unfinished.replace(folder / name)
    _note_version(folder, name, version)
    _tell(f"[{progress}] {name} built in {time.monotonic() - started_s:.0f} s")
    return True


def _linker_flags(program: Program) -> str:
    """Kubernetes programs only know their version if the linker tells them."""
    if program.with_c:
        # NVML's functions are looked up when they are called, in the library that is there by then.
        return "-s -w -extldflags=-Wl,-z,lazy"
    version = program.version()
    if program.module == HELM:
        # Without a cluster it renders for the version that it is told here, as its releases do.
        minor = PROGRAMS["kube-apiserver"].version().split(".")[1]
        told = {"k8sVersionMajor": "1", "k8sVersionMinor": minor}
        said_of = [f"-X helm.sh/helm/v3/pkg/chartutil.{k}={v}" for k, v in told.items()]
        return " ".join(["-s -w", f"-X helm.sh/helm/v3/internal/version.version=v{version}", *said_of])
    if program.module != "kubernetes":
        return "-s -w"
    major, minor, _ = version.split(".", 2)
    said = {"gitVersion": f"v{version}", "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    return " ".join(["-s -w", *(f"-X {_KUBERNETES_VERSION_PACKAGE}.{k}={v}" for k, v in said.items())])


def _is_current(folder: Path, name: str) -> bool:
    return os.access(folder / name, os.X_OK) and _versions(folder).get(name) == PROGRAMS[name].version()


def _note_version(folder: Path, name: str, version: str) -> None:
    noted = folder / f".{VERSIONS_FILE}"
    noted.write_text(json.dumps(_versions(folder) | {name: version}, indent=2), encoding="utf-8")
    noted.replace(folder / VERSIONS_FILE)


def _versions(folder: Path) -> dict[str, str]:
    try:
        return dict(json.loads((folder / VERSIONS_FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return {}


@contextmanager
def _only_builder(folder: Path) -> Iterator[None]:
    """Two builds into one folder wait for each other."""
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _tell(text: str) -> None:
    sys.stderr.write(f"kube-assets: {text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
