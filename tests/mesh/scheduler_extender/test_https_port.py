"""The port that kube-scheduler calls, over TLS: who is served, and what an answer looks like."""

import asyncio
import ssl
from pathlib import Path

import pytest

from gpuloom.rpc.dev_ca import tls_files
from gpuloom.rpc.server import ListenError
from gpuloom.rpc.tls import CertificateSource, TlsFiles, client_ssl_context
from services.scheduler_extender.verbs import https
from services.scheduler_extender.verbs.verbs import VERBS
from tests.mesh.rpc.builders import issue
from tests.mesh.scheduler_extender.desk import a_desk
from tests.mesh.scheduler_extender.kubernetes import JsonObject
from tests.mesh.scheduler_extender.line import a_line, showing_nothing, shown_by
from tests.mesh.scheduler_extender.port import Port, PortOptions, a_port
from tests.unit.scheduler_extender.builders import a_pod

ASKED: JsonObject = {"Pod": a_pod(), "NodeNames": ["n1", "n2"]}

REFUSED_BY_TLS = (ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)


async def test_kube_scheduler_is_served(tmp_path: Path) -> None:
    async with a_port(tmp_path) as port, a_line(port.number, shown_by(tmp_path, "kube_scheduler")) as line:
        filtered = await line.post("/filter", ASKED)
        scored = await line.post("/prioritize", ASKED)
        preempted = await line.post("/preempt", ASKED)

    assert filtered.json == {
        "Nodes": None,
        "NodeNames": ["n1"],
        "FailedNodes": {},
        "FailedAndUnresolvableNodes": {},
        "Error": "",
    }
    assert scored.json == [{"Host": "n1", "Score": 10}, {"Host": "n2", "Score": 0}]
    assert preempted.json == {"NodeNameToMetaVictims": {}}


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_caller_without_a_certificate_is_refused_at_the_handshake(
    tmp_path: Path, version: ssl.TLSVersion
) -> None:
    async with a_port(tmp_path) as port:
        tls = showing_nothing(tmp_path)
        tls.minimum_version = tls.maximum_version = version

        with pytest.raises(REFUSED_BY_TLS):
            async with a_line(port.number, tls) as line:
                await line.post("/filter", ASKED)

        assert port.counted("filter", "ok") is None


async def test_a_certificate_of_another_authority_is_refused_at_the_handshake(tmp_path: Path) -> None:
    issue(tmp_path / "theirs", "kube_scheduler")
    stranger = tls_files(tmp_path / "theirs", "kube_scheduler")

    async with a_port(tmp_path) as port:
        files = TlsFiles(stranger.cert_file, stranger.key_file, tmp_path / "ca.crt")
        tls = client_ssl_context(CertificateSource(files, lambda outcome: None))

        with pytest.raises(REFUSED_BY_TLS):
            async with a_line(port.number, tls) as line:
                await line.post("/filter", ASKED)

        assert port.counted("filter", "ok") is None


@pytest.mark.parametrize("verb", VERBS)
async def test_another_identity_is_forbidden_every_verb(tmp_path: Path, verb: str) -> None:
    async with a_port(tmp_path) as port, a_line(port.number, shown_by(tmp_path, "discovery")) as line:
        answer = await line.post(f"/{verb}", ASKED)
        closed = await line.is_closed()

        assert (answer.status, answer.body) == (403, f"discovery may not call {verb}\n".encode())
        assert closed
        assert port.counted(verb, "forbidden") == 1


async def test_another_identity_does_not_learn_whether_the_extender_is_ready(tmp_path: Path) -> None:
    async with a_port(tmp_path) as port, a_line(port.number, shown_by(tmp_path, "discovery")) as line:
        port.unready = "pods and nodes are not listed yet"

        answer = await line.post("/filter", ASKED)

    assert answer.status == 403


async def test_without_client_certificates_any_caller_is_served(tmp_path: Path) -> None:
    async with (
        a_port(tmp_path, PortOptions(client_certificate=False)) as port,
        a_line(port.number, showing_nothing(tmp_path)) as line,
    ):
        answer = await line.post("/filter", ASKED)

    assert answer.json["NodeNames"] == ["n1"]


