"""The development CA, its command, and how its files are followed."""

import logging
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
import typer
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from typer.testing import CliRunner

from gpuloom.cli.commands.certs import register
from gpuloom.errors import ConflictError, GpuloomError, InvalidRequestError
from gpuloom.roster import ROSTER
from gpuloom.rpc.dev_ca import (
    CertificateOrder,
    issue_development_certificates,
    tls_files,
)
from gpuloom.rpc.tls import CertificateSource, TlsError, TlsFiles
from gpuloom.runtime.clock import FakeClock

CLI = CertificateOrder(("cli",))


def issue(folder: Path, order: CertificateOrder = CLI, force: bool = False) -> dict[str, TlsFiles]:
    return issue_development_certificates(folder, order, FakeClock(), force)


def certificate(file: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(file.read_bytes())


def test_a_certificate_names_its_service_and_where_it_may_be(tmp_path: Path) -> None:
    made = issue(
        tmp_path, CertificateOrder(("scheduler_extender",), days=7, hosts=("gpu.example", "10.0.0.9"))
    )

    leaf = certificate(made["scheduler_extender"].cert_file)
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == [
        "spiffe://gpuloom/scheduler_extender"
    ]
    assert names.get_values_for_type(x509.DNSName) == [
        "scheduler-extender.gpuloom",
        "localhost",
        "gpu.example",
    ]
    assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1", "::1", "10.0.0.9"]
    assert leaf.not_valid_after_utc == datetime(2026, 1, 8, tzinfo=UTC)


def test_keys_are_for_their_owner_only(tmp_path: Path) -> None:
    issue(tmp_path)

    assert {file.name: oct(file.stat().st_mode & 0o777) for file in tmp_path.iterdir()} == {
        "ca.crt": "0o644",
        "ca.key": "0o600",
        "cli.crt": "0o644",
        "cli.key": "0o600",
    }


def test_running_again_keeps_the_ca_and_renews_the_rest(tmp_path: Path) -> None:
    issue(tmp_path)
    authority, leaf = certificate(tmp_path / "ca.crt"), certificate(tmp_path / "cli.crt")

    issue(tmp_path)

    assert certificate(tmp_path / "ca.crt") == authority
    assert certificate(tmp_path / "cli.crt") != leaf
    certificate(tmp_path / "cli.crt").verify_directly_issued_by(authority)


async def test_a_ca_that_is_over_is_replaced(tmp_path: Path) -> None:
    clock = FakeClock()
    issue_development_certificates(tmp_path, CLI, clock)
    old = certificate(tmp_path / "ca.crt")

    await clock.advance(11 * 365 * 86_400)
    issue_development_certificates(tmp_path, CLI, clock)

    assert certificate(tmp_path / "ca.crt") != old


@pytest.mark.parametrize("name", ["ca.crt", "ca.key", "cli.crt", "cli.key"])
def test_foreign_files_are_not_overwritten_unless_forced(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("precious")

    with pytest.raises(ConflictError, match="--force"):
        issue(tmp_path)
    untouched = [(file.name, file.read_text()) for file in tmp_path.iterdir()]
    issue(tmp_path, force=True)

    assert untouched == [(name, "precious")]
    certificate(tmp_path / "cli.crt").verify_directly_issued_by(certificate(tmp_path / "ca.crt"))


def test_a_certificate_of_another_ca_is_foreign(tmp_path: Path) -> None:
    issue(tmp_path / "ours")
    issue(tmp_path / "theirs")
    (tmp_path / "ours" / "cli.crt").write_bytes((tmp_path / "theirs" / "cli.crt").read_bytes())

    with pytest.raises(ConflictError):
        issue(tmp_path / "ours")


@pytest.mark.parametrize(
    "order",
    [
        CertificateOrder(("cli",), days=0),
        CertificateOrder(("ca",)),
        CertificateOrder(("../cli",)),
        CertificateOrder(("cli",), hosts=("not a host",)),
        CertificateOrder(("cli",), hosts=("discovery.gpuloom",)),
    ],
    ids=str,
)
def test_an_order_that_makes_no_sense_writes_nothing(tmp_path: Path, order: CertificateOrder) -> None:
    with pytest.raises(InvalidRequestError):
        issue(tmp_path / "out", order)

    assert not (tmp_path / "out").exists()


def test_a_missing_file_is_one_line_that_says_what_to_do(tmp_path: Path) -> None:
    files = tls_files(tmp_path, "cli")

    with pytest.raises(GpuloomError) as refused:
        CertificateSource(files, lambda _: None)

    assert str(refused.value) == (
        f"can't read {files.cert_file}: No such file or directory; "
        "make certificates with `gpuloom certs --out DIR`"
    )


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("cli.crt", "", "cli.crt and .*cli.key are no usable certificate and key"),
        ("cli.key", "nonsense", "are no usable certificate and key"),
        ("ca.crt", "", "ca.crt holds no usable CA certificate"),
        ("ca.crt", "ünïcode", "ca.crt holds no usable CA certificate"),
    ],
)
def test_a_file_that_is_not_what_it_should_be_is_named(
    tmp_path: Path, name: str, content: str, complaint: str
) -> None:
    issue(tmp_path)
    (tmp_path / name).write_text(content)

    with pytest.raises(TlsError, match=complaint):
        CertificateSource(tls_files(tmp_path, "cli"), lambda _: None)


