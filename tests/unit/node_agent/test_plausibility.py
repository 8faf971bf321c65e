"""Values that can't be true are no readings."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.model.gpu import DeviceRef, GpuUsage
from services.node_agent.core.plausibility import Quantity, sift
from services.node_agent.core.readings import DriverReading, GpuSample, InstanceReading
from tests.unit.node_agent.exporter.builders import (
    A_SAMPLE,
    AN_ACTIVITY,
    MIG_GPU,
    SLICES,
    a_card,
    a_cut_card,
    a_full_picture,
)

BIG = DeviceRef(MIG_GPU, SLICES[0])
NUMBERS = st.none() | st.floats() | st.integers(-(2**64), 2**64)


def a_reading(sample: GpuSample) -> DriverReading:
    return DriverReading((a_card(), a_cut_card()), (), None, samples={"GPU-a": sample})


@pytest.mark.parametrize(
    ("name", "value", "quantity"),
    [
        ("utilization_ratio", 1.01, Quantity.UTILIZATION),
        ("encoder_ratio", -0.01, Quantity.UTILIZATION),
        ("temperature_c", -1.0, Quantity.TEMPERATURE),
        ("temperature_c", 4294967295.0, Quantity.TEMPERATURE),
        ("memory_temperature_c", 151.0, Quantity.TEMPERATURE),
        ("power_w", -0.5, Quantity.POWER),
        ("power_w", 4294967.295, Quantity.POWER),
        ("memory_used_mib", 81_921, Quantity.MEMORY),
        ("memory_free_mib", -1, Quantity.MEMORY),
        ("sm_clock_mhz", 4294967295, Quantity.CLOCK),
        ("nvlink_bytes", 2**64 - 1, Quantity.COUNTER),
        ("energy_j", float("nan"), Quantity.COUNTER),
    ],
)
def test_a_value_out_of_range_is_left_out_and_counted_and_no_other(
    name: str, value: float, quantity: Quantity
) -> None:
    wrong: dict[str, Any] = {name: value}
    gap: dict[str, Any] = {name: None}

    sifted, rejected = sift(a_reading(replace(A_SAMPLE, **wrong)))

    assert sifted.samples == {"GPU-a": replace(A_SAMPLE, **gap)}
    assert rejected == {quantity: 1}


def test_usage_activity_instances_and_counters_are_held_to_the_same() -> None:
    counters = replace(A_SAMPLE.counters, power_violation_ns=2**64 - 1)
    reading = replace(
        a_reading(replace(A_SAMPLE, counters=counters, power_w=-1.0)),
        usage=(GpuUsage("GPU-a", 0.5, 100, -1.0, 40.0),),
        activity={DeviceRef("GPU-a"): replace(AN_ACTIVITY, sm_ratio=1.2)},
        instances={BIG: InstanceReading(1, 80_000, 40_000)},
    )

    sifted, rejected = sift(reading)

    assert sifted.usage == (GpuUsage("GPU-a", 0.5, 100, None, 40.0),)
    assert sifted.samples["GPU-a"].counters == replace(A_SAMPLE.counters, power_violation_ns=None)
    assert sifted.activity == {DeviceRef("GPU-a"): replace(AN_ACTIVITY, sm_ratio=None)}
    assert sifted.instances == {BIG: InstanceReading(1, None, 40_000)}
    # The power of a card is one value, told twice.
    assert rejected == {
        Quantity.POWER: 1,
        Quantity.COUNTER: 1,
        Quantity.UTILIZATION: 1,
        Quantity.MEMORY: 1,
    }


def test_a_reading_that_may_be_true_is_left_as_it_is() -> None:
    reading = a_full_picture().reading
    assert reading is not None

    assert sift(reading) == (reading, {})


@given(st.builds(GpuSample, power_w=NUMBERS, memory_used_mib=NUMBERS, temperature_c=NUMBERS))
def test_whatever_a_driver_says_what_is_left_may_be_true(sample: GpuSample) -> None:
    once, rejected = sift(a_reading(sample))

    kept = once.samples["GPU-a"]
    assert kept.power_w is None or 0 <= kept.power_w <= 10_000
    assert kept.memory_used_mib is None or 0 <= kept.memory_used_mib <= 81_920
    assert kept.temperature_c is None or 0 <= kept.temperature_c <= 150
    assert sift(once) == (once, {})
    assert sum(rejected.values()) == sum(
        getattr(sample, name) is not None and getattr(kept, name) is None
        for name in ("power_w", "memory_used_mib", "temperature_c")
    )
