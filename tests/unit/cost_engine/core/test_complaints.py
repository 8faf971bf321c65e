"""What users of other tools complain of, each as a test: the names are the themes.

| complaint | test, here or in tests/contract/cost_engine/test_complaints.py |
|---|---|
| GPUs cost more than their node with time slicing | gpu_cost_above_node_cost_with_time_slicing |
| MIG has no price | mig_is_priced_by_slices_or_by_memory |
| a fraction is charged as a whole GPU | fractions_are_not_charged_as_whole_gpus |
| used is the same as allocated | used_is_not_allocated |
| requests count twice in aggregates | aggregates_by_pod_and_by_namespace_are_the_total |
| every pod of a GPU has the same value, or one has all | more_claimed_than_there_is_is_shared_never_summed |
| pod or exported_pod; labels missing | labels_that_name_another_pod_or_none_change_nobodys_cost |
| idle below zero | idle_is_never_negative_however_much_is_measured |
| idle always 0, or nobody's | idle_is_shown_and_its_pools_owner_can_pay_for_it |
| wrong spot price | a_spot_price_is_the_zones_then_the_last_known_then_estimated_and_says_so |
| custom price ignored | a_custom_price_is_taken_as_it_is |
| a new machine type costs 0 | a_new_machine_type_is_unpriced_and_never_free |
| pods of one name are merged | the_same_name_again_is_another_pod |
| a duplicate series doubles totals | a_duplicate_series_never_doubles_a_total |
| gaps after a restart | a_gap_after_a_restart_is_marked_and_ends_where_usage_shows_the_pod_last |
| a bill that changes afterwards | a_late_window_changes_no_bill_and_an_answer_says_whether_it_is_final |
| short pods have wrong times | short_pods_have_the_kubelets_times_to_the_second |
| small amounts are 0 | small_amounts_are_not_rounded_to_nothing |
| labels end up unallocated | labels_are_those_of_the_pod_else_its_namespace_else_unallocated |
| a currency is only a symbol | another_currency_is_refused_and_not_relabelled |
| long windows are slow | a_long_window_is_answered_from_sums_by_day_alone |
"""

import json

import pytest

from gpuloom.kube.objects import JsonObject
from services.cost_engine.core.attribution import IDLE, UsageTotals, bill_of
from services.cost_engine.core.exports import decimal
from services.cost_engine.core.grouping import Amounts, CostFact, grouped, total
from services.cost_engine.core.intervals import HOUR_NS, UNITS_PER_GPU, NodeInterval, NodeTraits, PodIdentity
from services.cost_engine.core.objects import (
    SliceRule,
    node_traits,
    pod_claim,
    pod_identity,
    pod_times,
    slice_units,
)
from services.cost_engine.core.prices import SPOT, PriceBook, Quality, Source
from services.cost_engine.core.savings import monthly
from services.cost_engine.core.teams import UNALLOCATED, TeamRule, parse_rules
from services.cost_engine.core.tracking import REMOVED_NS, Tracker
from services.cost_engine.prices.catalogue import catalogue_prices, custom_prices
from tests.unit.cost_engine.core.builders import START_NS, a_pod, a_price, an_hour, some_traits


