"""Jobs: how many pods run, how ends are counted, and how a Job ends."""

from typing import Any

from gpuloom.errors import NotFoundError
from gpuloom.kube.client import DeleteOptions
from gpuloom.kube.objects import JsonObject, key_of, metadata_of, uid_of
from gpuloom.kube.resources import JOBS
from tests.contract.controllers.conftest import Workspace, eventually


def a_job(namespace: str, **spec: Any) -> JsonObject:
    containers = [{"name": "main", "image": "registry.invalid/work:1"}]
    return {
        "metadata": {"namespace": namespace, "name": "train"},
        "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": containers}}, **spec},
    }


async def job_status(workspace: Workspace) -> JsonObject:
    status = (await workspace.client.get(JOBS, "train", workspace.namespace)).get("status")
    return status or {}


def conditions_of(status: JsonObject) -> dict[str, str]:
    return {one["type"]: one["reason"] for one in status.get("conditions") or () if one["status"] == "True"}


async def until_ended(workspace: Workspace, condition: str) -> JsonObject:
    async def ended() -> JsonObject | None:
        status = await job_status(workspace)
        return status if condition in conditions_of(status) else None

    return await eventually(ended)


async def test_a_job_runs_so_many_pods_at_once_until_enough_have_succeeded(workspace: Workspace) -> None:
    job = await workspace.client.create(JOBS, a_job(workspace.namespace, parallelism=2, completions=3))

    first = await workspace.until_live(2)
    await workspace.set_phase(first[0], "Succeeded")
    await workspace.set_phase(first[1], "Succeeded")
    (last,) = await workspace.until_live(1)
    await workspace.set_phase(last, "Succeeded")

    status = await until_ended(workspace, "Complete")
    assert status["succeeded"] == 3
    assert status["completionTime"]
    assert "active" not in status
    assert {uid_of(job)} == {metadata_of(pod)["ownerReferences"][0]["uid"] for pod in await workspace.pods()}
    assert {metadata_of(pod)["labels"]["batch.kubernetes.io/job-name"] for pod in first} == {"train"}


async def test_an_indexed_job_runs_one_pod_per_index(workspace: Workspace) -> None:
    spec = {"completionMode": "Indexed", "parallelism": 3, "completions": 3}
    await workspace.client.create(JOBS, a_job(workspace.namespace, **spec))

    pods = await workspace.until_live(3)
    for pod in pods:
        await workspace.set_phase(pod, "Succeeded")

    status = await until_ended(workspace, "Complete")
    assert status["completedIndexes"] == "0-2"
    assert [pod["spec"]["hostname"] for pod in pods] == ["train-0", "train-1", "train-2"]
    assert key_of(pods[1])[1].startswith("train-1-")
    assert metadata_of(pods[2])["annotations"]["batch.kubernetes.io/job-completion-index"] == "2"
    names = {entry["name"] for entry in pods[0]["spec"]["containers"][0]["env"]}
    assert "JOB_COMPLETION_INDEX" in names


async def test_a_job_fails_when_more_pods_fail_than_it_allows(workspace: Workspace) -> None:
    await workspace.client.create(
        JOBS, a_job(workspace.namespace, backoffLimit=0, parallelism=2, completions=2)
    )

    failing, other = await workspace.until_live(2)
    await workspace.set_phase(failing, "Failed")

    status = await until_ended(workspace, "Failed")
    assert conditions_of(status) == {
        "FailureTarget": "BackoffLimitExceeded",
        "Failed": "BackoffLimitExceeded",
    }
    assert uid_of(other) not in {uid_of(pod) for pod in await workspace.live_pods()}


async def test_a_deleted_pod_of_a_job_is_counted_as_failed_and_replaced(workspace: Workspace) -> None:
    await workspace.client.create(JOBS, a_job(workspace.namespace))
    (evicted,) = await workspace.until_live(1)
    await workspace.set_phase(evicted, "Running")

    await workspace.client.evict(workspace.namespace, key_of(evicted)[1], DeleteOptions(grace_period_s=0))

    async def replaced() -> JsonObject | None:
        live = [pod for pod in await workspace.live_pods() if uid_of(pod) != uid_of(evicted)]
        return live[0] if live else None

    await workspace.set_phase(await eventually(replaced), "Succeeded")
    status = await until_ended(workspace, "Complete")
    assert (status["succeeded"], status["failed"]) == (1, 1)


async def test_a_job_that_runs_too_long_fails(workspace: Workspace) -> None:
    await workspace.client.create(JOBS, a_job(workspace.namespace, activeDeadlineSeconds=4))
    await workspace.until_live(1)

    status = await until_ended(workspace, "Failed")

    assert conditions_of(status)["Failed"] == "DeadlineExceeded"
    await workspace.until_live(0)


async def test_a_suspended_job_has_no_pods_until_it_is_resumed(workspace: Workspace) -> None:
    await workspace.client.create(JOBS, a_job(workspace.namespace))
    await workspace.until_live(1)

    await workspace.client.patch(JOBS, "train", workspace.namespace, {"spec": {"suspend": True}})
    await workspace.until_live(0)
    suspended = await until_ended(workspace, "Suspended")
    await workspace.client.patch(JOBS, "train", workspace.namespace, {"spec": {"suspend": False}})

    await workspace.until_live(1)
    assert "startTime" not in suspended


async def test_an_ended_job_is_deleted_with_its_pods_after_its_time_to_live(workspace: Workspace) -> None:
    await workspace.client.create(JOBS, a_job(workspace.namespace, ttlSecondsAfterFinished=0))
    (pod,) = await workspace.until_live(1)

    await workspace.set_phase(pod, "Succeeded")

    async def gone() -> bool | None:
        try:
            await workspace.client.get(JOBS, "train", workspace.namespace)
        except NotFoundError:
            return not await workspace.pods()
        return None

    assert await eventually(gone)


async def test_the_pods_of_a_deleted_job_go_with_it(workspace: Workspace) -> None:
    await workspace.client.create(JOBS, a_job(workspace.namespace, parallelism=2, completions=2))
    await workspace.until_live(2)

    await delete_in_background(workspace)

    async def gone() -> bool | None:
        return not await workspace.pods()

    assert await eventually(gone)


async def delete_in_background(workspace: Workspace) -> None:
    options = DeleteOptions(propagation="Background")
    await workspace.client.delete(JOBS, "train", workspace.namespace, options)
