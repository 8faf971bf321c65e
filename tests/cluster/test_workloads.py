"""The controller on the real API server beside the real kube-controller-manager, under its own account."""

import asyncio
import re
import time
from pathlib import Path

import orjson
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpuloom.kube.listing import Selection
from gpuloom.kube.objects import JsonObject, metadata_of, uid_of
from gpuloom.kube.resources import EVENTS, GPU_WORKLOADS, JOBS, LEASES, NAMESPACES, PODS
from gpuloom.model.node import PodRef
from gpuloom.model.optimization import PodWaste, WasteParts, WasteReport
from gpuloom.names import ANNOTATION_RECOMMENDATION
from gpuloom.runtime.clock import SystemClock
from tests.cluster.binaries import Binaries
from tests.cluster.fake_nodes import FakeNode, create_nodes
from tests.cluster.workplace import CONTROLLER, Workplace, metrics_of, open_workplace, rss_mib

pytestmark = [pytest.mark.real, pytest.mark.timeout(420)]

CLOCK = SystemClock()
COUNT = 1000
KILLS = 3
MAX_RSS_MIB = 128.0
PRINTED = Path(__file__).parents[2] / "examples" / "gpuworkload.yaml"
TEAM = "team"


async def test_workloads_become_one_job_each_whatever_dies_and_waste_is_told_once(
    binaries: Binaries, tmp_path: Path
) -> None:
    async with open_workplace(binaries, tmp_path / "plane", CLOCK, controllers=True) as place:
        await place.client.create(NAMESPACES, {"metadata": {"name": TEAM}})
        first, metrics_port = place.replica("controller", 1, CONTROLLER)
        await place.supervisor.start([[first]])

        await the_printed_workload_behaves(place)
        await waste_is_told_once(place)
        await many_workloads_survive_kills(place)
        await place.eventually(lambda: all_settled(place), every_s=2.0)
        p99_s, rss = await reconcile_p99_s(metrics_port), rss_mib(place.pid("controller-1"))
        led_s, made_s = await failover(place)
        denied = place.denied_calls()

    print(  # noqa: T201
        f"\n{COUNT} workloads: reconcile p99 <= {p99_s} s, {rss:.0f} MiB; "
        f"another leads after {led_s:.1f} s, and has made a Job after {made_s:.1f} s"
    )
    assert rss <= MAX_RSS_MIB
    assert denied == []


async def the_printed_workload_behaves(place: Workplace) -> None:
    await place.plane.apply(PRINTED)

    async def scheduling() -> JsonObject | None:
        found = await place.client.get(GPU_WORKLOADS, "my-inference-workload", "default")
        return found if (found.get("status") or {}).get("phase") == "Scheduling" else None

    found = await place.eventually(scheduling)
    assert isinstance(found, dict)
    job = await place.client.get(JOBS, found["status"]["jobName"], "default")
    template = job["spec"]["template"]
    (container,) = template["spec"]["containers"]
    assert {one["name"]: one["value"] for one in container["env"]} == {
        "MODEL_NAME": "llama2",
        "GPU_COUNT": "2",
        "WORKLOAD_NAME": "my-inference-workload",
        "WORKLOAD_PRIORITY": "high",
    }
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "2"}
    assert template["spec"]["priorityClassName"] == "gpuloom-high"
    assert template["metadata"]["annotations"]["gpuloom.dev/strategy"] == "leastLoaded"
    assert "nodeName" not in template["spec"]


async def waste_is_told_once(place: Workplace) -> None:
    await create_nodes(place.client, [FakeNode("n1", {"nvidia.com/gpu": "8"})])
    container = {
        "name": "c",
        "image": "registry.invalid/x:1",
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
    }
    body = {
        "metadata": {"name": "idle", "namespace": TEAM},
        "spec": {"nodeName": "n1", "containers": [container]},
    }
    pod = await place.client.create(PODS, body)
    place.optimizer.report = WasteReport((a_waste(pod),), 1)

    async def told() -> bool:
        annotations = metadata_of(await place.client.get(PODS, "idle", TEAM)).get("annotations") or {}
        return ANNOTATION_RECOMMENDATION in annotations

    await place.eventually(told)
    place.supervisor.kill("controller-1")
    await place.eventually(lambda: lives_again(place, "controller-1", 1))
    await CLOCK.sleep(5.0)
    annotations = metadata_of(await place.client.get(PODS, "idle", TEAM))["annotations"]
    events = (await place.client.list(EVENTS, Selection(TEAM))).items
    assert orjson.loads(annotations[ANNOTATION_RECOMMENDATION])["recommended"] == "gpuloom.dev/gpu-milli=250"
    (event,) = [one for one in events if one["reason"] == "GPUWaste"]
    assert event["involvedObject"]["uid"] == uid_of(pod)
    assert "ask for gpuloom.dev/gpu-milli=250 instead of nvidia.com/gpu=1" in event["message"]


