"""The one image of the node tests: a static busybox, as an archive in the format of `docker save`.

Made by hand, so that a test needs no registry. Equal input gives equal bytes.
"""

import hashlib
import io
import json
import platform
import tarfile
from pathlib import Path

IMAGE = "docker.io/gpuloom/busybox:1"
PAUSE_IMAGE = "docker.io/gpuloom/pause:1"
"""The same image; what a sandbox runs is the image's own command."""

_APPLETS = ("sh", "sleep", "env", "cat", "ls", "echo", "grep", "kill", "date", "true", "false")
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def write_image(busybox: Path, archive: Path) -> None:
    layer = _layer(busybox.read_bytes())
    config = {
        "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {"Cmd": ["/bin/sleep", "2147483647"], "Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    tags = [name.removeprefix("docker.io/") for name in (IMAGE, PAUSE_IMAGE)]
    manifest = [{"Config": "config.json", "RepoTags": tags, "Layers": ["layer.tar"]}]
    with tarfile.open(archive, "w") as image:
        _add_file(image, "manifest.json", json.dumps(manifest).encode())
        _add_file(image, "config.json", json.dumps(config).encode())
        _add_file(image, "layer.tar", layer)


def _layer(busybox: bytes) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as layer:
        for folder, mode in (("bin", 0o755), ("etc", 0o755), ("tmp", 0o1777)):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, mode
            layer.addfile(entry)
        _add_file(layer, "bin/busybox", busybox, mode=0o755)
        for applet in _APPLETS:
            link = tarfile.TarInfo(f"bin/{applet}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            layer.addfile(link)
    return content.getvalue()


def _add_file(archive: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    archive.addfile(entry, io.BytesIO(content))
