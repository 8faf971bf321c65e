"""The port as browsers use it: pages, state, changes, and who is let in."""

import asyncio
import gzip

import aiohttp
import orjson
import pytest

from services.console.web import events
from services.console.web.files import FOLDER
from services.console.web.server import ConsolePort
from tests.mesh.waiting import until
from tests.unit.console.pages import Fed, Kubernetes, a_console, a_token_gate, next_event

HTML = {"Accept": "text/html"}


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def test_every_answer_forbids_frames_and_scripts_that_are_no_files_of_ours() -> None:
    async with a_console(Fed()) as (_, session):
        for path in ("/", "/static/app.js", "/api/state", "/static/absent.js", "/absent"):
            async with session.get(path) as answer:
                policy = answer.headers["Content-Security-Policy"]
                assert "default-src 'none'" in policy
                assert "unsafe" not in policy
                assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_pages_have_no_inline_scripts_styles_or_addresses_elsewhere() -> None:
    for path in FOLDER.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        assert "style=" not in text
        assert "onclick" not in text
        assert "<script>" not in text
    for path in (*FOLDER.rglob("*.js"), *FOLDER.rglob("*.html"), *FOLDER.rglob("*.css")):
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in text
        assert "https://" not in text
        assert not any(word in text for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "eval("))


async def test_files_are_compressed_and_not_sent_again_while_they_are_the_same() -> None:
    async with a_console(Fed()) as (_, session):
        async with session.get("/static/app.js") as first:
            tag, text = first.headers["ETag"], await first.text()
        async with session.get("/static/app.js", headers={"If-None-Match": tag}) as again:
            assert (again.status, await again.read()) == (304, b"")
        plain = {"Accept-Encoding": "identity"}
        async with session.get("/static/app.js", headers=plain) as uncompressed:
            assert "Content-Encoding" not in uncompressed.headers
            assert await uncompressed.text() == text
        async with session.get("/static/../config.py") as outside:
            assert outside.status == 404


async def test_the_state_is_compressed_and_not_sent_again_while_it_is_the_same() -> None:
    fed = Fed()
    fed.nodes = {str(number): {"node": f"node-{number}"} for number in range(200)}
    await fed.tell()
    async with a_console(fed) as (_, session):
        headers = {"Accept-Encoding": "gzip"}
        session._auto_decompress = False
        async with session.get("/api/state", headers=headers) as answer:
            body = orjson.loads(gzip.decompress(await answer.read()))
            tag = answer.headers["ETag"]
        async with session.get("/api/state", headers={**headers, "If-None-Match": tag}) as again:
            assert again.status == 304
        fed.nodes = {}
        await fed.tell()
        async with session.get("/api/state", headers={**headers, "If-None-Match": tag}) as changed:
            assert changed.status == 200

    assert body["sections"]["nodes"]["7"] == {"node": "node-7"}


async def test_changes_come_as_deltas_and_a_reader_goes_on_where_it_was() -> None:
    fed = Fed()
    await fed.tell()
    async with a_console(fed) as (_, session):
        async with session.get("/api/events") as stream:
            kind, version, full = await next_event(stream)
            assert (kind, full["sections"]["pods"]) == ("full", {})
            fed.pods = {"a": {"namespace": "x"}}
            await fed.tell()
            kind, newer, delta = await next_event(stream)
            assert (kind, delta["after"], delta["version"]) == ("delta", version, newer)
            assert delta["set"] == {"pods": {"a": {"namespace": "x"}}}
        fed.pods = {}
        await fed.tell()
        async with session.get("/api/events", headers={"Last-Event-ID": newer}) as stream:
            kind, _, delta = await next_event(stream)
            assert (kind, delta["after"], delta["gone"]) == ("delta", newer, {"pods": ["a"]})


async def test_a_page_hears_that_it_is_still_connected_while_nothing_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(events, "HEARTBEAT_S", 0.01)
    async with a_console(Fed()) as (_, session), session.get("/api/events") as stream:
        found = [await next_event(stream) for _ in range(3)]

    assert [(kind, version) for kind, version, _ in found[1:]] == [("beat", "")] * 2


@pytest.mark.parametrize("version", ["other.1", "", "nonsense", "x.999999999999999999999"])
async def test_a_reader_with_a_version_of_another_run_begins_anew(version: str) -> None:
    fed = Fed()
    await fed.tell()
    async with (
        a_console(fed) as (_, session),
        session.get("/api/events", params={"after": version}) as stream,
    ):
        assert (await next_event(stream))[0] == "full"


async def test_no_more_pages_watch_than_are_allowed_and_one_that_leaves_makes_room() -> None:
    fed = Fed()
    async with a_console(fed, most_clients=1) as (port, session):
        async with session.get("/api/events") as stream:
            await next_event(stream)
            async with session.get("/api/events") as refused:
                assert refused.status == 503
        fed.pods = {"a": {"namespace": "x"}}
        await fed.tell()
        await until(lambda: not port._streams)
        async with session.get("/api/events") as stream:
            assert (await next_event(stream))[0] == "full"


