from typing import Any

import pytest

from gpuloom.runtime.clock import FakeClock
from gpuloom.sim.kubeapi.objects.patches import JSON, Patch
from gpuloom.sim.kubeapi.status import ApiError
from gpuloom.sim.kubeapi.verbs.store import STATUS, Store, WriteOptions

from .builders import a_config_map, a_deployment, a_gpu_pod, a_pod, a_store

NODE = {"metadata": {"name": "n1"}, "status": {"capacity": {"nvidia.com/gpu": 8}}}
DEPLOYMENT = a_deployment("d", replicas=1)


def refused(code: int, call: Any, *arguments: Any, **keywords: Any) -> ApiError:
    with pytest.raises(ApiError) as refusal:
        call(*arguments, **keywords)
    assert refusal.value.code == code, refusal.value.message
    return refusal.value


def test_a_created_object_gets_its_identity_from_the_server() -> None:
    store = a_store()

    pod = store.create("pods", {**a_pod("p"), "status": {"phase": "Running"}})

    metadata = pod["metadata"]
    assert metadata["namespace"] == "default"
    assert len(metadata["uid"]) == 36
    assert metadata["creationTimestamp"] == "2026-01-01T00:00:00Z"
    assert metadata["resourceVersion"] == store.resource_version
    assert (pod["apiVersion"], pod["kind"], pod["status"]["phase"]) == ("v1", "Pod", "Pending")


def test_a_generated_name_is_unique() -> None:
    store = a_store()

    names = {
        store.create("configmaps", {"metadata": {"generateName": "job-"}})["metadata"]["name"]
        for _ in range(50)
    }

    assert len(names) == 50
    assert all(name.startswith("job-") and len(name) == 9 for name in names)


def test_a_name_that_is_taken_already_exists() -> None:
    store = a_store()
    store.create("pods", a_pod("p"))

    refusal = refused(409, store.create, "pods", a_pod("p"))

    assert refusal.reason == "AlreadyExists"


def test_a_missing_namespace_is_named() -> None:
    refusal = refused(404, a_store().create, "pods", a_pod("p"), namespace="nowhere")

    assert refusal.message == 'namespaces "nowhere" not found'


def test_pods_are_defaulted_like_by_the_real_server() -> None:
    store = a_store()
    limits = {"cpu": "2", "memory": "4Gi", "nvidia.com/gpu": 1}

    pod = store.create("pods", a_gpu_pod("p", limits=limits))

    spec = pod["spec"]
    assert spec["restartPolicy"] == "Always"
    assert spec["schedulerName"] == "default-scheduler"
    assert spec["terminationGracePeriodSeconds"] == 30
    assert spec["priority"] == 0
    assert spec["containers"][0]["resources"]["requests"] == {
        "cpu": "2",
        "memory": "4Gi",
        "nvidia.com/gpu": "1",
    }
    assert [one["tolerationSeconds"] for one in spec["tolerations"]] == [300, 300]
    assert pod["status"]["qosClass"] == "Guaranteed"


