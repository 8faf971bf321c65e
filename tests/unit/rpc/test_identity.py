import pytest

from gpuloom.errors import InvalidRequestError, NotAllowedError
from gpuloom.rpc.identity import (
    UnauthenticatedError,
    authorize,
    authorized_as,
    identity_from_auth_context,
    identity_from_peer_certificate,
    identity_uri,
    server_name,
)


def test_a_service_has_one_uri_and_one_dns_name() -> None:
    assert identity_uri("scheduler_extender") == "spiffe://gpuloom/scheduler_extender"
    assert server_name("scheduler_extender") == "scheduler-extender.gpuloom"


@pytest.mark.parametrize("name", ["", "Discovery", "a/b", "a.b", "1st", "../cli"])
def test_an_odd_service_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequestError, match="is no service name"):
        identity_uri(name)


def test_the_callers_identity_is_its_one_uri_of_ours() -> None:
    context = {"peer_uri": [b"https://example.org/x", b"spiffe://gpuloom/cli"], "peer_dns": [b"cli.gpuloom"]}

    assert identity_from_auth_context(context) == "cli"


@pytest.mark.parametrize(
    "uris",
    [
        [],
        [b"spiffe://elsewhere/cli"],
        [b"spiffe://gpuloom/cli", b"spiffe://gpuloom/discovery"],
        [b"spiffe://gpuloom/cli", b"spiffe://gpuloom/cli"],
        [b"spiffe://gpuloom/"],
        [b"spiffe://gpuloom/cli/admin"],
        [b"spiffe://gpuloom/\xff"],
    ],
)
def test_anything_but_exactly_one_uri_is_no_identity(uris: list[bytes]) -> None:
    with pytest.raises(UnauthenticatedError):
        identity_from_auth_context({"peer_uri": uris})


def test_a_dns_name_that_reads_like_our_uri_is_no_identity() -> None:
    with pytest.raises(UnauthenticatedError):
        identity_from_peer_certificate({"subjectAltName": (("DNS", "spiffe://gpuloom/cli"),)})


def test_an_https_callers_identity_is_read_from_its_certificate() -> None:
    names = (("DNS", "localhost"), ("URI", "spiffe://gpuloom/kube_scheduler"))

    assert identity_from_peer_certificate({"subjectAltName": names}) == "kube_scheduler"


def test_only_listed_callers_pass() -> None:
    authorize("cli", frozenset({"cli"}), "Explain")
    authorize("anyone", None, "Check")

    with pytest.raises(NotAllowedError, match="discovery may not call Explain"):
        authorize("discovery", frozenset({"cli"}), "Explain")


def test_a_users_program_reads_what_the_command_line_reads_and_changes_nothing() -> None:
    authorize(authorized_as("client", reads=True), frozenset({"cli", "discovery"}), "Explain")

    for caller, allowed in ((authorized_as("client", reads=False), "cli"), ("client", "discovery")):
        with pytest.raises(NotAllowedError, match="client may not call"):
            authorize(caller, frozenset({allowed}), "ReleaseHold")
    assert authorized_as("discovery", reads=True) == "discovery"
