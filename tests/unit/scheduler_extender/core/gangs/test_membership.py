"""What pods, their owners and the printed examples say of gangs is read as it is meant."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuloom.codec.custom.claims import gpu_reservation
from services.scheduler_extender.core.gangs.losses import run_of
from services.scheduler_extender.core.gangs.membership import gang_of, membership_of, together
from services.scheduler_extender.core.gangs.sizes import size_by_owner

EXAMPLES = Path(__file__).parents[5] / "examples" / "gangs"
GPU = {"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "1"}}}]}}
NONE = {"spec": {"containers": [{"resources": {"limits": {"cpu": "1"}}}]}}


def a_pod(annotations: dict[str, str], **labels: str) -> dict[str, Any]:
    return {"metadata": {"namespace": "ns", "labels": labels, "annotations": annotations}}


def a_member(**annotations: str) -> Any:
    notes = {f"gpuloom.dev/gang-{key.replace('_', '-')}": value for key, value in annotations.items()}
    return membership_of(a_pod(notes, **{"gpuloom.dev/gang": "g"}))


def test_the_label_makes_a_member_and_nothing_else() -> None:
    assert membership_of(a_pod({"gpuloom.dev/gang-size": "2"})) is None
    assert a_member(size="8", timeout_seconds="60").timeout_s == 60
    assert a_member(size="8").size == 8
    group = {"gpuloom.dev/gang": "g", "leaderworkerset.sigs.k8s.io/group-index": "3"}
    assert gang_of(a_pod({}, **group)) == "ns/g/3"


@pytest.mark.parametrize(
    "size",
    ["0", "-1", "+8", " 8", "eight", "1.5", "1e9", "4097", "99999999999", "\uff14", "\u0663", "\u00b2", ""],
)
def test_a_size_that_is_none_is_a_problem_that_names_the_annotation(size: str) -> None:
    found = a_member(size=size)

    assert found.size is None
    assert "gpuloom.dev/gang-size" in found.problem


@pytest.mark.parametrize("key", ["size", "timeout_seconds", "topology"])
@pytest.mark.parametrize("letter", ["x", "9", "!"])
def test_a_problem_is_short_however_long_an_annotation_is(key: str, letter: str) -> None:
    found = a_member(**{key: letter * 250_000})

    assert 0 < len(found.problem) < 512


def test_what_members_contradict_each_other_in_is_told_in_part() -> None:
    members = [a_member(size=str(size)) for size in range(1, 4097)]

    assert 0 < len(together("ns/g", members).problem) < 512


def test_a_topology_is_required_unless_it_says_otherwise() -> None:
    assert a_member(topology="example.com/rack").wish.required
    assert not a_member(topology="example.com/rack:preferred").wish.required
    assert "gang-topology" in a_member(topology="not a label").problem
    assert "gang-topology" in a_member(topology="example.com/rack:maybe").problem


@pytest.mark.parametrize(
    ("kind", "spec", "size"),
    [
        ("Job", {"completionMode": "Indexed", "parallelism": 4, "completions": 3, "template": GPU}, 3),
        ("Job", {"parallelism": 4, "template": GPU}, None),
        (
            "JobSet",
            {
                "replicatedJobs": [
                    {"replicas": 2, "template": {"spec": {"parallelism": 4, "template": GPU}}},
                    {"replicas": 1, "template": {"spec": {"parallelism": 1, "template": NONE}}},
                ]
            },
            8,
        ),
        (
            "PyTorchJob",
            {
                "pytorchReplicaSpecs": {
                    "Master": {"replicas": 1, "template": GPU},
                    "Worker": {"replicas": 3, "template": GPU},
                }
            },
            4,
        ),
        (
            "MPIJob",
            {
                "mpiReplicaSpecs": {
                    "Launcher": {"replicas": 1, "template": NONE},
                    "Worker": {"replicas": 2, "template": GPU},
                }
            },
            2,
        ),
        (
            "RayCluster",
            {
                "headGroupSpec": {"template": NONE},
                "workerGroupSpecs": [{"replicas": 2, "numOfHosts": 2, "template": GPU}],
            },
            4,
        ),
        ("RayJob", {"rayClusterSpec": {"headGroupSpec": {"template": GPU}}}, 1),
        ("LeaderWorkerSet", {"leaderWorkerTemplate": {"size": 4, "workerTemplate": GPU}}, 4),
        (
            "LeaderWorkerSet",
            {"leaderWorkerTemplate": {"size": 4, "workerTemplate": GPU, "leaderTemplate": NONE}},
            3,
        ),
        ("LeaderWorkerSet", {"leaderWorkerTemplate": {"size": None, "workerTemplate": GPU}}, 1),
        (
            "JobSet",
            {
                "replicatedJobs": [
                    {
                        "replicas": 2,
                        "template": {"spec": {"parallelism": 4, "completions": 3, "template": GPU}},
                    }
                ]
            },
            6,
        ),
        (
            "RayCluster",
            {
                "workerGroupSpecs": [
                    {"replicas": 0, "minReplicas": 2, "template": GPU},
                    {"replicas": 5, "maxReplicas": 3, "template": GPU},
                    {"replicas": 7, "suspend": True, "template": GPU},
                ]
            },
            5,
        ),
        ("PyTorchJob", {"pytorchReplicaSpecs": {"Worker": {"replicas": None, "template": GPU}}}, 1),
        ("MPIJob", {"mpiReplicaSpecs": None}, None),
        ("JobSet", {"replicatedJobs": [{"replicas": 2}]}, None),
        ("RayJob", {"rayClusterSpec": {"workerGroupSpecs": [{"replicas": "1e9", "template": GPU}]}}, None),
        ("Deployment", {"replicas": 3, "template": GPU}, None),
        ("JobSet", {"replicatedJobs": "text"}, None),
    ],
)
def test_the_size_is_how_many_pods_with_gpus_the_owner_makes(
    kind: str, spec: dict[str, Any], size: int | None
) -> None:
    assert size_by_owner(kind, {"spec": spec}) == size


def test_the_printed_examples_are_what_the_code_reads() -> None:
    job, pod, reservation = (
        yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
        for name in ("gang", "checkpoint", "reservation")
    )

    member = membership_of(job["spec"]["template"])
    assert member is not None
    assert member.problem == ""
    assert member.wish is not None
    assert size_by_owner("Job", job) == 4
    assert run_of(pod).grace_s == 60
    assert gpu_reservation(reservation).spec.count == 2
