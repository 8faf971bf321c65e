import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuloom.model.request import Authority, PodRequest
from gpuloom.placement.demand import (
    MAX_ENTRIES,
    MAX_JSON_CHARS,
    Demand,
    demand_from_json,
    nominal_milli,
    pods_until_repricing,
)
from tests.effort import examples
from tests.unit.placement.builders import a_share, a_slice, whole
from tests.unit.placement.strategies import requests


def learned(*pods: PodRequest) -> Demand:
    demand = Demand()
    for pod in pods:
        demand = demand.with_pod(pod)
    return demand


def test_shares_sets_and_pins_are_told_apart() -> None:
    demand = learned(
        a_share(470), whole(4, models=("T4", "A100-SXM4-40GB")), whole(2, architectures=("hopper",)), whole(1)
    )

    assert set(demand.shares) == {"470"}
    assert set(demand.sets) == {"gpuloom/4", "gpuloom/2"}
    assert set(demand.pinned) == {"model/T4", "model/A100-SXM4-40GB", "architecture/hopper"}
    assert demand.pods == pytest.approx(4, rel=0.01)
    assert demand.gpus == pytest.approx(7.47, rel=0.01)


def test_a_pod_without_gpus_teaches_nothing() -> None:
    assert learned(whole(0)) == Demand()


def test_old_pods_fade() -> None:
    demand = learned(*[a_share(300)] * 100, *[a_share(700)] * 5000)

    assert demand.shares["300"] < 0.1 * demand.shares["700"]
    assert demand.pods < 2001


def test_a_table_stays_bounded_and_still_learns() -> None:
    demand = learned(*(a_share(milli) for milli in range(1, 1000)), a_share(500))

    assert len(demand.shares) <= MAX_ENTRIES
    assert "500" in demand.shares


def test_a_slice_of_nvidias_plugin_stands_for_what_the_catalogue_says() -> None:
    assert nominal_milli(a_slice("1g.5gb", authority=Authority.NVIDIA).gpu) == 125
    assert nominal_milli(a_slice("9g.unknown", authority=Authority.NVIDIA).gpu) == 1000
    assert nominal_milli(a_slice("1g.5gb", milli=125).gpu) == 125


def test_prices_are_made_anew_soon_at_first_and_seldom_later() -> None:
    assert [pods_until_repricing(learned) for learned in (0, 100, 10_000)] == [16, 100, 512]


@settings(max_examples=examples(50))
@given(st.lists(requests(), max_size=40))
def test_statistics_come_back_from_json(pods: list[PodRequest]) -> None:
    text = learned(*pods).to_json()

    again = demand_from_json(text)

    assert again.to_json() == text
    assert again.pods == pytest.approx(learned(*pods).pods)


NUMBERS = {"v": 1, "pods": 1, "gpus": 1, "cpu_cores": 1, "memory_mib": 1}
TABLES: dict[str, object] = {"shares": {}, "sets": {}, "pinned": {}}


@pytest.mark.parametrize(
    "wrong",
    [
        {"v": 2},
        {"pods": -1},
        {"pods": float("nan")},
        {"gpus": True},
        {"gpus": 10**400},
        {"cpu_cores": "8"},
        {"shares": []},
        {"shares": {"1000": 1}},
        {"shares": {"0": 1}},
        {"shares": {"²": 1}},
        {"sets": {"nobody/2": 1}},
        {"sets": {"gpuloom/": 1}},
        {"pinned": {str(number): 1 for number in range(MAX_ENTRIES + 1)}},
    ],
)
def test_statistics_that_we_did_not_write_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="demand statistics"):
        demand_from_json(json.dumps(NUMBERS | TABLES | wrong))


def test_giant_and_nested_texts_are_refused() -> None:
    with pytest.raises(ValueError, match="longer than"):
        demand_from_json(" " * (MAX_JSON_CHARS + 1))
    with pytest.raises(ValueError, match="nested too deeply"):
        demand_from_json("[" * (MAX_JSON_CHARS - 1))


@settings(max_examples=examples(200))
@given(
    st.text()
    | st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from([*NUMBERS, *TABLES]), inner),
    ).map(json.dumps)
)
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        demand = demand_from_json(text)
    except ValueError:
        return

    assert demand_from_json(demand.to_json()) is not None
