"""Which pods are one question to the optimizer: those of which it could not tell one from another."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.optimizer.core.workload import workload_of
from services.webhook.core.questions import key_of_question, question_of

IMAGES = st.sampled_from(["", "serve:1", "serve:2", "team/train@sha256:0"])
WORDS = st.lists(st.sampled_from(["python", "train.py", "--lr=0.1", "--epochs", "3"]), max_size=3)
LIMITS = st.dictionaries(
    st.sampled_from(["nvidia.com/gpu", "nvidia.com/mig-1g.5gb", "gpuloom.dev/gpu-milli", "cpu"]),
    st.sampled_from(["1", "2", "500", "x"]),
    max_size=2,
)
OWNERS = st.lists(
    st.fixed_dictionaries(
        {
            "kind": st.sampled_from(["ReplicaSet", "Job", "Pod"]),
            "name": st.sampled_from(["serve-7f9c", "train-1"]),
            "controller": st.booleans(),
            "uid": st.uuids().map(str),
        }
    ),
    max_size=2,
)
MARKS = st.dictionaries(
    st.sampled_from(
        [
            "pod-template-hash",
            "gpuloom.dev/mig-profile",
            "gpu-autoscaler.io/sharing",
            "gpu-autoscaler.io/workload-type",
            "gpu-autoscaler.io/optimize",
            "batch.kubernetes.io/job-completion-index",
        ]
    ),
    st.sampled_from(["7f9c", "1g.5gb", "disabled", "training", "false", "3"]),
    max_size=3,
)
CONTAINERS = st.builds(
    lambda name, image, command, args, limits, port: {
        "name": name,
        "image": image,
        "command": command,
        "args": args,
        "resources": {"limits": limits},
        "ports": [{"containerPort": 80}] if port else [],
        "env": [{"name": "A", "value": "x"}],
        "volumeMounts": [{"name": "kube-api-access-x", "mountPath": "/x"}],
    },
    st.sampled_from(["main", "side"]),
    IMAGES,
    WORDS,
    WORDS,
    LIMITS,
    st.booleans(),
)
PODS = st.builds(
    lambda name, generated, labels, annotations, owners, containers, inits: {
        "metadata": {
            "namespace": "team",
            **({"generateName": name} if generated else {"name": name}),
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": owners,
        },
        "spec": {
            "containers": containers,
            "initContainers": inits,
            "volumes": [{"name": "kube-api-access-x"}],
        },
    },
    st.sampled_from(["serve-", "train-12-abc12"]),
    st.booleans(),
    MARKS,
    MARKS,
    OWNERS,
    st.lists(CONTAINERS, min_size=1, max_size=2),
    st.lists(CONTAINERS, max_size=1),
)


@given(PODS)
def test_the_optimizer_reads_the_same_in_the_question_as_in_the_pod(pod: dict[str, Any]) -> None:
    def read(asked: dict[str, Any]) -> object:
        # As its server completes what is asked.
        metadata = asked["metadata"]
        name = metadata.get("name") or str(metadata.get("generateName", "")).rstrip("-")
        found = workload_of({**asked, "metadata": {**metadata, "name": name, "namespace": "team"}})
        return found and (
            *(found.owner, found.signature, found.request, found.container, found.type_label),
            *(found.opted_out, found.may_share, found.serves),
        )

    assert read(question_of(pod)) == read(pod)


def a_pod() -> dict[str, Any]:
    owner = {"kind": "Job", "name": "train", "controller": True, "uid": "u"}
    container = {"name": "c", "image": "train:1", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    metadata = {"generateName": "train-3-", "ownerReferences": [owner], "labels": {}}
    return {"metadata": metadata, "spec": {"containers": [container], "volumes": []}}


def key(pod: dict[str, Any], namespace: str = "team") -> bytes:
    return key_of_question(question_of(pod), namespace)


def test_pods_of_one_job_are_one_question_and_others_are_not() -> None:
    sibling, other = a_pod(), a_pod()
    sibling["metadata"].update(generateName="train-4-", uid="x", name="train-4-x2k4j")
    sibling["metadata"]["labels"] = {"batch.kubernetes.io/job-completion-index": "4"}
    sibling["spec"]["volumes"] = [{"name": "kube-api-access-x2k4j"}]
    sibling["spec"]["containers"][0]["env"] = [{"name": "RANK", "value": "4"}]
    other["spec"]["containers"][0]["image"] = "train:2"

    assert key(sibling) == key(a_pod())
    assert len({key(a_pod()), key(other), key(a_pod(), "elsewhere")}) == 3


@pytest.mark.parametrize(
    "odd", [{}, {"metadata": [], "spec": 3}, {"spec": {"containers": [1, None], "x": {}}}]
)
def test_what_is_no_pod_is_a_question_of_its_own_and_stays_as_it_was(odd: dict[str, Any]) -> None:
    before = copy.deepcopy(odd)

    assert key(odd) != key(a_pod())
    assert odd == before