def a_kube_node(name: str = "n", **capacity: str) -> JsonObject:
    labels = {"node.kubernetes.io/instance-type": "g4dn.xlarge", "nvidia.com/gpu.count": "1"}
    return {
        "metadata": {
            "name": name,
            "uid": f"uid-{name}",
            "labels": labels,
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "status": {"capacity": {key.replace("_", "/"): value for key, value in capacity.items()}},
    }


def a_kube_pod(uid: str, resource: str, amount: int, **status: object) -> JsonObject:
    return {
        "metadata": {"name": "web", "namespace": "a", "uid": uid},
        "spec": {
            "nodeName": "n",
            "containers": [{"name": "c", "resources": {"limits": {resource: str(amount)}}}],
        },
        "status": {"phase": "Running", "startTime": "2026-01-01T00:00:00Z", **status},
    }


def test_gpu_cost_above_node_cost_with_time_slicing() -> None:
    node = a_kube_node(**{"nvidia.com_gpu": "4"})
    traits = node_traits(node)
    assert traits is not None
    claims = [pod_claim(a_kube_pod(str(n), "nvidia.com/gpu", 1), traits) for n in range(4)]
    assert {claim.units for claim in claims if claim} == {UNITS_PER_GPU // 4}

    rows = an_hour(some_traits(), [a_pod(str(n), 250) for n in range(4)], [a_price()])

    assert sum(row.cost for row in rows.values()) == 526_000_000


def test_more_claimed_than_there_is_is_shared_never_summed() -> None:
    """DCGM gives the same value to every pod of a shared GPU; the GPU is paid for once all the same."""
    rows = an_hour(some_traits(), [a_pod(str(n)) for n in range(3)], [a_price()])

    assert sorted(row.cost for row in rows.values()) == [175_333_333, 175_333_333, 175_333_334]


@pytest.mark.parametrize(("rule", "three"), [(SliceRule.COMPUTE, 3 / 7), (SliceRule.MEMORY, 4 / 8)])
def test_mig_is_priced_by_slices_or_by_memory(rule: SliceRule, three: float) -> None:
    traits = some_traits("p4de.24xlarge", 8, gpu_model="A100-SXM4-80GB")

    assert 7 * slice_units("1g.10gb", traits, SliceRule.COMPUTE) == UNITS_PER_GPU
    assert slice_units("3g.40gb", traits, rule) == UNITS_PER_GPU * three


def test_fractions_are_not_charged_as_whole_gpus() -> None:
    rows = an_hour(some_traits(), [a_pod(str(n), 250) for n in range(4)], [a_price()])

    assert [row.cost for row in rows.values()] == [131_500_000] * 4


def test_used_is_not_allocated() -> None:
    usage = {"p": UsageTotals(measured_ns=HOUR_NS, used_ns=HOUR_NS // 10)}

    row = an_hour(some_traits(), [a_pod("p")], [a_price()], usage)["p"]

    assert (row.used, row.idle, row.unknown) == (52_600_000, 473_400_000, 0)


def test_aggregates_by_pod_and_by_namespace_are_the_total() -> None:
    facts = [
        CostFact(0, uid, Amounts(cost=amount, unknown=amount), PodIdentity(uid, ns, uid))
        for uid, ns, amount in (("1", "a", 7), ("2", "a", 8), ("3", "b", 9))
    ]

    assert (
        total(grouped(facts, ("pod",))) == total(grouped(facts, ("namespace",))) == total(grouped(facts, ()))
    )


def test_idle_is_never_negative_however_much_is_measured() -> None:
    usage = {"p": UsageTotals(measured_ns=9 * HOUR_NS, used_ns=8 * HOUR_NS)}

    row = an_hour(some_traits(), [a_pod("p", 100)], [a_price()], usage)["p"]

    assert (row.used, row.idle, row.unknown) == (row.cost, 0, 0)


def test_idle_is_shown_and_its_pools_owner_can_pay_for_it() -> None:
    rows = an_hour(some_traits(gpus=4), [a_pod("p")], [a_price()])
    assert rows[IDLE].cost == 526_000_000 * 3 // 4
    idle = CostFact(0, IDLE, Amounts(cost=9, unallocated=9), None, pool="research")

    paid = grouped([idle], ("team",), [TeamRule({"lab": 1}, pools=("research",), idle=True)])

    assert [row.group for row in paid] == [("lab",)]


def test_a_spot_price_is_the_zones_then_the_last_known_then_estimated_and_says_so() -> None:
    traits = some_traits(region="r", zone="r-a", capacity_type=SPOT)
    listed = a_price(usd_nano=1000, place=("r", ""))
    old = a_price(usd_nano=300, kind=SPOT, place=("r", "r-a"), until_ns=START_NS)
    now = a_price(usd_nano=320, kind=SPOT, place=("r", "r-a"), since_ns=START_NS)

    found = [
        PriceBook(prices).at(traits, START_NS + 1)
        for prices in ([listed, old, now], [listed, old], [listed], [])
    ]

    told = [None if price is None else (price.nano_usd_per_hour, price.quality) for price in found]
    assert told == [(320, Quality.EXACT), (300, Quality.STALE), (400, Quality.ESTIMATED), None]


def test_a_custom_price_is_taken_as_it_is() -> None:
    text = '[[price]]\ninstance_type = "g4dn.xlarge"\nusd_per_hour = "0.123456789"\n'
    book = PriceBook([*catalogue_prices(), *custom_prices(text)])

    found = book.at(some_traits(region="us-east-1"), START_NS)

    assert found is not None
    assert (found.nano_usd_per_hour, found.price.source) == (123_456_789, Source.CUSTOM)


def test_a_machine_that_was_bought_costs_its_years_its_power_and_its_overhead() -> None:
    text = """[[machine]]\ninstance_type = "dgx"\npurchase_usd = "175200"\nyears = 4\npower_watts = 10000
usd_per_kwh = "0.20"\ncooling_percent = 50\noverhead_usd_per_year = "8760"\n"""

    (price,) = custom_prices(text)

    assert price.nano_usd_per_hour == 5_000_000_000 + 3_000_000_000 + 1_000_000_000


@pytest.mark.parametrize("amount", ["0", "-1", "NaN", "Infinity", "abc", "", "1e10", "1e999999999999999999"])
def test_a_price_of_zero_below_or_none_at_all_is_refused_with_the_entry(amount: str) -> None:
    with pytest.raises(ValueError, match="price 1"):
        custom_prices(f'[[price]]\ninstance_type = "x"\nusd_per_hour = "{amount}"\n')


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("price = 5", "must be"),
        ("[price]\ninstance_type = 'x'", "must be"),
        ("[[machine]]\ninstance_type = 'x'\npurchase_usd = 1\nyears = 0", "years must be above 0"),
        ("[[machine]]\ninstance_type = 'x'\npurchase_usd = '1e999999999999999999'\nyears = 1", "no price"),
        ("[[price]]\ninstance_type = 'x'\nusd_per_hour = 1\nvalid_from = 9999-01-01", "1970 and 2242"),
        ("[[price]]\ninstance_type = 'x'\nusd_per_hour = 1\nvalid_from = 0001-01-01", "1970 and 2242"),
        ('[[price]]\ninstance_type = "x\\u0000"\nusd_per_hour = 1', "character 0"),
        ("[[price]]\ninstance_type = 'x'\nusd_per_hour = 1\n" * 2, "two on-demand prices"),
    ],
)
def test_a_file_of_prices_that_could_not_be_kept_is_refused_with_a_reason(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        custom_prices(text)


@pytest.mark.parametrize("labels", ["5", "[1]", "'ab'", "{ a = { b = 1 } }"])
def test_team_rules_with_labels_that_are_none_are_refused_with_the_rule(labels: str) -> None:
    with pytest.raises(ValueError, match="rule 1: labels"):
        parse_rules(f"[[rule]]\nteams = {{ a = 1 }}\nlabels = {labels}\n")


def test_a_new_machine_type_is_unpriced_and_never_free() -> None:
    rows = an_hour(some_traits("p9.mega"), [a_pod("p")], [a_price()])

    assert (rows["p"].price, rows["p"].cost, rows["p"].unpriced_ns) == (None, 0, HOUR_NS)


def test_the_same_name_again_is_another_pod() -> None:
    tracker = Tracker(0, (), SliceRule.COMPUTE)
    tracker.observe_node(a_kube_node(**{"nvidia.com_gpu": "1"}), START_NS)
    first, second = (a_kube_pod(uid, "nvidia.com/gpu", 1) for uid in ("one", "two"))

    tracker.observe_pod(first, START_NS)
    tracker.forget_pod(first, START_NS + HOUR_NS)
    tracker.observe_pod(second, START_NS + 2 * HOUR_NS)

    ends = [(change.interval.pod_uid, change.interval.end_ns) for change in tracker.drain().pods]
    assert ends == [("one", None), ("one", START_NS + HOUR_NS), ("two", None)]


def test_a_gap_after_a_restart_is_marked_and_ends_where_usage_shows_the_pod_last() -> None:
    tracker, before = Tracker(0, (), SliceRule.COMPUTE), Tracker(0, (), SliceRule.COMPUTE)
    before.observe_node(a_kube_node(**{"nvidia.com_gpu": "1"}), START_NS)
    before.observe_pod(a_kube_pod("one", "nvidia.com/gpu", 1), START_NS)
    before.observe_pod(a_kube_pod("two", "nvidia.com/gpu", 1), START_NS)
    seen = dict.fromkeys(("uid-n", "one", "two"), START_NS + 5)
    tracker.restore([(node, 5) for node in before.nodes.values()], [(pod, 5) for pod in before.pods.values()])

    tracker.settle(seen, frozenset({"uid-n"}), {"two": START_NS + 9}, START_NS + 20)

    pending = tracker.drain()
    assert {change.interval.pod_uid: change.interval.end_ns for change in pending.pods} == {
        "one": START_NS + 5,
        "two": START_NS + 9,
    }
    assert [(gap.pod_uid, gap.start_ns, gap.end_ns) for gap in pending.gaps] == [
        ("one", START_NS + 5, START_NS + 20 + REMOVED_NS),
        ("two", START_NS + 9, START_NS + 20 + REMOVED_NS),
    ]


def test_short_pods_have_the_kubelets_times_to_the_second() -> None:
    condition = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:03Z"}
    done = {"state": {"terminated": {"finishedAt": "2026-01-01T00:00:11Z"}}}
    pod = a_kube_pod(
        "p", "nvidia.com/gpu", 1, phase="Succeeded", conditions=[condition], containerStatuses=[done]
    )

    times = pod_times(pod)

    assert times.start_ns is not None
    assert times.end_ns is not None
    assert (times.end_ns - times.start_ns, times.ended) == (8_000_000_000, True)


def test_small_amounts_are_not_rounded_to_nothing() -> None:
    assert decimal(1) == "0.000000001"


def test_labels_are_those_of_the_pod_else_its_namespace_else_unallocated() -> None:
    pod = a_kube_pod("p", "nvidia.com/gpu", 1)
    pod["metadata"]["labels"] = {"gpu-project": "search"}
    identity = pod_identity(pod, {"gpu-project": "other", "gpu-cost-center": "4711"})
    fact = CostFact(0, "p", Amounts(cost=1, unknown=1), identity)

    groups = grouped([fact], ("label:gpu-project", "label:gpu-cost-center", "label:none"))[0].group

    assert groups == ("search", "4711", UNALLOCATED)


def test_another_currency_is_refused_and_not_relabelled() -> None:
    with pytest.raises(ValueError, match="must be in USD"):
        custom_prices('currency = "EUR"\n[[price]]\ninstance_type = "x"\nusd_per_hour = "1"\n')


def test_hostile_labels_and_huge_annotations_stay_what_they_are() -> None:
    labels = {"quote": "'\";--", "unicode": "日本\u202e", "long": "x" * 70_000}
    pod = a_kube_pod("p", "nvidia.com/gpu", 1)
    pod["metadata"] |= {"labels": labels, "annotations": {"x": "y" * 63_000}}

    kept = pod_identity(pod).labels

    assert kept == {"quote": "'\";--", "unicode": "日本\u202e"}
    assert json.loads(json.dumps(dict(kept))) == kept


def test_the_printed_example_of_a_p3_2xlarge() -> None:
    """On demand 3.06 USD/h is 2,203 USD a month of 720 h; spot 1.20 is 864; ten nodes with six spot."""
    book = PriceBook(catalogue_prices())
    rates = {}
    for kind in ("on-demand", "spot"):
        node = NodeInterval(
            "n", START_NS, None, NodeTraits("n", 1, instance_type="p3.2xlarge", capacity_type=kind)
        )
        rates[kind] = bill_of(node, START_NS, START_NS + 720 * HOUR_NS, book)

    on_demand, spot = rates["on-demand"], rates["spot"]

    assert (on_demand, spot) == (monthly(3_060_000_000, 720), monthly(1_200_000_000, 720))
    assert (round(on_demand / 1e9), round(spot / 1e9)) == (2203, 864)
    assert round((on_demand - spot) / 1e9) == 1339
    assert int((on_demand - spot) * 100 / on_demand) in (60, 61)
    # The document adds rounded amounts: 6 x 864 + 4 x 2,203.
    assert 6 * round(spot / 1e9) + 4 * round(on_demand / 1e9) == 13_996


def test_a_pod_that_is_seen_before_its_node_is_placed_when_the_node_is_seen() -> None:
    tracker = Tracker(0, (), SliceRule.COMPUTE)
    tracker.observe_pod(a_kube_pod("early", "nvidia.com/gpu", 1), START_NS)
    tracker.observe_pod(a_kube_pod("cpu", "cpu", 1), START_NS)
    assert tracker.drain().pods == []

    tracker.observe_node(a_kube_node(**{"nvidia.com_gpu": "1"}), START_NS)
    pending = tracker.drain()
    tracker.give_back(pending, START_NS)

    assert [change.interval.pod_uid for change in tracker.drain().pods] == ["early"]
