"""What the clouds' answers mean, and that no answer does more harm than being refused."""

from collections.abc import Callable
from datetime import UTC, datetime

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.codec.spot import spot_from_proto, spot_to_proto
from gpuloom.model.spot import SpotNotice, SpotNoticeKind
from services.node_agent.spot.core.answers.aws import interruption_from, rebalance_from, token_from
from services.node_agent.spot.core.answers.azure import machine_name_from, notice_from
from services.node_agent.spot.core.answers.gcp import preemption_from
from services.node_agent.spot.core.problem import MetadataError, Problem
from tests.unit.node_agent.spot.builders import an_azure_event

ME = "aks-gpu-1234-vmss_7"
ENDS_AT = datetime(2016, 9, 19, 18, 29, 47, tzinfo=UTC)

Reader = Callable[[bytes], SpotNotice | None]

READERS: dict[str, Reader] = {
    "aws interruption": interruption_from,
    "aws rebalance": rebalance_from,
    "gcp": preemption_from,
    "azure": lambda body: notice_from(body, ME),
}
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False)
    | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner, max_size=3),
    max_leaves=10,
)
TIMES = (
    st.datetimes().map(str)
    | st.text(max_size=80)
    | st.sampled_from(
        ["9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59", "Fri, 31 Dec 9999 23:59:59 GMT", ""]
    )
)


def events(*listed: object) -> bytes:
    return orjson.dumps({"DocumentIncarnation": 1, "Events": list(listed)})


def an_interruption(time: datetime | None, cloud: str, action: str) -> SpotNotice:
    return SpotNotice(SpotNoticeKind.INTERRUPTION, time, cloud, action)


@pytest.mark.parametrize("action", ["terminate", "stop", "hibernate"])
def test_every_action_of_ec2_takes_the_machine_away(action: str) -> None:
    body = orjson.dumps({"action": action, "time": "2026-09-18T08:22:00Z"})

    notice = interruption_from(body)

    assert notice == an_interruption(datetime(2026, 9, 18, 8, 22, tzinfo=UTC), "aws", action)


@pytest.mark.parametrize("time", ["soon", "", None, 5, "2026-13-01T00:00:00Z", "9999-12-31T23:59:59-23:59"])
def test_an_interruption_whose_time_cannot_be_read_is_still_one(time: object) -> None:
    notice = interruption_from(orjson.dumps({"action": "terminate", "time": time}))

    assert notice == an_interruption(None, "aws", "terminate")


@pytest.mark.parametrize(
    "body", [b"", b"null", b"[]", b"<html>", b"{}", b'{"action": 5}', b'{"action": ""}', b'{"action": "\\n"}']
)
def test_an_action_that_says_nothing_is_refused(body: bytes) -> None:
    with pytest.raises(MetadataError) as raised:
        interruption_from(body)

    assert raised.value.problem is Problem.MALFORMED


def test_a_rebalance_recommendation_is_only_a_hint() -> None:
    notice = rebalance_from(b'{"noticeTime": "2026-10-27T08:22:00Z"}')

    assert notice == SpotNotice(SpotNoticeKind.REBALANCE, datetime(2026, 10, 27, 8, 22, tzinfo=UTC), "aws")


@pytest.mark.parametrize(("body", "preempted"), [(b"TRUE", True), (b"FALSE", False), (b"true\n", True)])
def test_gcp_says_yes_or_no_but_not_when(body: bytes, preempted: bool) -> None:
    notice = preemption_from(body)

    assert notice == (an_interruption(None, "gcp", "preempt") if preempted else None)


@pytest.mark.parametrize("kind", ["Preempt", "Terminate"])
def test_azure_takes_a_machine_away_by_eviction_or_by_scale_in(kind: str) -> None:
    notice = notice_from(events(an_azure_event(kind)), ME)

    assert notice == an_interruption(ENDS_AT, "azure", kind.lower())


@pytest.mark.parametrize("kind", ["Reboot", "Redeploy", "Freeze", "Else", 5, None])
def test_events_after_which_the_machine_is_ours_are_no_notices(kind: object) -> None:
    assert notice_from(events(an_azure_event(EventType=kind)), ME) is None


@pytest.mark.parametrize("resources", [["aks-gpu-1234-vmss_70"], [], None, "aks-gpu-1234-vmss_7", [7, None]])
def test_an_event_of_another_machine_is_not_ours(resources: object) -> None:
    assert notice_from(events(an_azure_event(Resources=resources)), ME) is None


@pytest.mark.parametrize("spelled", ["AKS-GPU-1234-VMSS_7", "_aks-gpu-1234-vmss_7"])
def test_this_machine_is_found_however_azure_spells_it(spelled: str) -> None:
    assert notice_from(events(an_azure_event("Preempt", "another", spelled)), ME) is not None


def test_an_event_that_has_started_has_no_time() -> None:
    started = an_azure_event(EventStatus="Started", NotBefore="")

    assert notice_from(events(started), ME) == an_interruption(None, "azure", "preempt")


def test_of_several_ends_the_first_counts_whatever_their_order() -> None:
    later = an_azure_event("Terminate", NotBefore="Mon, 19 Sep 2016 18:40:00 GMT")
    sooner, foreign = an_azure_event(), an_azure_event("Preempt", "another")

    first, second = (notice_from(events(*order), ME) for order in ((later, sooner, foreign), (sooner, later)))

    assert first == second == an_interruption(ENDS_AT, "azure", "preempt")


@pytest.mark.parametrize(
    "body", [b"{}", b'{"Events": null}', b'{"Events": {}}', b'{"Events": [1]}', b"[", b""]
)
def test_events_that_are_no_list_of_events_are_refused(body: bytes) -> None:
    with pytest.raises(MetadataError):
        notice_from(body, ME)


@pytest.mark.parametrize("body", [b"", b"a b", b"a\r\nX-Evil: 1", b"\xff", b"x" * 2000, b"\x00"])
@pytest.mark.parametrize("read", [token_from, machine_name_from])
def test_what_would_not_fit_a_header_is_no_token_and_no_name(
    read: Callable[[bytes], str], body: bytes
) -> None:
    with pytest.raises(MetadataError):
        read(body)


@pytest.mark.parametrize("cloud", READERS)
@given(body=st.binary(max_size=200) | JSON.map(orjson.dumps))
def test_any_bytes_are_a_notice_none_or_refused(cloud: str, body: bytes) -> None:
    try:
        notice = READERS[cloud](body)
    except MetadataError:
        return

    assert_it_travels(notice)


@given(action=JSON | st.text(), time=TIMES | JSON)
def test_any_action_and_time_are_a_notice_that_travels_or_refused(action: object, time: object) -> None:
    body = orjson.dumps({"action": action, "time": time, "noticeTime": time}, default=str)

    assert_it_travels(rebalance_from(body))
    try:
        notice = interruption_from(body)
    except MetadataError:
        return
    assert_it_travels(notice)


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "EventType": st.sampled_from(["Preempt", "Terminate", "Freeze"]) | JSON,
                "Resources": st.lists(st.just(ME) | JSON, max_size=3) | JSON,
                "NotBefore": TIMES | JSON,
            }
        ),
        max_size=4,
    )
)
def test_any_events_are_a_notice_that_travels_or_none(listed: list[object]) -> None:
    assert_it_travels(notice_from(events(*listed), ME))


def assert_it_travels(notice: SpotNotice | None) -> None:
    """Readers of the state refuse a node whose notice is out of bounds: such a one must never be made."""
    assert notice is None or spot_from_proto(spot_to_proto(notice)) == notice
