"""The example of a gRPC client finds its certificates by both names that they are given."""

import runpy
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "grpc_client.py"


@pytest.mark.parametrize("name", ["client", "tls"])
def test_certificates_of_a_run_and_of_a_secret_are_found(name: str, tmp_path: Path) -> None:
    for file in (f"{name}.crt", f"{name}.key", "ca.crt"):
        (tmp_path / file).write_bytes(b"")

    with runpy.run_path(str(EXAMPLE))["connect"]("127.0.0.1:1", "discovery", tmp_path) as channel:
        assert channel is not None
