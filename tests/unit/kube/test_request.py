import pytest

from gpuloom.kube.errors import Call, KubeAccessError
from gpuloom.kube.request import Request, RequestWriter

LIST = Call("list", "pods", "")


def test_a_read_is_its_path_with_query_and_headers() -> None:
    query = {"labelSelector": "a=b,c in (d)", "limit": "5"}

    written = RequestWriter("kube:6443", "/prefix").bytes_of(Request("GET", "/api", LIST, query), "secret")

    line, *headers = written.decode().split("\r\n")
    assert line == "GET /prefix/api?labelSelector=a%3Db%2Cc%20in%20%28d%29&limit=5 HTTP/1.1"
    assert {"Host: kube:6443", "Authorization: Bearer secret", "Accept-Encoding: gzip"} <= set(headers)
    assert written.endswith(b"\r\n\r\n")


def test_a_write_says_how_long_its_body_is() -> None:
    request = Request("POST", "/api", LIST, body={"name": "grün"}, content_type="application/x")

    written = RequestWriter("kube", "").bytes_of(request, None)

    head, _, body = written.partition(b"\r\n\r\n")
    assert body == '{"name":"grün"}'.encode()
    assert b"Content-Length: 16\r\n" in head + b"\r\n"
    assert b"Content-Type: application/x\r\n" in head + b"\r\n"
    assert b"Authorization" not in head


def test_a_new_token_is_used_at_once() -> None:
    writer = RequestWriter("kube", "")
    writer.bytes_of(Request("GET", "/", LIST), "old")

    written = writer.bytes_of(Request("GET", "/", LIST), "new")

    assert b"Bearer new\r\n" in written
    assert b"old" not in written


@pytest.mark.parametrize("token", ["two\r\nX-Admin: true", "a b", "tokén", "nul\0"])
def test_a_token_that_would_not_stay_in_its_header_is_refused(token: str) -> None:
    writer = RequestWriter("kube", "")

    with pytest.raises(KubeAccessError):
        writer.bytes_of(Request("GET", "/", LIST), token)
