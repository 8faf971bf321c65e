"""Our custom resources as a user meets them: defaults, refusals, subresources and columns."""

from pathlib import Path

import pytest

from gpuloom.kube.resources import CONFIGMAPS, DEPLOYMENTS, JOBS, PDBS, PODS, Resource
from tests.contract.crds.api import Api
from tests.contract.crds.manifests import (
    DEFAULTED,
    DEFINITIONS,
    EXAMPLES,
    KINDS,
    RESOURCES,
    STATUSES,
    Object,
    changed,
    complete,
    documents,
    example_files,
    minimal,
)
from tests.contract.crds.wrong import WRONG

OTHERS = {
    "ConfigMap": CONFIGMAPS,
    "Deployment": DEPLOYMENTS,
    "Job": JOBS,
    "Pod": PODS,
    "PodDisruptionBudget": PDBS,
}
RUN_BY_CONTROLLERS = (PODS, DEPLOYMENTS, JOBS)
RESERVATIONS = RESOURCES["GPUReservation"]


def holds(part: object, whole: object) -> bool:
    """Whether everything of `part` is in `whole`, unchanged; defaults may have come beside it."""
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(key in whole and holds(part[key], whole[key]) for key in part)
    if isinstance(part, list):
        return isinstance(whole, list) and len(part) == len(whole) and all(map(holds, part, whole))
    return part == whole


def resource_of(manifest: Object) -> Resource:
    return RESOURCES.get(manifest["kind"]) or OTHERS[manifest["kind"]]


@pytest.mark.parametrize("file", example_files(), ids=lambda file: str(file.relative_to(EXAMPLES)))
async def test_every_example_is_accepted_as_it_is(api: Api, file: Path) -> None:
    for manifest in documents(file):
        resource = resource_of(manifest)
        dry_run = "&dryRun=All" if resource in RUN_BY_CONTROLLERS else ""

        reply = await api.create(resource, manifest, f"?fieldValidation=Strict{dry_run}")

        assert (reply.code, reply.message) == (201, "")
        if resource not in OTHERS.values():
            assert holds(manifest["spec"], reply.body["spec"])
            assert "status" not in reply.body


@pytest.mark.parametrize("kind", KINDS)
async def test_what_is_left_out_gets_its_default(api: Api, kind: str) -> None:
    reply = await api.create(RESOURCES[kind], minimal(kind), "?fieldValidation=Strict")

    assert (reply.code, reply.message) == (201, "")
    assert reply.body["spec"] == DEFAULTED[kind]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_wrong_manifest_is_refused_with_the_field_and_the_reason(api: Api, kind: str) -> None:
    for wrong in WRONG[kind]:
        manifest = changed(complete(kind), wrong.path, wrong.value)

        reply = await api.create(RESOURCES[kind], manifest, "?dryRun=All")

        assert (str(wrong), reply.code) == (str(wrong), 422)
        assert (wrong.named, wrong.reason) in reply.causes, reply.message
        assert f"{wrong.named}: " in reply.message


@pytest.mark.parametrize("kind", KINDS)
async def test_unknown_fields_are_dropped_or_refused_as_the_client_asks(api: Api, kind: str) -> None:
    manifest = changed(complete(kind), "spec.flavour", {"sweet": True})

    strict = await api.create(RESOURCES[kind], manifest, "?fieldValidation=Strict")
    lenient = await api.create(RESOURCES[kind], manifest)

    assert strict.code == 400
    assert 'unknown field "spec.flavour"' in strict.message
    assert lenient.code == 201
    assert "flavour" not in lenient.body["spec"]


@pytest.mark.parametrize("kind", KINDS)
async def test_spec_and_status_are_written_apart(api: Api, kind: str) -> None:
    resource, manifest, status = RESOURCES[kind], complete(kind), STATUSES[kind]
    name = manifest["metadata"]["name"]
    created = await api.create(resource, {**manifest, "status": status})

    by_spec = await api.patch(resource, name, {"status": status, "metadata": {"labels": {"a": "b"}}})
    by_status = await api.patch(resource, name, {"status": status, "spec": None}, "status")

    assert "status" not in created.body
    assert "status" not in by_spec.body
    assert (by_status.code, by_status.message) == (200, "")
    assert holds(status, by_status.body["status"])
    assert by_status.body["spec"] == created.body["spec"]
    assert by_status.body["metadata"]["generation"] == created.body["metadata"]["generation"] == 1


async def test_the_generation_counts_changes_of_the_spec(api: Api) -> None:
    workloads = RESOURCES["GPUWorkload"]
    created = await api.create(workloads, minimal("GPUWorkload"))

    same = await api.patch(workloads, "minimal", {"spec": {"gpuCount": 1}})
    other = await api.put(workloads, changed(created.body, "spec.gpuCount", 2))

    assert same.body["metadata"]["generation"] == 1
    assert same.body["metadata"]["resourceVersion"] == created.body["metadata"]["resourceVersion"]
    assert (other.code, other.body["metadata"]["generation"]) == (200, 2)


