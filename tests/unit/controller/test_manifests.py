from typing import Any

import pytest

from gpuloom.codec.pod import pod_request
from gpuloom.errors import InvalidRequestError
from gpuloom.model.request import RequestKind
from services.controller.core.manifests import Image, JobOptions, is_job_of_spec, job_manifest, job_name
from tests.unit.controller.builders import a_workload, the_printed_workload

PLAIN = JobOptions(image=Image("example/default:1"))
SHARES = JobOptions(image=None, gives_shares=True)


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
