"""What the extender plans with, by its own account: owners of gangs, budgets, evictions, reservations."""

import pytest

from gpuloom.catalog.manifests import definitions
from gpuloom.errors import NotFoundError
from gpuloom.kube.events import EventRecorder, EventSettings
from gpuloom.kube.objects import JsonObject, metadata_of, uid_of
from gpuloom.kube.resources import GANG_OWNERS, PODS
from gpuloom.model.claims import GpuReservationStatus, ReservationState
from gpuloom.model.node import PodRef
from gpuloom.runtime.clock import SystemClock, deadline
from services.scheduler_extender.adapters.disruption import KubernetesBudgets
from services.scheduler_extender.adapters.evictions import KubernetesEvictions, PodAnnouncer
from services.scheduler_extender.adapters.owners import OwnerSizes
from services.scheduler_extender.adapters.reservations import KubernetesReservations, ReservationFeed
from services.scheduler_extender.core.gangs.entitlements import ReservationBook
from tests.cluster.shared import SharedControlPlane
from tests.cluster.test_rbac import (
    CLOCK,
    DEFINITIONS,
    NAMESPACE,
    as_account,
    without_definition,
)
from tests.mesh.waiting import running

pytestmark = pytest.mark.real

RESERVATION: JsonObject = {
    "metadata": {"name": "rights", "namespace": NAMESPACE},
    "spec": {"request": {"gpuCount": 1}, "count": 1, "ttl": "1h"},
}


async def test_the_extender_evicts_tells_and_asks_how_many_pods_a_gang_has(
    shared_control_plane: SharedControlPlane,
) -> None:
    """Kinds that are not installed say nothing, and that they are not there is all that the account hears."""
    async with (
        await as_account(shared_control_plane, "scheduler-extender") as client,
        shared_control_plane.client() as admin,
    ):
        pod = await admin.create(PODS, a_pod("leaves"))
        recorder = EventRecorder(client, "extender", "one", CLOCK, EventSettings(interval_s=0.0))
        for _ in range(2):
            # The second counts the first up.
            PodAnnouncer(recorder).tell(pod, "Preempted", "it leaves for another")
            await recorder.write_due()
        assert recorder.dropped == 0
        for resource in GANG_OWNERS:
            with pytest.raises(NotFoundError):
                await client.get(resource, "missing", NAMESPACE)
            owner = {"kind": resource.kind, "name": "missing", "controller": True}
            owned = {"metadata": {"namespace": NAMESPACE, "ownerReferences": [owner]}}
            assert await OwnerSizes(client, SystemClock()).size_of(owned) is None
        assert await KubernetesBudgets(client).list() == []

        evictions, ref = KubernetesEvictions(client), PodRef(NAMESPACE, "leaves", uid_of(pod))
        await evictions.request_checkpoint(ref, CLOCK.now())
        assert await evictions.evict(ref) == ""

        with pytest.raises(NotFoundError):
            await admin.get(PODS, "leaves", NAMESPACE)


async def test_the_extender_makes_follows_shows_and_deletes_reservations(
    shared_control_plane: SharedControlPlane,
) -> None:
    async with (
        await as_account(shared_control_plane, "scheduler-extender") as client,
        shared_control_plane.client() as admin,
    ):
        definition = next(each for each in definitions() if each["spec"]["names"]["kind"] == "GPUReservation")
        await without_definition(admin, "gpureservations.gpuloom.dev")
        await admin.create(DEFINITIONS, dict(definition))
        try:
            objects, book = KubernetesReservations(client), ReservationBook()
            await until_made(objects)
            feed = ReservationFeed(client, CLOCK, prompt=True)
            feed.informer.on_change(book.observe)
            async with running(feed.run):
                await feed.relist()
                (known,) = book.all()
                status = GpuReservationStatus(ReservationState.ACTIVE, 1, ("n1",), known.end)
                await objects.write(known.spoken, status)
                await feed.relist()
                assert book.all()[0].spoken.status == status
            await objects.delete(NAMESPACE, metadata_of(RESERVATION)["name"])
            with pytest.raises(NotFoundError):
                await objects.delete(NAMESPACE, "rights")
        finally:
            await without_definition(admin, "gpureservations.gpuloom.dev")


async def until_made(objects: KubernetesReservations) -> None:
    """The kind is served a moment after its definition is there."""
    async with deadline(CLOCK, 120.0):
        while True:
            try:
                await objects.create(RESERVATION)
            except NotFoundError:
                await CLOCK.sleep(0.1)
            else:
                return


def a_pod(name: str) -> JsonObject:
    return {
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "schedulerName": "nobody",
            "containers": [{"name": "main", "image": "registry.example.com/work:1"}],
        },
    }
