import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from gpuloom.errors import UnavailableError
from gpuloom.kube.access import KubeAccess, ServerTrust
from gpuloom.kube.client import KubeClient
from gpuloom.kube.credentials import ConfiguredCredential, InlineText
from gpuloom.kube.resources import NODES
from gpuloom.runtime.clock import SystemClock
from tests.unit.kube.certificates import Authority, a_certificate, an_authority

SERVER_NAME = "kube.example"


@asynccontextmanager
async def a_server(authority: Authority, directory: Path) -> AsyncIterator[str]:
    """Wants a client certificate of the same authority, and answers with whom it sees."""
    pem = directory / "server.pem"
    pem.write_text("".join(a_certificate(authority, SERVER_NAME)))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_verify_locations(cadata=authority.pem)
    context.load_cert_chain(pem)
    context.verify_mode = ssl.CERT_REQUIRED

    async def handler(request: web.Request) -> web.Response:
        assert request.transport is not None
        peer = request.transport.get_extra_info("peercert")
        return web.json_response({"peer": dict(pair for (pair,) in peer["subject"])["commonName"]})

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", handler)
    server = TestServer(application, scheme="https")
    await server.start_server(ssl=context)
    try:
        yield f"https://127.0.0.1:{server.port}"
    finally:
        await server.close()


def an_access(server: str, client_of: Authority, trusted: Authority, name: str | None) -> KubeAccess:
    certificate, key = a_certificate(client_of, "gpuloom-extender")
    credential = ConfiguredCredential(None, InlineText(certificate), InlineText(key))
    return KubeAccess(server, credential, ServerTrust(InlineText(trusted.pem), server_name=name))


async def test_both_sides_prove_themselves(tmp_path: Path) -> None:
    authority = an_authority()

    async with a_server(authority, tmp_path) as url:
        access = an_access(url, authority, authority, SERVER_NAME)
        async with KubeClient(access, SystemClock()) as client:
            answer = await client.get(NODES, "n")

    assert answer == {"peer": "gpuloom-extender"}


@pytest.mark.parametrize("wrong", ["authority", "server name"])
async def test_a_server_that_can_not_prove_itself_is_not_talked_to(tmp_path: Path, wrong: str) -> None:
    authority = an_authority()
    trusted = an_authority() if wrong == "authority" else authority
    name = None if wrong == "server name" else SERVER_NAME

    async with (
        a_server(authority, tmp_path) as url,
        KubeClient(an_access(url, authority, trusted, name), SystemClock()) as client,
    ):
        with pytest.raises(UnavailableError):
            await client.create(NODES, {"metadata": {"name": "n"}})
