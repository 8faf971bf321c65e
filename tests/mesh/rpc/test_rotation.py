"""Certificates that are replaced on disk while everything runs."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cryptography import x509
from grpc import aio
from prometheus_client import CollectorRegistry

from gpuloom.errors import UnavailableError
from gpuloom.rpc.dev_ca import CertificateOrder, issue_development_certificates, tls_files
from gpuloom.rpc.environment import RpcEnvironment
from gpuloom.rpc.tls import TlsFiles
from gpuloom.runtime.clock import FakeClock, SystemClock
from gpuloom.v1 import scheduler_extender_pb2 as pb
from tests.mesh.rpc.builders import (
    Extender,
    a_channel,
    a_mesh,
    an_environment,
    an_extender,
    answer,
    issue,
    list_allocations,
    open_decisions,
)
from tests.mesh.waiting import PATIENCE_S


async def test_both_sides_move_to_a_new_ca_without_a_restart(tmp_path: Path) -> None:
    issue(tmp_path, "scheduler_extender", "cli")

    async with a_mesh(tmp_path) as (_, channel):
        await list_allocations(channel)
        _replace_ca(tmp_path)
        response = await list_allocations(channel)

    assert response.next_page_token == "answered"


async def test_a_server_that_moved_on_refuses_the_old_ca(tmp_path: Path) -> None:
    issue(tmp_path, "scheduler_extender", "cli")
    old_client = an_environment(_copy(tmp_path, tmp_path / "old", "cli"))
    serving = an_environment(tls_files(tmp_path, "scheduler_extender"))

    async with an_extender(serving) as server:
        async with a_channel(old_client, server) as channel:
            await list_allocations(channel)
        _replace_ca(tmp_path)
        async with a_channel(old_client, server) as channel:
            with pytest.raises(UnavailableError):
                await list_allocations(channel)


async def test_the_server_sees_the_clients_new_certificate(tmp_path: Path) -> None:
    issue(tmp_path, "scheduler_extender", "cli")
    shown: list[int] = []

    async def note_certificate(
        request: pb.ListAllocationsRequest, context: aio.ServicerContext[object, object]
    ) -> pb.ListAllocationsResponse:
        (pem,) = context.auth_context()["x509_pem_cert"]
        shown.append(x509.load_pem_x509_certificate(pem).serial_number)
        return await answer(request, context)

    async with a_mesh(tmp_path, Extender(on_list=note_certificate)) as (_, channel):
        await list_allocations(channel)
        issue(tmp_path, "cli")
        await list_allocations(channel)

    assert shown[0] != shown[1]


async def test_a_running_stream_survives_the_change_of_certificates(tmp_path: Path) -> None:
    issue(tmp_path, "scheduler_extender", "cli")
    go_on = asyncio.Event()

    async def two_messages(_request: object, _context: object) -> AsyncIterator[pb.WatchDecisionsResponse]:
        yield pb.WatchDecisionsResponse()
        await go_on.wait()
        yield pb.WatchDecisionsResponse()

    async with (
        a_mesh(tmp_path, Extender(on_watch=two_messages)) as (_, channel),
        open_decisions(channel) as messages,
    ):
        first = await anext(messages)
        issue(tmp_path, "cli")
        await list_allocations(channel)
        go_on.set()
        second = await anext(messages)

    assert first == second


async def test_the_old_connection_is_closed_when_its_last_call_ends(tmp_path: Path) -> None:
    issue(tmp_path, "scheduler_extender", "cli")
    clock = FakeClock()
    calling = RpcEnvironment(tls_files(tmp_path, "cli"), CollectorRegistry(), clock)
    serving = an_environment(tls_files(tmp_path, "scheduler_extender"))

    async with an_extender(serving) as server, a_channel(calling, server) as channel:
        async with open_decisions(channel) as messages:
            await anext(messages)
            issue(tmp_path, "cli")
            await list_allocations(channel)
            (retirement,) = channel._retiring
            await clock.advance(3600)
            closed_while_used = retirement.done()
        async with asyncio.timeout(PATIENCE_S):
            await retirement

    assert not closed_while_used


async def test_a_broken_pair_on_disk_leaves_the_old_one_in_use(tmp_path: Path) -> None:
    issue(tmp_path, "scheduler_extender", "cli")
    registry = CollectorRegistry()
    environment = an_environment(tls_files(tmp_path, "cli"), registry)
    serving = an_environment(tls_files(tmp_path, "scheduler_extender"))

    async with an_extender(serving) as server, a_channel(environment, server) as channel:
        (tmp_path / "cli.crt").write_text("-----BEGIN CERTIFICATE-----\nhalf of it")
        await list_allocations(channel)
        response = await list_allocations(channel)

    assert response.next_page_token == "answered"
    assert registry.get_sample_value("gpuloom_rpc_certificate_reloads_total", {"outcome": "rejected"}) == 1


def _replace_ca(folder: Path) -> None:
    (folder / "ca.crt").unlink()
    (folder / "ca.key").unlink()
    issue_development_certificates(
        folder, CertificateOrder(("scheduler_extender", "cli")), SystemClock(), force=True
    )


def _copy(source: Path, target: Path, service: str) -> TlsFiles:
    target.mkdir()
    for name in (f"{service}.crt", f"{service}.key", "ca.crt"):
        (target / name).write_bytes((source / name).read_bytes())
    return tls_files(target, service)