def a_waste(pod: JsonObject) -> PodWaste:
    return PodWaste(
        pod=PodRef(TEAM, "idle", uid_of(pod)),
        owner="",
        parts=WasteParts(idle=60.0, oversized=20.0),
        now="nvidia.com/gpu=1",
        recommended="gpuloom.dev/gpu-milli=250",
        confidence=0.9,
        reason="at 5% of what it holds for 9 min",
    )


async def lives_again(place: Workplace, name: str, deaths: int) -> bool:
    (status,) = (one for one in place.supervisor.statuses() if one.name == name)
    return status.restarts >= deaths and status.state == "running"


async def many_workloads_survive_kills(place: Workplace) -> None:
    slots = asyncio.Semaphore(16)
    deaths = place.supervisor.restarts("controller-1")

    async def create(number: int) -> None:
        async with slots:
            spec = {"modelName": "llama2", "gpuCount": 1}
            body = {"metadata": {"name": f"w-{number}", "namespace": TEAM}, "spec": spec}
            await place.client.create(GPU_WORKLOADS, body)

    for part in range(KILLS + 1):
        share = COUNT // (KILLS + 1)
        async with asyncio.TaskGroup() as group:
            for number in range(part * share, (part + 1) * share):
                group.create_task(create(number))
        if part < KILLS:
            # In the middle of its work: half of this part's Jobs are there.
            wanted = part * share + share // 2
            await place.eventually(lambda wanted=wanted: at_least(place, wanted), every_s=1.0)  # type: ignore[misc]
            place.supervisor.kill("controller-1")
            deaths += 1
            await place.eventually(lambda deaths=deaths: lives_again(place, "controller-1", deaths))  # type: ignore[misc]
    await place.eventually(lambda: at_least(place, COUNT), within_s=240.0, every_s=2.0)
    jobs = (await place.client.list(JOBS, Selection(TEAM))).items
    owners = [metadata_of(job)["ownerReferences"][0]["name"] for job in jobs]
    assert sorted(owners) == sorted(f"w-{number}" for number in range(COUNT))


async def at_least(place: Workplace, count: int) -> bool:
    return len((await place.client.list(JOBS, Selection(TEAM))).items) >= count


async def all_settled(place: Workplace) -> bool:
    found = (await place.client.list(GPU_WORKLOADS, Selection(TEAM))).items
    return all((one.get("status") or {}).get("jobName") for one in found)


async def reconcile_p99_s(port: int) -> float:
    """The upper bound of the bucket that holds it, of the last life of the controller."""
    buckets: list[tuple[float, float]] = []
    for family in text_string_to_metric_families(await metrics_of(port)):
        if family.name == "controller_reconcile_duration":
            buckets = [(float(s.labels["le"]), s.value) for s in family.samples if s.name.endswith("_bucket")]
    total = max(count for _, count in buckets)
    return min(bound for bound, count in buckets if count >= 0.99 * total)


async def failover(place: Workplace) -> tuple[float, float]:
    """From the end of the leader until another leads, and until that one has made a new Job."""
    second, _ = place.replica("controller", 2, CONTROLLER)
    await place.supervisor.start([[second]])
    before = await lease_holder(place)
    place.supervisor.kill("controller-1")
    began_s = time.monotonic()
    spec = {"modelName": "llama2", "gpuCount": 1}
    await place.client.create(
        GPU_WORKLOADS, {"metadata": {"name": "late", "namespace": "default"}, "spec": spec}
    )

    async def made() -> bool:
        jobs = (await place.client.list(JOBS, Selection("default"))).items
        return any(re.match("late-", metadata_of(job)["name"]) for job in jobs)

    async def led() -> bool:
        return await lease_holder(place) not in ("", before)

    await place.eventually(led, every_s=0.1)
    led_s = time.monotonic() - began_s
    await place.eventually(made)
    return led_s, time.monotonic() - began_s


async def lease_holder(place: Workplace) -> str:
    lease = await place.client.get(LEASES, "gpuloom-controller", "gpuloom-system")
    return str(lease["spec"].get("holderIdentity") or "")
