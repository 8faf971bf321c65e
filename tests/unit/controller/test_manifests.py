import re
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpuloom.codec.custom.workload import gpu_workload
from gpuloom.codec.pod import pod_request
from gpuloom.errors import InvalidRequestError
from gpuloom.model.request import RequestKind
from gpuloom.model.workload import GpuWorkloadSpec
from services.controller.core import manifests
from services.controller.core.manifests import Image, JobOptions, is_job_of_spec, job_manifest, job_name
from tests.unit.controller.builders import a_workload, a_workload_object, the_printed_workload

PLAIN = JobOptions(image=Image("example/default:1"))
SHARES = JobOptions(image=None, gives_shares=True)
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
WORDS = st.sampled_from(
    "metadata labels annotations spec containers env name resources limits affinity nodeAffinity "
    f"{REQUIRED} nodeSelectorTerms matchExpressions nvidia.com/gpu x".split()
)


def nested(depth: int) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for _ in range(depth):
        made = {"x": made}
    return made


def pod_of(job: dict[str, Any]) -> dict[str, Any]:
    template: dict[str, Any] = job["spec"]["template"]
    return template


def container_of(job: dict[str, Any]) -> dict[str, Any]:
    container: dict[str, Any] = pod_of(job)["spec"]["containers"][0]
    return container


def test_the_printed_manifest_makes_a_job_that_asks_for_its_gpus() -> None:
    workload = the_printed_workload()

    job = job_manifest(workload, 0, PLAIN)

    spec, container = pod_of(job)["spec"], container_of(job)
    assert spec["priorityClassName"] == f"gpuloom-{workload.spec.priority}"
    assert spec["restartPolicy"] == "Never"
    assert "nodeName" not in spec
    assert container["resources"]["limits"] == {"nvidia.com/gpu": str(workload.spec.gpu_count)}
    assert {entry["name"]: entry["value"] for entry in container["env"]} == {
        "MODEL_NAME": workload.spec.model_name,
        "GPU_COUNT": str(workload.spec.gpu_count),
        "WORKLOAD_NAME": workload.meta.name,
        "WORKLOAD_PRIORITY": workload.spec.priority.value,
    }
    assert pod_of(job)["metadata"]["annotations"] == {"gpuloom.dev/strategy": workload.spec.strategy}
    assert job["metadata"]["ownerReferences"][0]["uid"] == workload.meta.uid


def test_a_template_keeps_what_it_says_and_gets_what_it_lacks() -> None:
    container = {"name": "main", "image": "mine:2", "env": [{"name": "MODEL_NAME", "value": "own"}]}
    template = {
        "metadata": {"labels": {"team": "a"}, "annotations": {"gpuloom.dev/topology": "numa"}},
        "spec": {
            "containers": [container, {"name": "side"}],
            "schedulerName": "own",
            "restartPolicy": "OnFailure",
        },
    }
    workload = a_workload(podTemplate=template, image=None, topologyPreference="nvlink")

    job = job_manifest(workload, 0, JobOptions(image=Image("x"), scheduler_name="gpuloom"))

    spec = pod_of(job)["spec"]
    assert (spec["schedulerName"], spec["restartPolicy"]) == ("own", "OnFailure")
    assert container_of(job)["image"] == "mine:2"
    assert {"name": "MODEL_NAME", "value": "own"} in container_of(job)["env"]
    assert spec["containers"][1] == {"name": "side"}
    assert pod_of(job)["metadata"]["labels"]["team"] == "a"
    assert pod_of(job)["metadata"]["annotations"]["gpuloom.dev/topology"] == "numa"
    assert workload.spec.pod_template == template


@pytest.mark.parametrize(
    ("spec", "options", "kind"),
    [
        ({}, PLAIN, RequestKind.WHOLE),
        ({"gpuMemoryMib": 40000}, PLAIN, RequestKind.WHOLE),
        ({"architecture": "ampere", "topologyPreference": "nvlink"}, SHARES, RequestKind.WHOLE),
        ({"gpuMemoryMib": 40000}, SHARES, RequestKind.WHOLE),
        ({"migProfile": "1g.5gb", "gpuCount": 1}, SHARES, RequestKind.MIG),
        ({"migProfile": "1g.5gb", "gpuCount": 2}, PLAIN, RequestKind.MIG),
        ({"gang": {"size": 4, "topology": "rack"}}, PLAIN, RequestKind.WHOLE),
    ],
)
def test_whatever_a_workload_asks_for_placement_understands(
    spec: dict[str, Any], options: JobOptions, kind: RequestKind
) -> None:
    job = job_manifest(a_workload(**spec), 0, options)

    pod = {"metadata": {"name": "p", "namespace": "n", "uid": "u", **pod_of(job)["metadata"]}}
    request = pod_request({**pod, "spec": pod_of(job)["spec"]})

    assert request is not None
    assert request.gpu.kind is kind


@pytest.mark.parametrize(
    ("memories", "milli"), [((), "125"), ((40960,), "250"), ((81559,), "125"), ((40960, 81920), "125")]
)
def test_a_slice_is_the_part_that_it_is_of_gpus_with_the_memory_of_those_here(
    memories: tuple[int, ...], milli: str
) -> None:
    options = replace(SHARES, gpu_memory_mib=frozenset(memories))

    job = job_manifest(a_workload(migProfile="1g.10gb", gpuCount=1), 0, options)

    assert container_of(job)["resources"]["limits"] == {"gpuloom.dev/gpu-milli": milli}


