"""Debian packages that a node needs beside what is built from Go, unpacked into a cache folder.

Decides which suite gives which package; the mirrors and their keys are those that this machine already uses.
Nothing is installed, and the machine's own package lists stay as they are.
"""

import fcntl
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gpuloom.errors import NotFoundError

CONTAINERD_LINE = "1.7"
# The first suite with that line; an older machine takes this one package from it.
SUITE_OF_CONTAINERD = "trixie"

_TIMEOUT_S = 300.0
_SOURCES = Path("/etc/apt")
_DEFAULT_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_NEEDED_PROGRAMS = ("apt-get", "dpkg-deb")
_NETWORK_PACKAGES = (
    *("containernetworking-plugins", "iptables"),
    *("libip4tc2", "libip6tc2", "libmnl0", "libnftnl11", "libxtables12"),
)
_IPTABLES = tuple(
    f"{family}{verb}" for family in ("iptables", "ip6tables") for verb in ("", "-save", "-restore")
)


@dataclass(frozen=True)
class Mirror:
    uri: str
    keyring: str = _DEFAULT_KEYRING

    def line(self, suite: str) -> str:
        return f"deb [signed-by={self.keyring}] {self.uri} {suite} main\n"


def fetch_tools(cache: Path) -> Path:
    """A folder with `runc` and a static `busybox`. Raise NotFoundError if they can't be had."""
    folder = cache / "tools"
    with _only_writer(cache):
        if not (folder / "runc").exists():
            with tempfile.TemporaryDirectory(dir=cache) as work:
                apt = Apt(Path(work))
                tree = apt.unpack([apt.download("runc"), apt.download("busybox-static")])
                _keep([tree / "usr/sbin/runc", _first(tree, "bin/busybox")], folder)
    return folder


def fetch_containerd(cache: Path) -> Path:
    """A folder with containerd 1.7, its shim and `ctr`. Raise NotFoundError if they can't be had."""
    folder = cache / f"containerd-{CONTAINERD_LINE}"
    with _only_writer(cache):
        if not (folder / "containerd").exists():
            with tempfile.TemporaryDirectory(dir=cache) as work:
                tree = _download_containerd(Path(work))
                programs = ("containerd-shim-runc-v2", "ctr", "containerd")
                _keep([tree / "usr/bin" / name for name in programs], folder)
    return folder


def fetch_network(cache: Path) -> Path:
    """CNI's plugins in `cni`, iptables in `bin` of a folder. Raise NotFoundError if they can't be had."""
    folder = cache / "network"
    with _only_writer(cache):
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=cache) as work:
                apt = Apt(Path(work))
                tree = apt.unpack([apt.download(package) for package in _NETWORK_PACKAGES])
                unfinished = Path(work) / "network"
                shutil.copytree(tree / "usr/lib/cni", unfinished / "cni")
                _keep_iptables(tree, unfinished, folder)
                unfinished.rename(folder)
    return folder


def find_mirror(sources: Sequence[str]) -> Mirror | None:
    """Debian's mirror among the texts of apt's source files, in either of their two formats."""
    for text in sources:
        uri = re.search(r"^(?:URIs:\s*|deb\s+(?:\[[^\]]*\]\s+)?)(\S+/debian/?)(?=\s|$)", text, re.MULTILINE)
        if uri is not None:
            keyring = re.search(r"signed-by[:=]\s*(/[^\s\]]+)", text, re.IGNORECASE)
            return Mirror(uri[1], keyring[1] if keyring else _DEFAULT_KEYRING)
    return None


class Apt:
    """apt-get with lists and downloads in a folder of its own; `sources` replaces the machine's own."""

    def __init__(self, folder: Path, sources: str = "") -> None:
        self._folder = folder
        _check_programs()
        for needed in ("lists/partial", "archives/partial"):
            (folder / needed).mkdir(parents=True, exist_ok=True)
        self._options = [
            *("-qq", "-o", f"Dir::State::lists={folder / 'lists'}", "-o", f"Dir::Cache={folder}"),
            *("-o", "APT::Sandbox::User=root", "-o", "Acquire::Languages=none"),
        ]
        if sources:
            listed = folder / "sources.list"
            listed.write_text(sources, encoding="utf-8")
            self._options += [
                *("-o", f"Dir::Etc::sourcelist={listed}", "-o", "Dir::Etc::sourceparts=/dev/null"),
            ]
        _run(["apt-get", *self._options, "update"], folder)

    def download(self, package: str) -> Path:
        _run(["apt-get", *self._options, "download", package], self._folder)
        return next(self._folder.glob(f"{package}_*.deb"))

    def unpack(self, archives: Sequence[Path]) -> Path:
        tree = self._folder / "tree"
        for archive in archives:
            _run(["dpkg-deb", "-x", str(archive), str(tree)], self._folder)
        return tree