@pytest.mark.parametrize(
    ("resources", "quality"),
    [
        ({}, "BestEffort"),
        ({"limits": {"nvidia.com/gpu": "1"}}, "BestEffort"),
        ({"requests": {"cpu": "1"}}, "Burstable"),
        (
            {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1000m", "memory": "1024Mi"}},
            "Guaranteed",
        ),
    ],
)
def test_quality_of_service_follows_cpu_and_memory(resources: dict[str, Any], quality: str) -> None:
    pod = a_store().create("pods", a_gpu_pod("p", **resources))

    assert pod["status"]["qosClass"] == quality


def test_a_pod_takes_the_priority_of_its_class() -> None:
    store = a_store()
    store.create("priorityclasses.scheduling.k8s.io", {"metadata": {"name": "high"}, "value": 1000})

    pod = store.create("pods", a_pod("p", priorityClassName="high"))
    critical = store.create("pods", a_pod("c", priorityClassName="system-node-critical"))

    assert pod["spec"]["priority"] == 1000
    assert critical["spec"]["priority"] == 2_000_001_000
    refused(403, store.create, "pods", a_pod("q", priorityClassName="missing"))


def test_a_default_class_applies_to_pods_that_name_none() -> None:
    store = a_store()
    default = {"metadata": {"name": "usual"}, "value": 7, "globalDefault": True}
    store.create("priorityclasses.scheduling.k8s.io", default)

    assert store.create("pods", a_pod("p"))["spec"]["priority"] == 7


def test_an_update_with_an_old_version_conflicts() -> None:
    store = a_store()
    seen = store.create("configmaps", a_config_map("c", k="1"))
    store.update("configmaps", {**seen, "data": {"k": "2"}})

    refused(409, store.update, "configmaps", {**seen, "data": {"k": "3"}})

    assert store.get("configmaps", "c")["data"] == {"k": "2"}


def test_an_update_without_a_version_is_unconditional_except_for_guarded_kinds() -> None:
    store = a_store()
    store.create("configmaps", a_config_map("c", k="1"))
    lease = {"metadata": {"name": "l", "namespace": "default"}, "spec": {"holderIdentity": "a"}}
    store.create("leases.coordination.k8s.io", lease)

    store.update("configmaps", a_config_map("c", k="2"))

    refusal = refused(422, store.update, "leases.coordination.k8s.io", lease)
    assert "metadata.resourceVersion" in refusal.message


def test_an_update_for_another_uid_conflicts() -> None:
    store = a_store()
    seen = store.create("configmaps", a_config_map("c"))
    other = {**seen, "metadata": {**seen["metadata"], "uid": "another"}}

    refused(409, store.update, "configmaps", other)


def test_a_write_that_changes_nothing_makes_no_new_version() -> None:
    store = a_store()
    pod = store.create("pods", a_pod("p"))
    version = store.resource_version

    store.update("pods", pod)
    store.update("pods", {**a_pod("p"), "metadata": {"name": "p"}})
    store.patch("pods", "p", Patch({"metadata": {"labels": None}}))

    assert store.resource_version == version


def test_the_main_resource_ignores_status_and_the_status_resource_all_else() -> None:
    store = a_store()
    made = store.create("deployments.apps", DEPLOYMENT)

    store.update("deployments.apps", {**made, "status": {"replicas": 9}})
    both = Patch({"metadata": {"labels": {"a": "b"}}, "spec": {"replicas": 5}, "status": {"replicas": 1}})
    after = store.patch("deployments.apps", "d", both, options=STATUS)

    assert after["status"] == {"replicas": 1}
    assert after["spec"] == made["spec"]
    assert "labels" not in after["metadata"]


def test_a_node_registers_with_its_status() -> None:
    store = a_store()

    node = store.create("nodes", NODE)
    changed = store.update("nodes", {**node, "status": {}})

    assert node["status"]["capacity"] == {"nvidia.com/gpu": "8"}
    assert changed["status"] == node["status"]


def test_the_generation_counts_changes_of_the_spec_only() -> None:
    store = a_store()
    store.create("deployments.apps", DEPLOYMENT)

    store.patch("deployments.apps", "d", Patch({"metadata": {"labels": {"a": "b"}}}))
    store.patch("deployments.apps", "d", Patch({"status": {"replicas": 1}}), options=STATUS)
    unchanged = store.get("deployments.apps", "d")["metadata"]["generation"]
    changed = store.patch("deployments.apps", "d", Patch({"spec": {"replicas": 2}}))

    assert unchanged == 1
    assert changed["metadata"]["generation"] == 2


def test_a_version_in_a_patch_is_a_precondition() -> None:
    store = a_store()
    first = store.create("configmaps", a_config_map("c"))
    store.patch("configmaps", "c", Patch({"data": {"k": "1"}}))

    stale_patch = {"metadata": {"resourceVersion": first["metadata"]["resourceVersion"]}, "data": {"k": "2"}}
    refused(409, store.patch, "configmaps", "c", Patch(stale_patch))
    by_json = [{"op": "replace", "path": "/data/k", "value": "3"}]
    changed = store.patch("configmaps", "c", Patch(by_json, JSON))

    assert changed["data"] == {"k": "3"}


def test_a_patch_can_not_rename() -> None:
    store = a_store()
    store.create("configmaps", a_config_map("c"))

    refused(400, store.patch, "configmaps", "c", Patch({"metadata": {"name": "d"}}))


def test_a_dry_run_answers_and_changes_nothing() -> None:
    store = a_store()
    version = store.resource_version

    made = store.create("configmaps", a_config_map("c"), options=WriteOptions(dry_run=True))

    assert made["metadata"]["uid"]
    assert store.resource_version == version
    store.create("configmaps", a_config_map("c"))
    changed = store.update("configmaps", a_config_map("c", k="1"), WriteOptions(dry_run=True))
    assert changed["data"] == {"k": "1"}
    assert store.get("configmaps", "c")["data"] == {}


@pytest.mark.parametrize(
    ("change", "allowed"),
    [
        ({"containers": [{"name": "main", "image": "train:2"}]}, True),
        ({"activeDeadlineSeconds": 60}, True),
        ({"nodeName": "n1"}, False),
        ({"containers": [{"name": "other", "image": "train:1"}]}, False),
        ({"schedulerName": "mine"}, False),
        ({"priority": 5}, False),
        ({"tolerations": []}, True),  # the server adds its own again
    ],
)
def test_a_pods_spec_is_fixed_but_for_a_few_fields(change: dict[str, Any], allowed: bool) -> None:
    store = a_store()
    pod = store.create("pods", a_pod("p"))
    changed = {**pod, "spec": {**pod["spec"], **change}}

    if allowed:
        store.update("pods", changed)
    else:
        assert "spec" in refused(422, store.update, "pods", changed).message


def test_tolerations_may_be_added_but_not_removed() -> None:
    store = a_store()
    pod = store.create("pods", a_pod("p", tolerations=[{"key": "gpu", "operator": "Exists"}]))
    more = [*pod["spec"]["tolerations"], {"key": "spot", "operator": "Exists"}]

    added = store.update("pods", {**pod, "spec": {**pod["spec"], "tolerations": more}})

    assert len(added["spec"]["tolerations"]) == 4
    refused(422, store.update, "pods", {**added, "spec": {**added["spec"], "tolerations": more[1:]}})


@pytest.mark.parametrize(
    ("obj", "field"),
    [
        (a_pod("Upper"), "metadata.name"),
        (a_pod("a" * 254), "metadata.name"),
        (a_pod("p", labels={"bad key": "v"}), "metadata.labels"),
        (a_pod("p", labels={"k": "bad value"}), "metadata.labels"),
        (a_pod("p", containers=[]), "spec.containers"),
        (a_pod("p", containers=[{"name": "main"}]), "spec.containers[0].image"),
        (a_pod("p", containers=[{"name": "Main", "image": "x"}]), "spec.containers[0].name"),
        (a_pod("p", containers=[{"name": "a", "image": "x"}] * 2), "spec.containers[1].name"),
        (a_pod("p", restartPolicy="Sometimes"), "spec.restartPolicy"),
        (a_gpu_pod("p", limits={"nvidia.com/gpu": "500m"}), "resources.limits[nvidia.com/gpu]"),
        (a_gpu_pod("p", limits={"nvidia.com/gpu": "0.5"}), "resources.limits[nvidia.com/gpu]"),
        (a_gpu_pod("p", limits={"cpu": "many"}), "resources.limits[cpu]"),
        (a_gpu_pod("p", limits={"cpu": "-1"}), "resources.limits[cpu]"),
        (a_gpu_pod("p", limits={"gpus": "1"}), "resources.limits[gpus]"),
        (a_gpu_pod("p", requests={"nvidia.com/gpu": "1"}), "resources.limits"),
        (a_gpu_pod("p", requests={"cpu": "2"}, limits={"cpu": "1"}), "resources.requests"),
        ({"metadata": {}, "spec": {"containers": [{"name": "a", "image": "b"}]}}, "metadata.name"),
    ],
)
def test_an_invalid_pod_is_refused_with_the_field(obj: dict[str, Any], field: str) -> None:
    refusal = refused(422, a_store().create, "pods", obj)

    assert field in refusal.message
    assert any(field in cause["field"] for cause in refusal.details["causes"])


@pytest.mark.parametrize(
    "obj",
    [
        [],
        {"metadata": []},
        {"metadata": {"name": 5}},
        {"metadata": {"name": "p", "labels": {"a": 1}}},
        {"metadata": {"name": "p"}, "spec": "x"},
        {"metadata": {"name": "p"}, "spec": {"containers": ["x"]}},
        {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "x", "resources": 1}]}},
        {"metadata": {"name": "p", "namespace": "other"}, "spec": {}},
        {"kind": "Node", "metadata": {"name": "p"}},
        {"apiVersion": "v2", "metadata": {"name": "p"}},
        {"metadata": {"name": "p", "resourceVersion": "5"}},
    ],
)
def test_an_object_that_is_not_its_kind_is_a_bad_request(obj: Any) -> None:
    refused(400, a_store().create, "pods", obj, namespace="default")


