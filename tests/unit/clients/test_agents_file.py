from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.clients.agents import MAX_FILE_BYTES, parse_agents, read_agents_file
from gpuloom.errors import InvalidRequestError
from gpuloom.runtime.parsers import Address


def test_agents_are_read_by_node_name() -> None:
    body = b'{"n1": "10.0.0.1:50052", "n2": "[fd00::2]:50052", "n3": "agent.local:1"}'

    assert parse_agents(body, "agents.json") == {
        "n1": Address("10.0.0.1", 50052),
        "n2": Address("fd00::2", 50052),
        "n3": Address("agent.local", 1),
    }


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[]", "must be a JSON object"),
        (b'{"n1": 50052}', "address of n1 must be a text host:port"),
        (b'{"n1": "10.0.0.1"}', "address of n1 must be host:port"),
        (b'{"n1": "10.0.0.1:70000"}', "address of n1 must be host:port with a port"),
        (b" " * (MAX_FILE_BYTES + 1), "larger than"),
    ],
)
def test_a_file_that_can_not_be_used_says_why(body: bytes, reason: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"agents.json.*{reason}"):
        parse_agents(body, "agents.json")


@given(st.binary(max_size=40))
def test_no_file_does_more_than_being_refused(body: bytes) -> None:
    try:
        assert isinstance(parse_agents(body, "agents.json"), dict)
    except InvalidRequestError:
        pass


def test_a_file_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match=r"can't read .*agents\.json: No such file"):
        read_agents_file(tmp_path / "agents.json")
