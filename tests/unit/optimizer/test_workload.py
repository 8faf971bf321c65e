import pytest

from services.optimizer.adapters.pods import trimmed
from services.optimizer.core.workload import (
    command_shape,
    image_name,
    name_stem,
    workload_from_json,
    workload_of,
    workload_to_json,
)
from tests.unit.optimizer.builders import a_pod, a_workload


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("train-20260301-7xk2p", "train"),
        ("web-6d4cf56db6-x7k2z", "web"),
        ("bert-large", "bert-large"),
        ("worker-0", "worker"),
        ("train-1-right-sized", "train"),
        ("28391", "28391"),
    ],
)
def test_generated_parts_of_names_are_left_out(name: str, stem: str) -> None:
    assert name_stem(name) == stem


def test_a_command_is_known_by_its_program_and_options() -> None:
    direct = command_shape(["/usr/bin/python3", "train.py", "--lr=0.1", "--epochs", "5"])
    shell = command_shape(["sh", "-c", "python3 train.py --lr=0.3 --epochs 9"])

    assert direct == shell == "python train.py --lr --epochs"


def test_an_image_is_known_without_tag_and_digest() -> None:
    assert image_name("host:5000/team/serve:1.2@sha256:abc") == "host:5000/team/serve"


def test_pods_of_one_deployment_have_one_signature_through_a_rollout() -> None:
    template = {"pod-template-hash": "6d4cf56db6"}
    first = a_workload("web-6d4cf56db6-aaaa1", owner=("ReplicaSet", "web-6d4cf56db6"), **template)
    other = {"pod-template-hash": "7f9c8d7b5c"}
    second = a_workload("web-7f9c8d7b5c-bbbb2", owner=("ReplicaSet", "web-7f9c8d7b5c"), **other)

    assert str(first.owner) == str(second.owner) == "Deployment/web"
    assert first.signature == second.signature


def test_another_request_is_another_signature_of_the_same_owner() -> None:
    whole, share = a_workload(), a_workload(resources={"gpuloom.dev/gpu-milli": "500"})

    assert whole.signature.key != share.signature.key
    assert whole.signature.owner_key == share.signature.owner_key
    assert share.signature.request == "gpuloom.dev/gpu-milli=500"


def test_a_pod_without_gpus_or_with_nonsense_is_no_workload() -> None:
    assert workload_of(a_pod(resources={"cpu": "1"})) is None
    assert workload_of({"metadata": {"name": "p"}, "spec": {"containers": "none"}}) is None
    assert workload_of({}) is None


def test_what_is_kept_of_a_workload_comes_back() -> None:
    for resources in (
        {"nvidia.com/gpu": "2"},
        {"gpuloom.dev/gpu-milli": "250"},
        {"nvidia.com/mig-1g.10gb": "1"},
    ):
        workload = a_workload(resources=resources, owner=("Job", "train-1"))

        again = workload_from_json(workload_to_json(workload))

        assert again.signature == workload.signature
        assert (again.pod, again.owner, again.request) == (workload.pod, workload.owner, workload.request)


def test_what_is_kept_of_a_pod_is_bounded_whatever_is_written_into_it() -> None:
    pod = a_pod()
    pod["metadata"]["annotations"] = {
        "gpuloom.dev/note": "x" * 200_000,
        "gpu-autoscaler.io/optimize": "false",
    }
    script = "python train.py --epochs 3 #" + "x" * 500_000
    pod["spec"]["containers"][0] |= {"command": ["sh", "-c", script], "args": ["--x"] * 5000}

    kept = trimmed(pod)
    workload, whole = workload_of(kept), workload_of(pod)

    assert len(str(kept)) < 10_000
    assert workload is not None
    assert whole is not None
    assert (workload.signature, workload.opted_out) == (whole.signature, True)