async def test_a_reader_that_takes_nothing_is_cut_off_and_holds_no_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(events, "SLOW_S", 0.3)
    monkeypatch.setattr(events, "PACE_S", 0.0)
    fed = Fed()
    async with a_console(fed) as (port, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port.port)
        writer.write(b"GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await until(lambda: port._streams)
        for number in range(400):
            fed.nodes = {"big": {"text": str(number) * 200_000}}
            await fed.tell()
            await asyncio.sleep(0.005)
            if not port._streams:
                break
        await until(lambda: not port._streams)
        writer.close()
        del reader

    slow = fed.metrics.streams.labels("slow")
    assert slow._value.get() == 1


async def test_on_loopback_a_page_under_another_name_gets_nothing() -> None:
    async with a_console(Fed()) as (_, session):
        async with session.get("/api/state", headers={"Host": "rebound.example"}) as answer:
            assert answer.status == 421
        async with session.get("/", headers={"Host": "localhost:8088"}) as answer:
            assert answer.status == 200


async def test_without_a_token_a_person_is_led_to_the_form_and_a_program_is_refused() -> None:
    fed = Fed()
    gate = a_token_gate(Kubernetes({"good": "ann"}, {"ann": {"*"}}), fed)
    async with a_console(fed, gate) as (_, session):
        async with session.get("/", headers=HTML, allow_redirects=False) as person:
            assert (person.status, person.headers["Location"]) == (303, "/login")
        for headers in ({}, bearer("bad"), {"X-Forwarded-User": "ann"}):
            async with session.get("/api/state", headers=headers) as program:
                assert program.status == 401
        async with session.get("/api/state", headers=bearer("good")) as let_in:
            assert let_in.status == 200


async def test_a_token_is_shown_once_and_kept_where_no_script_reads_it() -> None:
    fed = Fed()
    gate = a_token_gate(Kubernetes({"good": "ann"}, {"ann": {"*"}}), fed)
    async with a_console(fed, gate) as (_, session):

        async def log_in(token: str, **headers: str) -> aiohttp.ClientResponse:
            return await session.post("/login", data={"token": token}, headers=headers, allow_redirects=False)

        assert (await log_in("bad")).status == 401
        assert (await log_in("no token")).status == 400
        assert (await log_in("good", **{"Sec-Fetch-Site": "cross-site"})).status == 403
        accepted = await log_in("good")
        cookie = accepted.headers["Set-Cookie"]
        assert "HttpOnly" in cookie
        name, value = cookie.split(";")[0].split("=")
        async with session.get("/api/viewer", headers={"Cookie": f"{name}={value}"}) as answer:
            assert await answer.json() == {"name": "ann", "namespaces": None, "can_log_out": True}


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("multipart/form-data", b"x"),
        ("multipart/form-data; boundary=b", b"no part"),
        ("application/x-www-form-urlencoded; charset=none-such", b"token=x"),
        ("application/x-www-form-urlencoded", b"token=\xff\xfe"),
    ],
)
async def test_a_form_that_cannot_be_read_is_refused(kind: str, body: bytes) -> None:
    fed = Fed()
    gate = a_token_gate(Kubernetes({}, {}), fed)
    async with (
        a_console(fed, gate) as (_, session),
        session.post("/login", data=body, headers={"Content-Type": kind}) as answer,
    ):
        assert answer.status == 400
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]


async def test_a_method_that_is_not_allowed_is_told_which_are() -> None:
    async with a_console(Fed()) as (_, session), session.delete("/api/state") as answer:
        assert (answer.status, answer.headers["Allow"]) == (405, "GET,HEAD")


async def test_whoever_may_list_pods_in_some_namespaces_sees_those_everywhere() -> None:
    fed = Fed()
    fed.pods = {"a": {"namespace": "mine"}, "b": {"namespace": "theirs"}}
    await fed.tell()
    kubernetes = Kubernetes({"ann": "ann", "root": "root"}, {"ann": {"mine"}, "root": {"*"}})
    gate = a_token_gate(kubernetes, fed)
    async with a_console(fed, gate) as (_, session):

        async def pods(token: str) -> set[str]:
            async with session.get("/api/state", headers=bearer(token)) as answer:
                return set((await answer.json())["sections"]["pods"])

        async def explained(namespace: str) -> int:
            asked = {"namespace": namespace, "name": "p"}
            async with session.get("/api/explain", params=asked, headers=bearer("ann")) as answer:
                return answer.status

        assert (await pods("ann"), await pods("root")) == ({"a"}, {"a", "b"})
        assert [await explained(one) for one in ("mine", "theirs", "")] == [200, 404, 400]
        async with session.get("/api/events", headers=bearer("ann")) as stream:
            await next_event(stream)
            fed.pods = {"c": {"namespace": "theirs"}, "d": {"namespace": "mine"}}
            await fed.tell()
            _, _, delta = await next_event(stream)
            assert delta["set"] == {"pods": {"d": {"namespace": "mine"}}}
            assert delta["gone"] == {"pods": ["a"]}


async def test_a_stream_ends_when_its_token_is_no_longer_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "REVIEW_S", 0.0)
    monkeypatch.setattr("gpuloom.kube.reviews.BELIEVED_S", 0.0)
    fed = Fed()
    kubernetes = Kubernetes({"good": "ann"}, {"ann": {"*"}})
    async with (
        a_console(fed, a_token_gate(kubernetes, fed)) as (port, session),
        session.get("/api/events", headers=bearer("good")) as stream,
    ):
        await next_event(stream)
        kubernetes.tokens.clear()
        fed.pods = {"a": {"namespace": "x"}}
        await fed.tell()
        await until(lambda: not port._streams)

    assert fed.metrics.streams.labels("refused")._value.get() == 1


async def test_a_drain_ends_streams_at_once() -> None:
    async with a_console(Fed()) as (port, session):
        async with session.get("/api/events") as stream:
            await next_event(stream)
            async with asyncio.timeout(5.0):
                await port.drain()
                await stream.content.read()
        assert isinstance(port, ConsolePort)
        assert not port._streams