def apt_of_suite(suite: str, folder: Path) -> Apt:
    """Of another suite than the machine's own. Raise NotFoundError if no mirror is known."""
    mirror = find_mirror(_source_texts())
    if mirror is None:
        raise NotFoundError(f"packages of {suite}: apt has no mirror of Debian configured")
    return Apt(folder, mirror.line(suite))


def _download_containerd(work: Path) -> Path:
    own = Apt(work / "own")
    archive = own.download("containerd")
    if _version(archive).startswith(CONTAINERD_LINE):
        return own.unpack([archive])
    newer = apt_of_suite(SUITE_OF_CONTAINERD, work / "newer")
    archive = newer.download("containerd")
    if not _version(archive).startswith(CONTAINERD_LINE):
        raise NotFoundError(f"containerd {CONTAINERD_LINE}: {SUITE_OF_CONTAINERD} has {_version(archive)}")
    return newer.unpack([archive])


def _version(archive: Path) -> str:
    return _run(["dpkg-deb", "-f", str(archive), "Version"], archive.parent).strip()


def _source_texts() -> list[str]:
    files = [*sorted((_SOURCES / "sources.list.d").glob("*")), _SOURCES / "sources.list"]
    known = (".sources", ".list")
    return [file.read_text(encoding="utf-8") for file in files if file.suffix in known and file.is_file()]


def _check_programs() -> None:
    for name in _NEEDED_PROGRAMS:
        if shutil.which(name) is None:
            raise NotFoundError(f"{name} is missing: a node takes runc and busybox from Debian's packages")


def _first(tree: Path, suffix: str) -> Path:
    """Where a package puts a program depends on how far its release merged /bin into /usr/bin."""
    return next(path for path in (tree / "usr" / suffix, tree / suffix) if path.exists())


def _keep_iptables(tree: Path, target: Path, final: Path) -> None:
    """Its libraries stand beside it, because it is not installed; `final` is where it will be run."""
    libraries = next(tree.glob("**/libxtables.so.*")).parent
    shutil.copytree(libraries, target / "lib", symlinks=True)
    plugins = next(tree.glob("usr/lib/**/xtables"))
    if not (target / "lib/xtables").exists():
        shutil.copytree(plugins, target / "lib/xtables")
    (target / "bin").mkdir()
    shutil.copy2(_first(tree, "sbin/xtables-nft-multi"), target / "bin")
    for name in _IPTABLES:
        script = target / "bin" / name
        environment = f"LD_LIBRARY_PATH='{final}/lib' XTABLES_LIBDIR='{final}/lib/xtables'"
        text = f"#!/bin/sh\nexec env {environment} '{final}/bin/xtables-nft-multi' {name} \"$@\"\n"
        script.write_text(text, encoding="utf-8")
        script.chmod(0o755)


def _keep(programs: Sequence[Path], folder: Path) -> None:
    """The program that tells that all are there comes last."""
    folder.mkdir(parents=True, exist_ok=True)
    for program in sorted(programs, key=lambda path: path.name in ("runc", "containerd")):
        unfinished = folder / f".{program.name}"
        shutil.copy2(program, unfinished)
        unfinished.replace(folder / program.name)


def _run(command: Sequence[str], folder: Path) -> str:
    environment = {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C.UTF-8"}
    try:
        done = subprocess.run(  # noqa: S603
            command,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=True,
        )
    except subprocess.CalledProcessError as error:
        said = " | ".join(error.stderr.split("\n")[-4:]).strip(" |")
        raise NotFoundError(f"{' '.join(command[:1])} {command[-1]} failed: {said}") from error
    except subprocess.TimeoutExpired as error:
        raise NotFoundError(f"{command[0]} {command[-1]} took longer than {_TIMEOUT_S:g} s") from error
    return done.stdout


@contextmanager
def _only_writer(cache: Path) -> Iterator[None]:
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
