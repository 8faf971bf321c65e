"""What an image is spared of the libraries that it has, and what it keeps."""

import importlib
import re
import sys
from pathlib import Path

import pytest

from deploy.docker.trim import AWS_SERVICES, trim

ROOT = Path(__file__).parents[3]


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("value = 1\n", encoding="utf-8")


def left(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_only_what_nobody_imports_is_taken_out(tmp_path: Path) -> None:
    kept = {
        "numpy/testing/_private/utils.py",
        "aiohttp/tests/test_a.py",
        "botocore/data/endpoints.json",
        "botocore/data/ec2/2016-11-15/service-2.json.gz",
        "botocore/data/sts/2011-06-15/service-2.json.gz",
        "azure/mgmt/compute/_client.py",
    }
    write(tmp_path, *kept, "numpy/tests/tests/test_a.py", "sklearn/tree/tests/test_b.py")
    write(tmp_path, "botocore/data/s3/2006-03-01/service-2.json.gz", "azure/mgmt/compute/aio/_client.py")

    trim(tmp_path)

    assert left(tmp_path) == kept


def test_a_client_without_its_source_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "google/cloud/compute_v1/__init__.py", "google/cloud/compute_v1/types/compute.py")

    trim(tmp_path)

    assert left(tmp_path) == {
        "google/cloud/compute_v1/__init__.pyc",
        "google/cloud/compute_v1/types/compute.pyc",
    }
    monkeypatch.syspath_prepend(str(tmp_path / "google" / "cloud"))
    assert importlib.import_module("compute_v1.types.compute").value == 1
    for name in [name for name in sys.modules if name.split(".")[0] == "compute_v1"]:
        del sys.modules[name]


def test_descriptions_of_the_aws_services_that_we_ask_are_kept() -> None:
    asked = {
        name
        for path in (ROOT / "services").rglob("*.py")
        for name in re.findall(
            r'(?:boto3|session)\.client\(\s*"([a-z0-9-]+)"', path.read_text(encoding="utf-8")
        )
    }

    assert asked == AWS_SERVICES
