from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.catalog import load_catalog
from gpuloom.codec.pod import pod_request
from gpuloom.model.node import NodeMode
from gpuloom.model.optimization import WorkloadClass
from gpuloom.model.snapshot import NodeFacts
from services.optimizer.core.offers import Fit, Need, Offers, SliceOffer, held_gpus, offers_of, smallest_fit
from services.optimizer.core.recommend import change_of, new_manifest
from services.optimizer.core.waste import WasteRule, observe, waste_parts
from services.optimizer.core.workload import request_text
from tests.unit.discovery.builders import a_state
from tests.unit.optimizer.builders import NOON, a_pod, a_run, a_workload

RULE = WasteRule()
CARD_MIB = 40_960
OFFERS = Offers(CARD_MIB, CARD_MIB, (SliceOffer("1g.5gb", 4864, 0.125), SliceOffer("3g.20gb", 20_096, 0.5)))


@pytest.mark.parametrize(
    ("ratios", "wastes"),
    [
        ([0.2] * 10, True),
        ([0.2] * 5, False),  # not more than five minutes
        ([0.9] * 4 + [0.2] * 6, True),
        ([0.2] * 5 + [0.9] * 5, False),
        ([0.49] * 10, True),
        ([0.51] * 10, False),
        ([None] * 10, False),  # not measured is not waste
        ([0.0] * 20 + [0.9] * 10, False),  # long ago
    ],
)
def test_the_rule_of_the_contract(ratios: list[float | None], wastes: bool) -> None:
    run = a_run(ratios)

    observed = observe(run, RULE, run.seen_until + timedelta(seconds=30))

    assert (observed is not None) == wastes


def test_a_share_is_judged_by_what_it_was_given() -> None:
    busy, idle = a_run([0.2] * 10, milli=250), a_run([0.2] * 10, milli=1000)

    assert observe(busy, RULE, busy.seen_until) is None
    assert observe(idle, RULE, idle.seen_until) is not None


def test_minutes_that_nobody_saw_and_a_clock_that_jumped_are_no_waste() -> None:
    run = a_run([0.1] * 10)

    assert observe(run, RULE, NOON + timedelta(hours=3)) is None
    assert observe(a_run([]), RULE, NOON) is None


@given(st.floats(0, 0.49), st.floats(0, CARD_MIB), st.booleans())
def test_a_score_is_from_0_to_100_and_a_fit_is_smaller_and_enough(
    ratio: float, memory_mib: float, may_share: bool
) -> None:
    workload, run = a_workload(), a_run([ratio] * 10, memory_mib=memory_mib)
    need = Need(run.quantile(0.95) or 0.0, memory_mib)

    fit = smallest_fit(workload.request, need, OFFERS, may_share=may_share)
    observed = observe(run, RULE, run.seen_until)
    assert observed is not None
    parts = waste_parts(workload, observed, WorkloadClass.INFERENCE, fit, run)

    assert 0 <= parts.score <= 100
    if fit is not None:
        amounts = dict(fit.resources)
        assert fit.gpus < held_gpus(workload.request)
        assert fit.gpus >= need.utilization
        memory = amounts.get("gpuloom.dev/gpu-memory-mib")
        slices = {f"nvidia.com/mig-{each.profile}": each.memory_mib for each in OFFERS.slices}
        assert memory_mib <= (memory or max(slices.get(name, 0) for name in amounts))


def test_only_what_trusted_nodes_have_is_offered() -> None:
    ours, theirs = a_state("n1"), a_state("n2")
    nodes = [
        NodeFacts(ours, untrusted_reasons=("the agent is silent",)),
        NodeFacts(theirs),
    ]

    offers = offers_of(nodes, load_catalog())

    assert offers.share_memory_mib == (theirs.gpus[0].memory_mib if theirs.mode is NodeMode.GPULOOM else 0)
    assert sum(offers.gpus.values()) == len(theirs.gpus)


def test_a_card_that_the_catalogue_lacks_hides_no_other() -> None:
    strange, known = (
        replace(a_state().gpus[0], model=model, mig_enabled=True, mig_instances=())
        for model in ("X900-SXM", "NVIDIA A100-SXM4-40GB")
    )
    state = replace(a_state(), mode=NodeMode.GPULOOM, gpus=(strange, known))

    offers = offers_of([NodeFacts(state)], load_catalog())

    assert "1g.5gb" in {each.profile for each in offers.slices}