def test_an_object_nested_too_deeply_is_a_bad_request() -> None:
    deep: dict[str, Any] = {}
    for _ in range(300):
        deep = {"a": deep}

    refused(400, a_store().create, "configmaps", {"metadata": {"name": "c"}, "x": deep})


def test_text_of_a_secret_is_encoded() -> None:
    secret = a_store().create("secrets", {"metadata": {"name": "s"}, "stringData": {"k": "v"}})

    assert secret["data"] == {"k": "dg=="}
    assert "stringData" not in secret


def test_what_the_caller_does_with_his_object_does_not_reach_the_store() -> None:
    store = a_store()
    mine = a_config_map("c", k="1")
    store.create("configmaps", mine)

    mine["data"]["k"] = "changed"

    assert store.get("configmaps", "c")["data"] == {"k": "1"}


def test_a_failing_journal_refuses_the_write_and_leaves_no_trace() -> None:
    broken = False

    def sink(_: Any) -> None:
        if broken:
            raise OSError("disk full")

    store = Store(FakeClock(), sink=sink)
    heard: list[Any] = []
    store.listen(heard.append)
    version = store.resource_version
    broken = True

    with pytest.raises(OSError, match="disk full"):
        store.create("configmaps", a_config_map("c"))

    assert store.resource_version == version
    assert store.select("configmaps") == []
    assert heard == []
