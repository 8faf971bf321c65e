"""`make sbom`: what is in every image, as CycloneDX documents in build/sbom, read from the images.

python -m deploy.docker.sbom [--folder FOLDER] [IMAGE …]
"""

import argparse
import io
import json
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from deploy.docker.build import IMAGES, ROOT, image

FOLDER = ROOT / "build" / "sbom"
PACKAGES = "/opt/gpuloom/lib"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write what is in each image.")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("images", nargs="*", metavar="IMAGE", help="default: all")
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    for name in options.images or dict.fromkeys(IMAGES.values()):
        with tempfile.TemporaryDirectory(prefix="gpuloom-sbom-") as folder:
            _unpack_metadata(image(name), Path(folder))
            document = options.folder / f"{name}.cdx.json"
            _describe(Path(folder), document)
        count = len(json.loads(document.read_bytes())["components"])
        sys.stdout.write(f"{document}: {count} packages\n")
    return 0


def _unpack_metadata(reference: str, folder: Path) -> None:
    """The metadata of the packages in an image, without their code."""
    container = _docker("create", reference).decode().strip()
    try:
        archive = _docker("cp", f"{container}:{PACKAGES}", "-")
    finally:
        _docker("rm", container)
    with tarfile.open(fileobj=io.BytesIO(archive)) as tree:
        found = [member for member in tree.getmembers() if ".dist-info/" in member.name]
        tree.extractall(folder, found, filter="data")


def _describe(folder: Path, document: Path) -> None:
    (packages,) = folder.glob("lib/python*/site-packages")
    # The tool asks an interpreter where its packages are; this one answers for the image's.
    interpreter = folder / "python"
    interpreter.write_text(f"#!/bin/sh\necho '{json.dumps([str(packages)])}'\n", encoding="utf-8")
    interpreter.chmod(0o755)
    tool = Path(sys.executable).with_name("cyclonedx-py")
    command = (str(tool), "environment", "--pyproject", str(ROOT / "pyproject.toml"), "--output-reproducible")
    subprocess.run((*command, "-o", str(document), str(interpreter)), check=True)


def _docker(*arguments: str) -> bytes:
    return subprocess.run(("docker", *arguments), capture_output=True, check=True).stdout


if __name__ == "__main__":
    sys.exit(main())
