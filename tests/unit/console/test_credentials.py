"""What a request shows of who asks."""

import pytest

from services.console.core.credentials import (
    COOKIE,
    ended_cookie,
    is_loopback_host,
    proxied_user,
    session_cookie,
    token_of,
)


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:80", "127.0.0.1:1", "[::1]:8088", "[::1]", "LOCALHOST"]
)
def test_names_of_this_machine(host: str) -> None:
    assert is_loopback_host(host)


@pytest.mark.parametrize(
    "host",
    ["", "evil.example", "evil.example:8088", "localhost.evil.example", "127.0.0.1.nip.io:80", "10.0.0.1"],
)
def test_any_other_name_may_be_somebody_else_s_page(host: str) -> None:
    assert not is_loopback_host(host)


@pytest.mark.parametrize(
    ("authorization", "cookies", "token"),
    [
        ("Bearer abc.def", "", "abc.def"),
        ("bearer abc", f"{COOKIE}=other", "abc"),
        ("", f"a=b; {COOKIE}=abc", "abc"),
        ("Basic abc", f"{COOKIE}=abc", "abc"),
        ("Bearer a b", "", ""),
        ("", f"{COOKIE}=", ""),
        ("", "no cookie at all", ""),
        ("Bearer abc\ndef", "", ""),
    ],
)
def test_a_bearer_token_counts_before_the_cookie(authorization: str, cookies: str, token: str) -> None:
    assert token_of(authorization, cookies) == token


def test_a_cookie_can_be_neither_read_by_scripts_nor_sent_by_other_sites() -> None:
    attributes = {part.strip() for part in session_cookie("abc").split(";")[1:]}

    assert {"HttpOnly", "Secure", "SameSite=Strict", "Path=/"} <= attributes
    assert COOKIE.startswith("__Host-")
    assert "Max-Age=0" in ended_cookie()


@pytest.mark.parametrize("token", ["", "a;b", "a\r\nSet-Cookie: x=y", "ü", "a" * 4000])
def test_what_is_no_token_or_would_be_cut_makes_no_cookie(token: str) -> None:
    with pytest.raises(ValueError, match="token"):
        session_cookie(token)


def test_a_proxy_names_a_user_and_their_groups() -> None:
    user = proxied_user({"X-User": " ann ", "X-Groups": "a, b,,c"}, "X-User", "X-Groups")

    assert user is not None
    assert (user.name, user.groups) == ("ann", ("a", "b", "c"))
    assert proxied_user({"X-Groups": "system:masters"}, "X-User", "X-Groups") is None
