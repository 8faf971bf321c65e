from dataclasses import replace

import numpy as np
import pytest

from gpuloom.model.request import Authority, PodRequest
from gpuloom.placement.demand import Demand
from gpuloom.placement.potential import (
    SHARP_CORES,
    SOFT_CORES,
    Room,
    Supply,
    neutral_prices,
    prices_for,
    set_prices_micro,
    spread_micro,
    starved_micro,
)
from gpuloom.placement.stock import MICRO_PER_GPU
from tests.unit.placement.builders import a_share, whole


def learned(*pods: PodRequest, times: int = 100) -> Demand:
    demand = Demand()
    for _ in range(times):
        for pod in pods:
            demand = demand.with_pod(pod)
    return demand


def a_room(gpus: float, cores: float, memory_gib: float = 1024, known: bool = True) -> Room:
    return Room(
        np.array([int(1000 * gpus)]),
        np.array([int(1000 * cores)]),
        np.array([int(memory_gib * (1 << 30))]),
        np.array([known]),
    )


def test_what_a_gpu_wants_is_learned_from_pods() -> None:
    pod = replace(whole(2), cpu_milli=40_000, memory_bytes=100 << 30)

    prices = prices_for(learned(pod), Supply())

    assert prices.cores_per_gpu == pytest.approx(20, rel=0.1)
    assert prices.mib_per_gpu == pytest.approx(51_200, rel=0.1)
    assert neutral_prices().cores_per_gpu == 8


def test_gpus_starve_as_far_as_they_want_more_cores_than_are_free() -> None:
    prices = neutral_prices()

    plenty, none = starved_micro(a_room(4, 500), prices), starved_micro(a_room(4, 0), prices)

    assert plenty[0] < 0.01 * MICRO_PER_GPU
    assert none[0] == pytest.approx(4 * MICRO_PER_GPU, rel=0.02)


def test_an_unknown_host_counts_for_nothing() -> None:
    room = a_room(4, 0, 0, known=False)

    assert starved_micro(room, neutral_prices())[0] == 0
    assert spread_micro(room, neutral_prices())[0] == MICRO_PER_GPU // 2


def test_shortage_sets_in_sharply_where_all_of_the_cluster_is_short_of_cpu() -> None:
    plenty = prices_for(Demand(), Supply(free_gpus=100, free_cores=4000))
    scarce = prices_for(Demand(), Supply(free_gpus=100, free_cores=800))

    assert (plenty.soft_cores, scarce.soft_cores) == (SOFT_CORES, SHARP_CORES)


def test_a_model_is_pinned_by_its_demand_over_its_supply() -> None:
    supply = Supply({("T4", "turing"): 90, ("H100", "hopper"): 10})

    prices = prices_for(learned(whole(1, models=("H100",)), *[whole(1)] * 19), supply)

    assert prices.pins_micro["T4", "turing"] == 0
    assert prices.pins_micro["H100", "hopper"] == pytest.approx(MICRO_PER_GPU / 2, rel=0.05)
    by_architecture = prices_for(learned(whole(1, architectures=("turing",))), supply)
    assert by_architecture.pins_micro["T4", "turing"] == MICRO_PER_GPU
    assert by_architecture.highest_pin_micro == MICRO_PER_GPU


def test_a_set_costs_more_the_fewer_nodes_can_hold_it() -> None:
    prices = prices_for(learned(whole(8), *[a_share(500)] * 99), Supply())

    def price(able: int) -> int:
        (found,) = set_prices_micro(prices, Authority.GPULOOM, {8: able})
        assert found[0] == 8
        return found[1]

    assert price(1) == price(0) == 8 * MICRO_PER_GPU
    assert price(10_000) < price(100) < price(1)
    assert set_prices_micro(prices, Authority.NVIDIA, {}) == ()
