"""Images of the node tests: static programs, as archives in the format of `docker save`.

Made by hand, so that a test needs no registry. Equal input gives equal bytes.
"""

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

IMAGE = "docker.io/gpuloom/busybox:1"
PAUSE_IMAGE = "docker.io/gpuloom/pause:1"
"""The same image; what a sandbox runs is the image's own command."""

COREDNS_IMAGE = "docker.io/gpuloom/coredns:1"

_APPLETS = (
    *("sh", "sleep", "env", "cat", "ls", "echo", "grep", "kill", "date", "true", "false"),
    "httpd",
)
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def write_image(busybox: Path, archive: Path) -> None:
    """The image of pods and sandboxes."""
    content = {"bin/busybox": busybox.read_bytes()}
    layer = _layer(content, {f"bin/{applet}": "busybox" for applet in _APPLETS})
    command = {"Cmd": ["/bin/sleep", "2147483647"], "Env": ["PATH=/bin"]}
    _write_archive(archive, layer, command, (IMAGE, PAUSE_IMAGE))


def write_program_image(program: Path, image: str, archive: Path) -> None:
    """An image of nothing but that program, which is its entry point."""
    layer = _layer({f"bin/{program.name}": program.read_bytes()}, {})
    _write_archive(archive, layer, {"Entrypoint": [f"/bin/{program.name}"]}, (image,))


def _write_archive(
    archive: Path, layer: bytes, command: Mapping[str, Sequence[str]], names: Sequence[str]
) -> None:
    config = {
        "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": command,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    tags = [name.removeprefix("docker.io/") for name in names]
    manifest = [{"Config": "config.json", "RepoTags": tags, "Layers": ["layer.tar"]}]
    with tarfile.open(archive, "w") as image:
        _add_file(image, "manifest.json", json.dumps(manifest).encode())
        _add_file(image, "config.json", json.dumps(config).encode())
        _add_file(image, "layer.tar", layer)


def _layer(programs: Mapping[str, bytes], links: Mapping[str, str]) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as layer:
        for folder, mode in (("bin", 0o755), ("etc", 0o755), ("tmp", 0o1777)):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, mode
            layer.addfile(entry)
        for name, program in programs.items():
            _add_file(layer, name, program, mode=0o755)
        for name, target in links.items():
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, target
            layer.addfile(link)
    return content.getvalue()


def _add_file(archive: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    archive.addfile(entry, io.BytesIO(content))