async def test_a_wrong_change_is_refused_too(api: Api) -> None:
    workloads = RESOURCES["GPUWorkload"]
    await api.create(workloads, minimal("GPUWorkload"))

    spec = await api.patch(workloads, "minimal", {"spec": {"gpuCount": 0}})
    status = await api.patch(workloads, "minimal", {"status": {"phase": "Dreaming"}}, "status")
    removed = await api.patch(workloads, "minimal", {"spec": {"priority": None}})

    assert (spec.code, spec.causes) == (422, [("spec.gpuCount", "FieldValueInvalid")])
    assert status.code == 422
    assert ("status.phase", "FieldValueNotSupported") in status.causes
    assert removed.body["spec"]["priority"] == "medium"


async def test_a_reservation_is_scaled(api: Api) -> None:
    await api.create(RESERVATIONS, minimal("GPUReservation"))
    await api.patch(RESERVATIONS, "minimal", {"status": {"reserved": 1}}, "status")

    scale = await api.get(RESERVATIONS, "minimal", "scale")
    patched = await api.patch(RESERVATIONS, "minimal", {"spec": {"replicas": 3}}, "scale")
    put = await api.put(RESERVATIONS, changed(patched.body, "spec.replicas", 4), "scale")
    negative = await api.patch(RESERVATIONS, "minimal", {"spec": {"replicas": -1}}, "scale")
    too_many = await api.patch(RESERVATIONS, "minimal", {"spec": {"replicas": 1001}}, "scale")
    after = await api.get(RESERVATIONS, "minimal")

    assert (scale.body["kind"], scale.body["spec"], scale.body["status"]) == (
        "Scale",
        {"replicas": 1},
        {"replicas": 1},
    )
    assert (patched.body["spec"], put.body["spec"]) == ({"replicas": 3}, {"replicas": 4})
    assert negative.code == 422
    assert ("spec.count", "FieldValueInvalid") in negative.causes
    assert (too_many.code, too_many.causes) == (422, [("spec.count", "FieldValueInvalid")])
    assert (after.body["spec"]["count"], after.body["metadata"]["generation"]) == (4, 3)


async def test_what_has_no_size_has_no_scale(api: Api) -> None:
    await api.create(RESOURCES["GPUWorkload"], minimal("GPUWorkload"))

    assert (await api.get(RESOURCES["GPUWorkload"], "minimal", "scale")).code == 404


async def test_a_workload_is_listed_with_its_columns(api: Api) -> None:
    workloads = RESOURCES["GPUWorkload"]
    await api.create(workloads, minimal("GPUWorkload"))
    before = await api.table(workloads)
    await api.patch(workloads, "minimal", {"status": STATUSES["GPUWorkload"]}, "status")
    after = await api.table(workloads)

    titles = [column["name"].upper() for column in after["columnDefinitions"]]
    assert titles == ["NAME", "MODEL", "GPUS", "PRIORITY", "STRATEGY", "PHASE", "NODE", "AGE"]
    assert before["rows"][0]["cells"][:-1] == ["minimal", "llama2", 1, "medium", "leastLoaded", None, None]
    assert after["rows"][0]["cells"][-3:-1] == ["Running", "gpu-node-01"]


@pytest.mark.parametrize("kind", KINDS)
async def test_columns_are_those_of_the_definition(api: Api, kind: str) -> None:
    resource, manifest = RESOURCES[kind], complete(kind)
    await api.create(resource, manifest)
    patched = await api.patch(resource, manifest["metadata"]["name"], {"status": STATUSES[kind]}, "status")
    declared = DEFINITIONS[kind]["spec"]["versions"][0]["additionalPrinterColumns"]

    table = await api.table(resource)

    def value(path: str) -> object:
        node: object = patched.body
        for step in path.lstrip(".").split("."):
            node = node.get(step) if isinstance(node, dict) else None
        return node

    shown = [(one["name"], one["type"], one["priority"]) for one in table["columnDefinitions"]]
    assert shown[1:] == [(one["name"], one["type"], one.get("priority", 0)) for one in declared]
    (row,) = table["rows"]
    cells = [
        (cell, value(column["jsonPath"]))
        for cell, column in zip(row["cells"][1:], declared, strict=True)
        if column["type"] != "date"
    ]
    assert all(cell == wanted for cell, wanted in cells), cells


async def test_short_names_and_categories_are_announced(api: Api) -> None:
    for kind, resource in RESOURCES.items():
        names = DEFINITIONS[kind]["spec"]["names"]
        reply = await api.call("GET", f"/apis/{resource.group}/{resource.version}")
        (entry,) = (one for one in reply.body["resources"] if one["name"] == resource.plural)

        assert (entry["shortNames"], entry["categories"]) == (names["shortNames"], ["gpuloom"])
        assert (entry["kind"], entry["namespaced"]) == (kind, resource.namespaced)


@pytest.mark.parametrize("api", [pytest.param("real", marks=pytest.mark.real)], indirect=True)
async def test_what_must_not_change_is_refused_by_the_real_server(api: Api) -> None:
    changes = {
        "GPUNodeConfig": ("spec.nodeName", "spec.nodeName"),
        "GPUHold": ("spec.target.nodeName", "spec.target"),
        "GPUNodeClaim": ("spec.token", "spec"),
    }
    for kind, (path, named) in changes.items():
        created = await api.create(RESOURCES[kind], complete(kind))
        reply = await api.put(RESOURCES[kind], changed(created.body, path, "another"))

        assert (reply.code, reply.causes) == (422, [(named, "FieldValueInvalid")])
