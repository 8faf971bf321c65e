"""Takes out of an image what comes with libraries and nothing of ours imports: python trim.py /opt/gpuloom

Tests of numpy, scipy and scikit-learn are 60 MB, descriptions of AWS services that nobody asks 24 MB. Of
Google's client of Compute Engine, 34 MB of generated source and as much again compiled, the second is enough.
"""

import compileall
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from py_compile import PycInvalidationMode

AWS_SERVICES = frozenset({"autoscaling", "ec2", "pricing"})
_AWS_SIGN_IN = frozenset({"signin", "sso", "sso-oidc", "sts"})
"""Where boto3 gets credentials from."""


def trim(packages: Path) -> None:
    for folder in list(_unused(packages)):
        shutil.rmtree(folder)
    _keep_compiled(packages / "google" / "cloud" / "compute_v1")


def _unused(packages: Path) -> Iterator[Path]:
    for library in ("numpy", "scipy", "sklearn"):
        # One may be inside of another.
        found = sorted((packages / library).rglob("tests"))
        yield from (
            one for one in found if one.is_dir() and "tests" not in one.relative_to(packages).parts[:-1]
        )
    for described in (packages / "botocore" / "data").glob("*/"):
        if described.name not in AWS_SERVICES | _AWS_SIGN_IN:
            yield described
    # We call Azure from threads.
    for client in ("identity", "mgmt/compute"):
        yield from (packages / "azure" / client).glob("aio")


def _keep_compiled(package: Path) -> None:
    """By hash, because the times of files differ from build to build."""
    if not package.is_dir():
        return
    mode = PycInvalidationMode.UNCHECKED_HASH
    if not compileall.compile_dir(package, quiet=1, legacy=True, invalidation_mode=mode):
        raise SystemExit(f"{package} can't be compiled")
    for cache in list(package.rglob("__pycache__")):
        shutil.rmtree(cache)
    for source in list(package.rglob("*.py")):
        source.unlink()


if __name__ == "__main__":
    for site_packages in Path(sys.argv[1]).glob("lib/python*/site-packages"):
        trim(site_packages)
