import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.runtime.spelling import intended_name, is_one_edit

KNOWN = ("GPULOOM_HTTP_PORT", "GPULOOM_LOG_LEVEL", "GPULOOM_AGENT_MODE", "GPULOOM_TLS_KEY")


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("GPULOOM_LOG_LEVLE", "GPULOOM_LOG_LEVEL"),
        ("GPULOOM_LOG_LEVE", "GPULOOM_LOG_LEVEL"),
        ("GPULOOM_LOGLEVEL", "GPULOOM_LOG_LEVEL"),
        ("GPULOOM_HTTP_PROT", "GPULOOM_HTTP_PORT"),
        ("GPULOOM_HTPT_PORT", "GPULOOM_HTTP_PORT"),
        ("gpuloom_http_port", "GPULOOM_HTTP_PORT"),
        ("GPULOOM_AGNET_MODE", "GPULOOM_AGENT_MODE"),
    ],
)
def test_a_slip_of_the_pen_is_recognised(written: str, meant: str) -> None:
    assert intended_name(written, KNOWN) == meant


@pytest.mark.parametrize(
    "written",
    [
        "GPULOOM_HTTPS_PORT",
        "GPULOOM_GRPC_PORT",
        "GPULOOM_HTTP_HOST",
        "GPULOOM_AGENT_NODE",
        "GPULOOM_AGENTS_MODE",
        "GPULOOM_TLS_CERT",
        "GPULOOM_TLS_KEX",
        "GPULOOM_DATA",
        "GPULOOM_HTTP_PORT1",
    ],
)
def test_a_name_that_may_belong_to_another_service_is_left_alone(written: str) -> None:
    assert intended_name(written, KNOWN) is None


@given(st.text("ABC", min_size=1, max_size=8), st.data())
def test_dropping_or_swapping_letters_is_one_edit_in_both_directions(word: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(word) - 1))
    dropped = word[:at] + word[at + 1 :]
    swapped = word[:at] + word[at : at + 2][::-1] + word[at + 2 :]

    assert is_one_edit(word, dropped)
    assert is_one_edit(dropped, word)
    assert swapped == word or is_one_edit(swapped, word)