@pytest.mark.parametrize("verb", VERBS)
async def test_an_extender_that_is_not_ready_says_why_and_closes(tmp_path: Path, verb: str) -> None:
    async with a_port(tmp_path) as port, a_line(port.number, shown_by(tmp_path, "kube_scheduler")) as line:
        port.unready = "pods and nodes are not listed yet"

        answer = await line.post(f"/{verb}", ASKED)
        closed = await line.is_closed()

        assert answer.status == 503
        assert answer.body == b"GPULoom is not ready: pods and nodes are not listed yet\n"
        assert answer.headers["connection"] == "close"
        assert closed
        assert port.counted(verb, "unready") == 1


async def test_every_call_is_counted_with_its_duration(tmp_path: Path) -> None:
    async with a_port(tmp_path) as port:
        for caller in ("kube_scheduler", "discovery"):
            for verb in VERBS:
                async with a_line(port.number, shown_by(tmp_path, caller)) as line:
                    await line.post(f"/{verb}", ASKED)

        assert [port.timed(verb) for verb in VERBS] == [2, 2, 2, 2]


async def test_a_connection_is_kept_over_many_calls(tmp_path: Path) -> None:
    async with a_port(tmp_path) as port, a_line(port.number, shown_by(tmp_path, "kube_scheduler")) as line:
        answers = [await line.post(path, ASKED) for path in ("/filter", "/prioritize") * 10]

    assert {answer.status for answer in answers} == {200}
    assert {answer.headers.get("connection", "keep-alive") for answer in answers} == {"keep-alive"}


async def test_an_answer_has_a_length_and_is_not_chunked(tmp_path: Path) -> None:
    async with a_port(tmp_path) as port, a_line(port.number, shown_by(tmp_path, "kube_scheduler")) as line:
        names = [f"node-{number}" for number in range(5000)]

        answer = await line.post("/filter", {"Pod": a_pod(), "NodeNames": names})

    assert int(answer.headers["content-length"]) == len(answer.body) > 100_000
    assert "transfer-encoding" not in answer.headers
    assert answer.headers["content-type"].startswith("application/json")


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"{}", b'{"Pod": "p", "PodName": 1}', b"\xff"])
async def test_a_malformed_body_is_the_callers_mistake(tmp_path: Path, verb: str, body: bytes) -> None:
    async with a_port(tmp_path) as port, a_line(port.number, shown_by(tmp_path, "kube_scheduler")) as line:
        answer = await line.post(f"/{verb}", body)

        assert answer.status == 400
        assert answer.body.strip()
        assert port.counted(verb, "invalid") == 1


async def test_an_unknown_path_is_not_found(tmp_path: Path) -> None:
    async with a_port(tmp_path) as port, a_line(port.number, shown_by(tmp_path, "kube_scheduler")) as line:
        answer = await line.post("/evict", ASKED)

    assert answer.status == 404


async def test_a_verb_is_only_posted(tmp_path: Path) -> None:
    async with a_port(tmp_path) as port, a_line(port.number, shown_by(tmp_path, "kube_scheduler")) as line:
        answer = await line.ask("GET", "/filter")

    assert answer.status == 405
    assert answer.headers["allow"] == "POST"


async def test_a_body_beyond_the_bound_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(https, "MAX_BODY_BYTES", 10_000)

    async with a_port(tmp_path) as port, a_line(port.number, shown_by(tmp_path, "kube_scheduler")) as line:
        served = await line.post("/filter", {**ASKED, "Padding": "x" * 9_000})
        answer = await line.post("/filter", {**ASKED, "Padding": "x" * 11_000})

    assert served.status == 200
    assert (answer.status, answer.body) == (413, b"the body is larger than 10000 bytes\n")


async def test_a_port_that_is_taken_is_a_clear_error(tmp_path: Path) -> None:
    async with a_port(tmp_path) as port, a_desk() as desk:
        second = Port(tmp_path, desk, PortOptions(port.number))

        with pytest.raises(ListenError, match=rf"^can't listen on 127\.0\.0\.1 port {port.number}: "):
            await second.http.__aenter__()
