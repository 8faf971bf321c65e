"""Names of a release: whatever it is called, its parts have names of their own and find each other."""

import pytest

from tests.charts.test_rendering import only
from tests.cluster.helm import Document, Helm

pytestmark = pytest.mark.real

EVERYTHING = ("--set", "monitoring.enabled=true", "--set", "monitoring.prometheus.storage.size=1Gi")
LONGEST_RELEASE = 53
"""Helm takes no longer one."""
LONGEST = {"Service": 63, "CronJob": 52, "Job": 63}

RELEASES = ["gpuloom", "autoscaler", "scheduler", "r" * 32, "r" * 42, "a-" * 26 + "a"]


@pytest.mark.parametrize("chart", ["gpuloom", "gpu-autoscaler"])
@pytest.mark.parametrize("release", RELEASES)
def test_parts_of_a_release_have_names_of_their_own_and_find_each_other(
    helm: Helm, release: str, chart: str
) -> None:
    documents = helm.render(chart, *EVERYTHING, release=release)

    names = [(one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]) for one in documents]
    assert len(release) <= LONGEST_RELEASE
    assert sorted(names) == sorted(set(names))
    assert not [name for kind, _, name in names if len(name) > LONGEST.get(kind, 253)]
    services = {name for kind, _, name in names if kind == "Service"}
    assert called(documents) <= services
    assert mounted_certificates(documents) <= made_certificates(documents)


def called(documents: list[Document]) -> set[str]:
    """Services that pods are told of, and the API server."""
    hosts = {
        one["value"].partition(".")[0]
        for spec in pods(documents)
        for container in spec["containers"]
        for one in container.get("env", ())
        if one["name"].endswith("_ADDRESS")
    }
    registered = {one["spec"]["service"]["name"] for one in documents if one["kind"] == "APIService"}
    hooked = {
        webhook["clientConfig"]["service"]["name"]
        for one in documents
        if one["kind"].endswith("WebhookConfiguration")
        for webhook in one["webhooks"]
    }
    return hosts | registered | hooked


def mounted_certificates(documents: list[Document]) -> set[str]:
    return {
        volume["secret"]["secretName"]
        for spec in pods(documents)
        for volume in spec.get("volumes", ())
        if volume["name"] == "tls"
    }


def made_certificates(documents: list[Document]) -> set[str]:
    (job,) = (one for one in documents if one["kind"] == "CronJob")
    (container,) = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    return {one.rpartition("/")[2] for one in container["args"] if one.startswith("--secret=")}


def pods(documents: list[Document]) -> list[Document]:
    return [
        one["spec"]["template"]["spec"] for one in documents if one["kind"] in ("Deployment", "DaemonSet")
    ]


def test_a_job_of_the_certificates_has_another_name_when_anything_of_it_changes(helm: Helm) -> None:
    pinned = ("--set", "certificates.image.tag=v1")
    labelled = ("--set", "certificates.commonLabels.team=a")

    jobs = {
        one["metadata"]["name"]
        for options in (pinned, (*pinned, *labelled), pinned)
        for one in helm.render("gpuloom", *options)
        if one["kind"] == "Job" and "certificates" in one["metadata"]["name"]
    }

    assert len(jobs) == 2


def test_a_chart_alone_may_have_another_name(helm: Helm) -> None:
    documents = helm.render("discovery", "--set", "fullnameOverride=gpus")

    assert only(documents, "Deployment", "gpus")
    assert only(documents, "Service", "gpus")


def test_a_chart_alone_is_called_like_its_release_and_so_is_its_volume(helm: Helm) -> None:
    documents = helm.render("cost-engine", release="cost-engine")

    named = {one["kind"]: one["metadata"]["name"] for one in documents}
    assert {named[kind] for kind in ("Deployment", "Service", "PersistentVolumeClaim")} == {"cost-engine"}
    assert mounted_certificates(documents) == {"cost-engine-tls"}
