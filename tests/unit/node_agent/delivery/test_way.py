"""Which way devices are delivered, by what the agent sees."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.model.node import Delivery
from services.node_agent.delivery.config import DeliveryWay
from services.node_agent.delivery.core.way import SOCKET_PATIENCE_S, Sight, delivery_of, may_need_environment

NOTHING = Sight(connected=False, was_connected=False, socket_missing_s=SOCKET_PATIENCE_S, runtime_class=True)
SIGHTS = st.builds(Sight, st.booleans(), st.booleans(), st.floats(0, 1e6), st.booleans())


def test_without_a_socket_the_environment_is_the_way() -> None:
    assert delivery_of(DeliveryWay.AUTO, NOTHING) is Delivery.ENV


@pytest.mark.parametrize(
    "sight",
    [
        replace(NOTHING, socket_missing_s=0.0),
        replace(NOTHING, socket_missing_s=SOCKET_PATIENCE_S - 1),
        replace(NOTHING, runtime_class=False),
        replace(NOTHING, was_connected=True),
    ],
    ids=["socket there", "not gone for long", "no runtime class", "the runtime is away"],
)
def test_in_doubt_nothing_is_delivered(sight: Sight) -> None:
    assert delivery_of(DeliveryWay.AUTO, sight) is Delivery.NONE


@given(SIGHTS)
def test_a_connected_runtime_wins_over_the_environment(sight: Sight) -> None:
    connected = replace(sight, connected=True)

    assert delivery_of(DeliveryWay.AUTO, connected) is Delivery.NRI
    assert delivery_of(DeliveryWay.NRI, connected) is Delivery.NRI


@given(SIGHTS)
def test_a_way_that_was_set_is_not_left(sight: Sight) -> None:
    assert delivery_of(DeliveryWay.ENV, sight) is Delivery.ENV
    assert delivery_of(DeliveryWay.NRI, sight) is not Delivery.ENV


@given(SIGHTS)
def test_the_environment_is_used_only_where_the_cluster_was_asked(sight: Sight) -> None:
    if delivery_of(DeliveryWay.AUTO, sight) is Delivery.ENV:
        assert may_need_environment(sight)