@pytest.mark.parametrize(
    ("models", "part"),
    [
        (["NVIDIA A100-SXM4-40GB"], 0.25),
        (["NVIDIA A100-SXM4-80GB"], 0.125),
        (["NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-40GB"], 0.125),
    ],
)
def test_a_slice_is_the_part_of_a_gpu_that_it_is_on_the_models_that_are_here(
    models: list[str], part: float
) -> None:
    cards = tuple(
        replace(a_state().gpus[0], model=model, mig_enabled=True, mig_instances=()) for model in models
    )
    state = replace(a_state(), mode=NodeMode.GPULOOM, gpus=cards)

    offers = offers_of([NodeFacts(state)], load_catalog())

    assert {each.profile: each.gpus for each in offers.slices}["1g.10gb"] == part


def test_a_deployment_gets_a_patch_that_takes_the_old_request_away() -> None:
    workload = a_workload(
        "web-6d4cf56db6-aaaa1",
        owner=("ReplicaSet", "web-6d4cf56db6"),
        **{"pod-template-hash": "6d4cf56db6"},
    )
    fit = Fit((("gpuloom.dev/gpu-milli", 250), ("gpuloom.dev/gpu-memory-mib", 2048)), 0.25)

    change = change_of(workload, fit, None)

    assert change is not None
    assert (change.target, change.is_patch) == ("Deployment/web", True)
    (container,) = change.document["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {
        "nvidia.com/gpu": None,
        "gpuloom.dev/gpu-milli": "250",
        "gpuloom.dev/gpu-memory-mib": "2048",
    }


def test_a_slice_that_our_nodes_cut_is_asked_for_by_its_profile_and_its_part() -> None:
    card = replace(a_state().gpus[0], model="NVIDIA A100-SXM4-40GB", mig_enabled=True, mig_instances=())
    state = replace(a_state(), mode=NodeMode.GPULOOM, gpus=(card,))
    offers = offers_of([NodeFacts(state)], load_catalog())
    bare = a_pod("train-1")
    bare["metadata"]["annotations"] = {"gpuloom.dev/allocation": "{}", "gpuloom.dev/no-disrupt": "true"}
    owned = a_workload("web-1-aaaa1", owner=("ReplicaSet", "web-1"), **{"pod-template-hash": "1"})

    fit = smallest_fit(owned.request, Need(0.1, 2000.0), offers, may_share=True)
    assert fit is not None
    new, change = new_manifest(a_workload("train-1"), fit, bare), change_of(owned, fit, None)

    request = pod_request(new)
    assert request is not None
    assert change is not None
    template = change.document["spec"]["template"]
    assert str(fit) == request_text(request.gpu) == "gpuloom.dev/gpu-milli=125,mig=1g.5gb"
    assert new["metadata"]["annotations"] == {
        "gpuloom.dev/no-disrupt": "true",
        "gpuloom.dev/mig-profile": "1g.5gb",
    }
    assert template["metadata"]["annotations"] == {"gpuloom.dev/mig-profile": "1g.5gb"}


def test_a_bare_pod_gets_a_manifest_that_asks_for_the_fit_and_nothing_else() -> None:
    pod = a_pod("train-1")
    pod["metadata"]["annotations"] = {"gpuloom.dev/allocation": "{}", "team/note": "kept"}
    fit = Fit((("nvidia.com/mig-1g.5gb", 1),), 0.125)

    new = new_manifest(a_workload("train-1"), fit, pod)

    request = pod_request(new)
    assert request is not None
    assert request.gpu.mig_profile == "1g.5gb"
    assert new["metadata"]["name"] == "train-1-right-sized"
    assert new["metadata"]["annotations"] == {"team/note": "kept"}
    assert "nodeName" not in new["spec"]
    assert "uid" not in new["metadata"]


def test_a_jobs_manifest_leaves_out_what_the_api_server_adds() -> None:
    workload = a_workload("train-1-abcd1", owner=("Job", "train-1"))
    template = {"metadata": {"labels": {"job-name": "train-1", "app": "x"}}, "spec": a_pod()["spec"]}
    job: dict[str, Any] = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "train-1", "namespace": "team", "uid": "u", "resourceVersion": "7"},
        "spec": {"selector": {"matchLabels": {"controller-uid": "u"}}, "template": template},
        "status": {"active": 1},
    }

    new = new_manifest(workload, Fit((("nvidia.com/mig-1g.5gb", 1),), 0.125), job)

    assert "selector" not in new["spec"]
    assert "status" not in new
    assert new["spec"]["template"]["metadata"]["labels"] == {"app": "x"}
    assert job["spec"]["template"]["spec"]["nodeName"] == "n1"
