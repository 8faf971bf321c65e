import pytest
import yaml

from gpuloom.cli.scheduling.scheduler_config import SchedulerConfigOptions
from gpuloom.errors import InvalidRequestError
from tests.bench.variants import Variant, interleaved, parse_variants, scheduler_config


def test_every_round_has_every_variant_and_begins_with_another() -> None:
    order = list(interleaved((Variant.BARE, Variant.NOOP, Variant.OURS), 3))

    for number in (1, 2, 3):
        assert {variant for round_number, variant in order if round_number == number} == {
            Variant.BARE,
            Variant.NOOP,
            Variant.OURS,
        }
    assert [variant for _, variant in order[::3]] == [Variant.BARE, Variant.NOOP, Variant.OURS]


@pytest.mark.parametrize("text", ["bare,fast", "bare,bare", ""])
def test_unknown_and_repeated_variants_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError):
        parse_variants(text)


@pytest.mark.parametrize(
    ("variant", "verbs"),
    [
        (Variant.BARE, None),
        (Variant.NOOP, {"filterVerb", "prioritizeVerb", "preemptVerb"}),
        (Variant.NOOP_BIND, {"filterVerb", "prioritizeVerb", "preemptVerb", "bindVerb"}),
        (Variant.OURS, {"filterVerb", "prioritizeVerb", "preemptVerb", "bindVerb"}),
    ],
)
def test_variants_differ_only_in_the_verbs_that_kube_scheduler_calls(
    variant: Variant, verbs: set[str] | None
) -> None:
    config = yaml.safe_load(scheduler_config(variant, SchedulerConfigOptions(kubeconfig="/k")))

    assert config["percentageOfNodesToScore"] == 100
    assert config["clientConnection"]["qps"] >= 1000
    assert config["leaderElection"] == {"leaderElect": False}
    called = [{key for key in entry if key.endswith("Verb")} for entry in config["extenders"]]
    assert called == ([] if verbs is None else [verbs])