@pytest.mark.parametrize(
    ("spec", "options", "told"),
    [
        ({"image": None}, JobOptions(image=None), "no image"),
        ({"podTemplate": {"spec": []}}, PLAIN, "must be an object"),
        ({"podTemplate": {"spec": {"containers": ["x"]}}}, PLAIN, "list of objects"),
        (
            {"podTemplate": {"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": 1}}}]}}},
            PLAIN,
            "asks for nvidia.com/gpu itself",
        ),
        ({"migProfile": "1g.5gb", "gpuCount": 3}, SHARES, "gang.size"),
        ({"gpuMemoryMib": 16777216}, PLAIN, "lower gpuMemoryMib"),
    ],
)
def test_a_workload_that_can_not_run_says_why(spec: dict[str, Any], options: JobOptions, told: str) -> None:
    with pytest.raises(InvalidRequestError, match=told):
        job_manifest(a_workload(**spec), 0, options)


def test_a_jobs_name_follows_from_what_runs_and_not_from_how_often_it_is_tried() -> None:
    workload = a_workload()
    more_retries = a_workload(retryPolicy={"maxRetries": 9})
    other_image = a_workload(image="example/llama:2")

    assert job_name(workload, 1) == job_name(more_retries, 1) != job_name(workload, 2)
    assert is_job_of_spec(more_retries, job_name(workload, 3))
    assert not is_job_of_spec(other_image, job_name(workload, 1))
    assert job_name(workload, 1) != job_name(a_workload(uid="uid-2"), 1)


@pytest.mark.parametrize("name", ["train", "train.v1.2", "t" * 253, "a." * 126 + "a"])
@pytest.mark.parametrize(("size", "attempt"), [(2, 0), (4096, 100)])
def test_the_pods_of_a_gang_get_host_names_that_the_api_server_accepts(
    name: str, size: int, attempt: int
) -> None:
    obj = a_workload_object(gang={"size": size})
    obj["metadata"]["name"] = name
    workload = gpu_workload(obj)

    job = job_manifest(workload, attempt, PLAIN)

    last_host = f"{job['metadata']['name']}-{size - 1}"
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", last_host)
    assert is_job_of_spec(workload, job["metadata"]["name"])


@dataclass(frozen=True)
class LaterSpec(GpuWorkloadSpec):
    """As a version to come may have it."""

    later: str | None = None


def test_an_upgrade_that_knows_more_fields_leaves_what_runs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    before = a_workload(migProfile="1g.5gb", podTemplate={"spec": {"containers": [{"name": "a"}]}})
    known = {member.name: getattr(before.spec, member.name) for member in fields(before.spec)}
    now = job_name(before, 0)
    monkeypatch.setattr(manifests, "GpuWorkloadSpec", LaterSpec)

    assert job_name(replace(before, spec=LaterSpec(**known)), 0) == now
    assert job_name(replace(before, spec=LaterSpec(**known, later="x")), 0) != now


def test_pins_are_added_to_every_alternative_that_the_template_requires() -> None:
    terms = [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}, {"matchFields": []}]
    affinity = {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    }
    workload = a_workload(podTemplate={"spec": {"affinity": affinity}})

    job = job_manifest(workload, 0, JobOptions(image=None, node="node-7"))

    required = pod_of(job)["spec"]["affinity"]["nodeAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    pin = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["node-7"]}
    assert all(pin in term["matchExpressions"] for term in required["nodeSelectorTerms"])


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(WORDS, inner, max_size=3)),
    max_leaves=15,
)
SHAPED = st.fixed_dictionaries(
    {"spec": st.dictionaries(WORDS, JSON, max_size=3)}, optional={"metadata": st.dictionaries(WORDS, JSON)}
)


@given(st.one_of(SHAPED, st.dictionaries(WORDS, JSON, max_size=3)), st.sampled_from([None, "node-7"]))
@example({"spec": {"containers": [{"env": None}]}}, None)
@example({"spec": {"containers": [{"env": {"A": "b"}}]}}, None)
@example({"spec": {"containers": [{"env": [{"name": ["MODEL_NAME"]}]}]}}, None)
@example({"spec": {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": "x"}}}}}, "node-7")
@example({"spec": {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [None]}}}}}, "node-7")
def test_a_template_however_odd_becomes_a_job_or_is_refused(
    template: dict[str, Any], node: str | None
) -> None:
    workload = a_workload(podTemplate=template, image="x")

    with suppress(InvalidRequestError):
        job = job_manifest(workload, 0, JobOptions(image=None, node=node))

        assert "MODEL_NAME" in [one["name"] for one in container_of(job)["env"] if "name" in one]
        assert job["metadata"]["name"] == job_name(workload, 0)


@pytest.mark.parametrize(("depth", "is_read"), [(60, True), (65, False), (900, False)])
def test_a_template_that_is_nested_too_deep_to_be_copied_is_refused(depth: int, is_read: bool) -> None:
    obj = a_workload_object(podTemplate={"metadata": nested(depth)}, image="x")

    if is_read:
        assert job_name(gpu_workload(obj), 0)
    else:
        with pytest.raises(InvalidRequestError, match="nested"):
            gpu_workload(obj)


def test_a_pin_is_required_also_where_the_template_has_an_empty_list_of_alternatives() -> None:
    affinity: dict[str, Any] = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": []}}}

    job = job_manifest(
        a_workload(podTemplate={"spec": {"affinity": affinity}}), 0, JobOptions(image=None, node="n7")
    )

    (term,) = pod_of(job)["spec"]["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    assert term["matchExpressions"][0]["values"] == ["n7"]
