from typing import Any

import pytest

from gpuloom.model.gpu import MILLI_PER_GPU
from services.optimizer.core.advise import LEAST_CONFIDENCE, advise, kin_of
from services.optimizer.core.offers import Offers, SliceOffer
from services.optimizer.core.predict import LEAST_RUNS, outcome_of
from tests.unit.optimizer.builders import a_run, a_workload

CARD_MIB = 40_960
OFFERS = Offers(
    CARD_MIB,
    CARD_MIB,
    (SliceOffer("1g.5gb", 4864, 0.125), SliceOffer("1g.5gb", 4864, 0.125, on_demand=True)),
)


def test_what_an_owners_pods_used_decides_what_its_next_pod_should_ask_for() -> None:
    running = kin_of("owner", (), [a_run([0.04] * 25, memory_mib=3000)])
    ended = kin_of("signature", [outcome_of(a_run([0.04], memory_mib=3000), ended=True)] * LEAST_RUNS, ())

    for kin in (running, ended):
        advice = advise(a_workload(), kin, OFFERS)

        assert advice.utilization_ratio == pytest.approx(0.04, abs=0.001)
        assert (advice.mig_profile, advice.plugin_resource) == ("1g.5gb", "nvidia.com/mig-1g.5gb")
        assert 0 < advice.milli < MILLI_PER_GPU / 2
        assert advice.memory_mib >= 3000
        assert advice.confidence >= LEAST_CONFIDENCE
        assert str(advice.runs) in advice.reason


@pytest.mark.parametrize(
    ("minutes", "ratio", "resources", "labels", "why"),
    [
        (0, 0.1, None, {}, "no pod of its owner was measured"),
        (25, None, None, {}, "no pod of its owner was measured"),
        (5, 0.1, None, {}, "not sure enough"),
        (25, 0.95, None, {}, "nothing clearly smaller"),
        (25, 0.1, {"nvidia.com/gpu": "4"}, {}, "several GPUs"),
        (25, 0.1, None, {"gpu-autoscaler.io/optimize": "false"}, "opted out"),
    ],
)
def test_in_doubt_nothing_is_advised_and_the_reason_is_said(
    minutes: int, ratio: float | None, resources: dict[str, str] | None, labels: dict[str, Any], why: str
) -> None:
    runs = [a_run([ratio] * minutes)] if minutes else []

    advice = advise(a_workload(resources=resources, **labels), kin_of("owner", (), runs), OFFERS)

    assert (advice.mig_profile, advice.plugin_resource, advice.milli) == ("", "", 0)
    assert why in advice.reason
