"""A start is a takeover: what an earlier extender sent, or is about to send, must fail."""

import asyncio
from typing import Any

import pytest

from gpuloom.errors import ConflictError
from gpuloom.kube.client import KubeClient, PodBinding
from gpuloom.kube.resources import PODS
from gpuloom.names import ANNOTATION_EPOCH
from gpuloom.runtime.clock import SystemClock
from gpuloom.sim.kubeapi import SimKubeApi
from gpuloom.sim.kubeapi.verbs.deletion import DeleteOptions
from services.scheduler_extender.adapters.kubernetes import KubernetesMarker
from services.scheduler_extender.leadership.takeover import stamp_unbound
from tests.mesh.scheduler_extender.desk import a_client
from tests.mesh.scheduler_extender.kubernetes import BINDING, JsonObject, add_pod, node_of, the_pod
from tests.unit.scheduler_extender.builders import gpuloom_share, nvidia_cards

PODS_PATH = r"/pods/"


async def take_over(client: KubeClient, listed: Any = None, epoch: str = "new") -> int:
    pods = (await client.list(PODS)).items if listed is None else listed
    return (await stamp_unbound(pods, epoch, KubernetesMarker(client), SystemClock())).pods


def binding_of(pod: JsonObject, node: str = "n1") -> PodBinding:
    """As an extender that read the pod in this state would send it."""
    metadata = pod["metadata"]
    return PodBinding(
        metadata["namespace"], metadata["name"], node, metadata["uid"], metadata["resourceVersion"]
    )


def epoch_of(api: SimKubeApi, name: str) -> str:
    return str((the_pod(api, name)["metadata"].get("annotations") or {}).get(ANNOTATION_EPOCH, ""))


async def test_every_unbound_pod_that_asks_for_gpus_is_stamped() -> None:
    async with SimKubeApi() as api, a_client(api) as client:
        names = [f"p{number}" for number in range(120)]
        for number, name in enumerate(names):
            add_pod(api, name, nvidia_cards() if number % 2 else gpuloom_share(500))

        count = await take_over(client)

        assert count == 120
        assert {epoch_of(api, name) for name in names} == {"new"}


async def test_pods_without_gpus_and_bound_or_ended_pods_are_left_alone() -> None:
    async with SimKubeApi() as api, a_client(api) as client:
        add_pod(api, "plain", {"cpu": "1"})
        await client.bind(binding_of(add_pod(api, "bound")))
        add_pod(api, "ended")
        await client.patch_status(PODS, "ended", "default", {"status": {"phase": "Failed"}})
        before = {name: the_pod(api, name) for name in ("plain", "bound", "ended")}

        count = await take_over(client)

        assert count == 0
        assert {name: the_pod(api, name) for name in before} == before


async def test_a_pod_whose_request_is_malformed_is_stamped_too() -> None:
    async with SimKubeApi() as api, a_client(api) as client:
        add_pod(api, "odd", gpuloom_share(1500))

        await take_over(client)

        assert epoch_of(api, "odd") == "new"


async def test_a_paused_leaders_binding_of_before_the_takeover_fails() -> None:
    async with SimKubeApi() as api, a_client(api) as client:
        read_by_old_leader = add_pod(api, "p")

        await take_over(client)

        with pytest.raises(ConflictError):
            await client.bind(binding_of(read_by_old_leader))
        assert node_of(api, "p") == ""


async def test_a_binding_that_was_under_way_during_the_takeover_fails() -> None:
    async with SimKubeApi() as api, a_client(api) as old, a_client(api) as new:
        pod = add_pod(api, "p")
        hold = api.faults.delay_next("POST", BINDING)
        late = asyncio.create_task(old.bind(binding_of(pod), timeout_s=10.0))
        await hold.reached()

        await take_over(new)
        hold.release()

        with pytest.raises(ConflictError):
            await late
        assert node_of(api, "p") == ""


async def test_a_binding_that_was_applied_after_the_list_is_kept() -> None:
    async with SimKubeApi() as api, a_client(api) as old, a_client(api) as new:
        pod = add_pod(api, "p")
        listed = (await new.list(PODS)).items
        await old.bind(binding_of(pod))

        await take_over(new, listed)

        assert node_of(api, "p") == "n1"


async def test_the_new_leaders_own_binding_is_not_fenced() -> None:
    async with SimKubeApi() as api, a_client(api) as client:
        add_pod(api, "p")

        await take_over(client)
        await client.bind(binding_of(await client.get(PODS, "p", "default")))

        assert node_of(api, "p") == "n1"


async def test_each_takeover_fences_the_one_before() -> None:
    async with SimKubeApi() as api, a_client(api) as client:
        add_pod(api, "p")
        await take_over(client, epoch="first")
        read_by_first = the_pod(api, "p")

        await take_over(client, epoch="second")

        with pytest.raises(ConflictError):
            await client.bind(binding_of(read_by_first))
        assert epoch_of(api, "p") == "second"


async def test_a_stamp_that_fails_is_tried_until_it_is_there() -> None:
    async with SimKubeApi() as api, a_client(api) as client:
        add_pod(api, "p")
        api.faults.fail_next("PATCH", PODS_PATH, 500)
        api.faults.drop_next("PATCH", PODS_PATH)

        await take_over(client)

        assert epoch_of(api, "p") == "new"


async def test_a_pod_that_was_replaced_since_the_list_ends_the_stamp_and_is_left_alone() -> None:
    async with SimKubeApi() as api, a_client(api) as client:
        add_pod(api, "p")
        add_pod(api, "gone")
        listed = (await client.list(PODS)).items
        for name in ("p", "gone"):
            api.store.delete("pods", name, namespace="default", options=DeleteOptions(grace_s=0))
        add_pod(api, "p")

        await take_over(client, listed)

        assert epoch_of(api, "p") == ""
