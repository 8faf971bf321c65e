"""Who is let in, and whom a client believes."""

import asyncio
import ssl
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from grpc import aio

from gpuloom.errors import NotAllowedError, UnavailableError
from gpuloom.rpc.dev_ca import tls_files
from gpuloom.rpc.identity import identity_from_peer_certificate
from gpuloom.rpc.interceptors import UnreachableError
from gpuloom.rpc.tls import CertificateSource, TlsFiles, client_ssl_context, server_ssl_context
from gpuloom.v1 import scheduler_extender_pb2 as pb
from gpuloom.v1 import scheduler_extender_pb2_grpc as pb_grpc
from tests.mesh.rpc.builders import a_channel, a_mesh, an_environment, an_extender, issue, list_allocations
from tests.mesh.waiting import PATIENCE_S


async def test_a_listed_caller_is_served(tmp_path: Path) -> None:
    issue(tmp_path, "scheduler_extender", "cli")

    async with a_mesh(tmp_path) as (_, channel):
        response = await list_allocations(channel)

    assert response.next_page_token == "answered"


async def test_a_caller_who_is_not_listed_is_refused(tmp_path: Path) -> None:
    issue(tmp_path, "scheduler_extender", "discovery")

    async with a_mesh(tmp_path, caller="discovery") as (_, channel):
        with pytest.raises(NotAllowedError, match=r"^discovery may not call ListAllocations$"):
            await list_allocations(channel)


async def test_a_client_certificate_of_another_ca_is_refused(tmp_path: Path) -> None:
    issue(tmp_path / "ours", "scheduler_extender")
    issue(tmp_path / "theirs", "cli")
    stranger = tls_files(tmp_path / "theirs", "cli")
    files = TlsFiles(stranger.cert_file, stranger.key_file, tmp_path / "ours" / "ca.crt")
    serving = an_environment(tls_files(tmp_path / "ours", "scheduler_extender"))

    async with an_extender(serving) as server, a_channel(an_environment(files), server) as channel:
        with pytest.raises(UnavailableError):
            await list_allocations(channel)


async def test_a_client_without_a_certificate_is_refused(tmp_path: Path) -> None:
    issue(tmp_path, "scheduler_extender")
    credentials = grpc.ssl_channel_credentials((tmp_path / "ca.crt").read_bytes())

    async with (
        an_extender(an_environment(tls_files(tmp_path, "scheduler_extender"))) as server,
        aio.secure_channel(f"localhost:{server.port}", credentials) as channel,
    ):
        with pytest.raises(aio.AioRpcError) as refused:
            await pb_grpc.SchedulerExtenderServiceStub(channel).ListAllocations(
                pb.ListAllocationsRequest(), timeout=PATIENCE_S
            )

    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_server_of_another_ca_is_not_believed(tmp_path: Path) -> None:
    issue(tmp_path / "ours", "cli")
    issue(tmp_path / "theirs", "scheduler_extender")
    serving = an_environment(tls_files(tmp_path / "theirs", "scheduler_extender"))
    calling = an_environment(tls_files(tmp_path / "ours", "cli"))

    async with an_extender(serving) as server, a_channel(calling, server) as channel:
        with pytest.raises(UnreachableError, match="CERTIFICATE_VERIFY_FAILED"):
            await list_allocations(channel)


async def test_a_server_with_the_name_of_another_service_is_not_believed(tmp_path: Path) -> None:
    issue(tmp_path, "node_agent", "cli")
    serving = an_environment(tls_files(tmp_path, "node_agent"))
    calling = an_environment(tls_files(tmp_path, "cli"))

    async with an_extender(serving) as server, a_channel(calling, server) as channel:
        with pytest.raises(UnreachableError, match=r"scheduler_extender can't be reached"):
            await list_allocations(channel)


async def test_a_certificate_without_our_uri_is_no_identity(tmp_path: Path) -> None:
    issue(tmp_path, "scheduler_extender", "cli")
    files = tls_files(tmp_path, "cli")
    _strip_names(tmp_path, "cli")

    async with (
        an_extender(an_environment(tls_files(tmp_path, "scheduler_extender"))) as server,
        a_channel(an_environment(files), server) as channel,
    ):
        with pytest.raises(NotAllowedError, match="exactly one URI"):
            await list_allocations(channel)


async def test_an_https_server_takes_a_new_certificate_without_a_restart(tmp_path: Path) -> None:
    issue(tmp_path, "scheduler_extender", "kube_scheduler")
    serving = CertificateSource(tls_files(tmp_path, "scheduler_extender"), lambda _: None)
    calling = CertificateSource(tls_files(tmp_path, "kube_scheduler"), lambda _: None)
    server = await asyncio.start_server(
        _say_who_calls, "127.0.0.1", 0, ssl=server_ssl_context(serving, require_client_certificate=True)
    )

    async with server:
        port = server.sockets[0].getsockname()[1]
        before = await _greet(port, calling)
        issue(tmp_path, "scheduler_extender")
        after = await _greet(port, calling)

    assert before[0] == after[0] == "kube_scheduler"
    assert before[1] != after[1]
    assert after[1] == _serial_number(tmp_path / "scheduler_extender.crt")


async def _say_who_calls(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    connection: ssl.SSLObject = writer.get_extra_info("ssl_object")
    writer.write(identity_from_peer_certificate(connection.getpeercert() or {}).encode())
    writer.close()
    await writer.wait_closed()


async def _greet(port: int, source: CertificateSource) -> tuple[str, int]:
    reader, writer = await asyncio.open_connection("localhost", port, ssl=client_ssl_context(source))
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    caller = (await reader.read()).decode()
    writer.close()
    await writer.wait_closed()
    return caller, x509.load_der_x509_certificate(shown).serial_number


def _serial_number(file: Path) -> int:
    return x509.load_pem_x509_certificate(file.read_bytes()).serial_number


def _strip_names(folder: Path, service: str) -> None:
    """Sign the service's certificate again without its names."""
    whole = x509.load_pem_x509_certificate((folder / f"{service}.crt").read_bytes())
    authority = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
    assert isinstance(authority, ec.EllipticCurvePrivateKey)
    bare = (
        x509.CertificateBuilder()
        .subject_name(whole.subject)
        .issuer_name(whole.issuer)
        .public_key(whole.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(whole.not_valid_before_utc)
        .not_valid_after(whole.not_valid_after_utc)
        .sign(authority, hashes.SHA256())
    )
    (folder / f"{service}.crt").write_bytes(bare.public_bytes(serialization.Encoding.PEM))
