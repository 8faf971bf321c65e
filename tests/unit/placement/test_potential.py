from dataclasses import replace

import numpy as np
import pytest

from gpuloom.model.request import Authority, PodRequest
from gpuloom.placement.demand import Demand
from gpuloom.placement.potential import (
    BUSY_CPU_WEIGHT,
    BUSY_GPUS_WEIGHT,
    LEVEL_CPU_WEIGHT,
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


def test_cpu_is_kept_level_and_gpus_are_not_packed_where_the_cluster_runs_out_of_cpu_first() -> None:
    used = Supply(gpus=100, used_gpus=50, cores=1600, used_cores=800)

    as_much = prices_for(Demand(), used)
    far_more = prices_for(Demand(), replace(used, used_cores=1500))

    assert (as_much.busy_gpus, as_much.busy_cpu) == (BUSY_GPUS_WEIGHT, BUSY_CPU_WEIGHT)
    assert (far_more.busy_gpus, far_more.busy_cpu) == (0, -LEVEL_CPU_WEIGHT)
    assert far_more.card_micro[1000] - far_more.card_micro[0] == -MICRO_PER_GPU


def test_what_runs_on_idle_nodes_anyway_is_no_shortage_of_cpu() -> None:
    idle = Supply(gpus=100, used_gpus=1, cores=1600, used_cores=80)

    assert prices_for(Demand(), idle).busy_cpu == BUSY_CPU_WEIGHT


def test_a_model_is_pinned_by_its_demand_over_what_is_free_of_it() -> None:
    supply = Supply({("T4", "turing"): 90, ("H100", "hopper"): 10})
    demand = learned(whole(1, models=("H100",)), *[whole(1)] * 19)

    prices = prices_for(demand, supply)
    fuller = prices_for(demand, Supply({("T4", "turing"): 90, ("H100", "hopper"): 5}))

    assert prices.pins_micro["T4", "turing"] == 0
    assert prices.pins_micro["H100", "hopper"] == pytest.approx(MICRO_PER_GPU / 2, rel=0.05)
    assert fuller.pins_micro["H100", "hopper"] == pytest.approx(0.95 * MICRO_PER_GPU, rel=0.05)
    by_architecture = prices_for(learned(whole(1, architectures=("turing",))), supply)
    assert by_architecture.pins_micro["T4", "turing"] == MICRO_PER_GPU
    assert by_architecture.highest_pin_micro == MICRO_PER_GPU


def test_a_set_costs_more_the_fewer_nodes_can_hold_it() -> None:
    demand = learned(whole(8), *[a_share(500)] * 99)
    # Of 57.5 GPUs that are asked for, one pod wants 8.
    prices = prices_for(demand, Supply({("T4", "turing"): 5750}))
    half_full = prices_for(demand, Supply({("T4", "turing"): 2875}))

    def price(able: int) -> int:
        (found,) = set_prices_micro(prices, Authority.GPULOOM, {8: able})
        assert found[0] == 8
        return found[1]

    assert price(1) == price(0) == 8 * MICRO_PER_GPU
    assert price(10_000) < price(200) < price(100) < price(90) == price(1)
    assert set_prices_micro(half_full, Authority.GPULOOM, {8: 100}) == ((8, price(200)),)
    assert set_prices_micro(prices, Authority.NVIDIA, {}) == ()