def test_a_key_of_another_certificate_is_no_pair(tmp_path: Path) -> None:
    issue(tmp_path, CertificateOrder(("cli", "discovery")))
    files = TlsFiles(tmp_path / "cli.crt", tmp_path / "discovery.key", tmp_path / "ca.crt")

    with pytest.raises(TlsError, match="key values mismatch"):
        CertificateSource(files, lambda _: None)


def test_a_key_with_a_password_is_refused_without_asking_for_it(tmp_path: Path) -> None:
    issue(tmp_path)
    key = ec.generate_private_key(ec.SECP256R1())
    locked = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    (tmp_path / "cli.key").write_bytes(locked)

    with pytest.raises(TlsError, match="are no usable certificate and key"):
        CertificateSource(tls_files(tmp_path, "cli"), lambda _: None)


def test_a_half_replaced_pair_waits_for_its_other_half(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    outcomes: list[str] = []
    issue(tmp_path)
    source = CertificateSource(tls_files(tmp_path, "cli"), outcomes.append)
    old = source.current()
    issue(tmp_path / "new")

    with caplog.at_level(logging.WARNING):
        (tmp_path / "cli.key").write_bytes((tmp_path / "new" / "cli.key").read_bytes())
        halfway = [source.current(), source.current()]
        (tmp_path / "cli.crt").write_bytes((tmp_path / "new" / "cli.crt").read_bytes())
        new = source.current()

    assert halfway == [old, old]
    assert new.generation == old.generation + 1
    assert new.certificate_chain == (tmp_path / "new" / "cli.crt").read_bytes()
    assert outcomes == ["rejected", "loaded"]
    assert len(caplog.records) == 1


def test_files_that_vanish_leave_the_old_pair_in_use(tmp_path: Path) -> None:
    outcomes: list[str] = []
    issue(tmp_path)
    source = CertificateSource(tls_files(tmp_path, "cli"), outcomes.append)
    old = source.current()

    (tmp_path / "cli.crt").unlink()
    seen = [source.current(), source.current()]

    assert seen == [old, old]
    assert outcomes == ["rejected"]


def run(*arguments: str) -> tuple[int, str]:
    app = typer.Typer()
    app.callback()(lambda: None)
    register(app)
    result = CliRunner().invoke(app, ["certs", *arguments])
    return result.exit_code, result.output


def test_the_command_makes_all_and_says_how_to_use_them(tmp_path: Path) -> None:
    code, output = run("--out", str(tmp_path / "certs"))

    assert code == 0
    assert {file.stem for file in (tmp_path / "certs").iterdir()} == {*ROSTER.identities, "ca"}
    assert re.findall(r"GPULOOM_TLS_\w+", output) == [
        "GPULOOM_TLS_CERT_FILE",
        "GPULOOM_TLS_KEY_FILE",
        "GPULOOM_TLS_CA_FILE",
    ]


def test_the_command_refuses_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "cli.crt").write_text("precious")

    code, output = run("--out", str(tmp_path), "--service", "cli")

    assert code == 1
    assert output.startswith("gpuloom certs: ")
    assert output.count("\n") == 1
