"""A pod waits for a slice; a real agent, discovery and the controller make it."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gpuloom.catalog.manifests import definitions
from gpuloom.clients.mig import apply_fit, list_cards, plan_fit
from gpuloom.codec.allocation import encode_allocation
from gpuloom.errors import ConflictError, NotReadyError
from gpuloom.kube.access import KubeAccess
from gpuloom.kube.client import KubeClient, PodBinding
from gpuloom.model.allocation import AllocatedDevice, Allocation
from gpuloom.model.gpu import DeviceRef
from gpuloom.model.mig import MigPlacement
from gpuloom.model.mig_cards import BegunChange, MigCards, PlannedFit
from gpuloom.model.sharing import MigStage
from gpuloom.names import ANNOTATION_ALLOCATION
from gpuloom.rpc.channel import RpcChannel
from gpuloom.runtime.clock import SystemClock
from gpuloom.sim.kubeapi.verbs.deletion import DeleteOptions
from gpuloom.sim.kubeapi.verbs.store import STATUS
from services.mig_controller.adapters.intents import NAME
from tests.mesh.node_agent.builders import Mesh, Service, a_mesh, trusted
from tests.mesh.node_agent.test_machine_calls import ready
from tests.mesh.waiting import PATIENCE_S, until


def a_waiting_pod(name: str, profile: str = "1g.5gb", milli: str = "125") -> dict[str, Any]:
    resources = {"limits": {"gpuloom.dev/gpu-milli": milli}, "requests": {"gpuloom.dev/gpu-milli": milli}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "default",
            "annotations": {"gpuloom.dev/mig-profile": profile},
        },
        "spec": {"containers": [{"name": "main", "image": "model", "resources": resources}]},
    }


async def a_node(mesh: Mesh) -> tuple[Service, Service]:
    """Discovery and extender of one node with eight A100s, trusted."""
    mesh.add_machine("n1")
    agent = await mesh.start_agent("n1")
    mesh.tell_agents(n1=agent.port)
    discovery = await mesh.start_discovery()
    mirror = await mesh.mirror(discovery)
    await ready(agent)
    await until(lambda: trusted(mirror, mesh.node_uid("n1")))
    return discovery, await mesh.start_extender(discovery)


async def cards_when(channel: RpcChannel, wanted: MigStage, count: int, profile: str = "") -> MigCards:
    """As soon as so many slices are in that state."""
    last = MigCards()

    async def there() -> bool:
        nonlocal last
        try:
            last = await list_cards(channel, PATIENCE_S)
        except NotReadyError:
            return False
        slices = [one for card in last.cards for one in card.slices]
        return sum(o.stage is wanted and profile in ("", o.placement.profile) for o in slices) >= count

    for _ in range(200):
        if await there():
            return last
        await asyncio.sleep(0.05)
    raise AssertionError(f"never {count} slices {wanted}: {last}")


def intents(mesh: Mesh) -> str:
    found = [m for m in listed(mesh, "configmaps") if m["metadata"]["name"] == NAME]
    return str(found[0]["data"]["intents.json"]) if found else ""


def listed(mesh: Mesh, resource: str) -> list[dict[str, Any]]:
    return list(mesh.api.store.select(resource))


async def test_a_slice_is_made_for_a_pod_that_waits_and_nothing_stays_behind(tmp_path: Path) -> None:
    async with a_mesh(tmp_path, definitions()) as mesh:
        discovery, extender = await a_node(mesh)
        controller = await mesh.start_mig(discovery, extender)
        channel = await mesh.channel(controller, "mig_controller", "cli")
        mesh.api.store.create("pods", a_waiting_pod("infer"))

        cards = await cards_when(channel, MigStage.AVAILABLE, 1)
        await until(lambda: intents(mesh).endswith('"intents":[]}'))

        (cut,) = [card for card in cards.cards if card.slices]
        assert [one.placement for one in cut.slices] == [MigPlacement(6, "1g.5gb")]
        assert cut.stage is MigStage.MIG_ENABLED
        assert listed(mesh, "gpuholds.gpuloom.dev") == []
        fit = await planned(channel, {"3g.20gb": 20}, missing={"3g.20gb": 4})
        assert sum(len(step.create) for step in fit.steps) == 16


@pytest.mark.parametrize("point", ["mig-after-hold", "mig-after-agent"])
async def test_a_controller_that_dies_is_followed_by_one_that_goes_on(tmp_path: Path, point: str) -> None:
    async with a_mesh(tmp_path, definitions()) as mesh:
        discovery, extender = await a_node(mesh)
        dying = await mesh.start_mig(
            discovery, extender, GPULOOM_FAILPOINTS=f"{point}=60s", GPULOOM_FAILPOINTS_ALLOWED="true"
        )
        mesh.api.store.create("pods", a_waiting_pod("infer"))
        await until(lambda: bool(listed(mesh, "gpuholds.gpuloom.dev")) or "c" in intents(mesh))
        await asyncio.sleep(0.05)
        await dying.stop()

        next_one = await mesh.start_mig(discovery, extender)
        channel = await mesh.channel(next_one, "mig_controller", "cli")
        await cards_when(channel, MigStage.AVAILABLE, 1)
        await until(
            lambda: intents(mesh).endswith('"intents":[]}') and not listed(mesh, "gpuholds.gpuloom.dev")
        )
        cards = await list_cards(channel, PATIENCE_S)

        assert sum(len(card.slices) for card in cards.cards) == 1


async def test_a_node_config_divides_each_gpu_and_its_status_says_how(tmp_path: Path) -> None:
    async with a_mesh(tmp_path, definitions()) as mesh:
        discovery, extender = await a_node(mesh)
        controller = await mesh.start_mig(discovery, extender)
        channel = await mesh.channel(controller, "mig_controller", "cli")
        mesh.api.store.create(
            "gpunodeconfigs.gpu-autoscaler.io",
            {
                "apiVersion": "gpu-autoscaler.io/v1alpha1",
                "kind": "GPUNodeConfig",
                "metadata": {"name": "n1"},
                "spec": {"nodeName": "n1", "migProfiles": ["3g.20gb", "3g.20gb"]},
            },
        )

        await cards_when(channel, MigStage.AVAILABLE, 16)

        def applied() -> bool:
            (config,) = listed(mesh, "gpunodeconfigs.gpu-autoscaler.io")
            conditions = config.get("status", {}).get("conditions", [])
            return any(c["type"] == "Applied" and c["status"] == "True" for c in conditions)

        await until(applied, 15)
        (config,) = listed(mesh, "gpunodeconfigs.gpu-autoscaler.io")
        assert len(config["status"]["gpus"]) == 8
        assert config["status"]["gpus"][0]["state"] == "MIGEnabled"
        assert {one["state"] for one in config["status"]["gpus"][0]["instances"]} == {"Available"}

        # Cut anew: what is there and idle goes, by holds on the slices themselves.
        mesh.api.store.update(
            "gpunodeconfigs.gpu-autoscaler.io",
            {**config, "spec": {**config["spec"], "migProfiles": ["7g.40gb"]}},
        )
        cards = await cards_when(channel, MigStage.AVAILABLE, 8, "7g.40gb")
        assert [[one.placement for one in card.slices] for card in cards.cards] == [
            [MigPlacement(0, "7g.40gb")]
        ] * 8
        await until(lambda: not listed(mesh, "gpuholds.gpuloom.dev"))


async def test_a_plan_is_carried_out_as_it_was_shown_and_heeds_a_budget(tmp_path: Path) -> None:
    async with a_mesh(tmp_path, definitions()) as mesh:
        discovery, extender = await a_node(mesh)
        controller = await mesh.start_mig(discovery, extender)
        channel = await mesh.channel(controller, "mig_controller", "cli")
        budget = {"selector": {"matchLabels": {"app": "infer"}}, "minAvailable": 1}
        mesh.api.store.create("poddisruptionbudgets.policy", an_object("keep", spec=budget))
        await a_bound_pod(mesh, channel, "infer")
        demand = {"7g.40gb": 8}

        found = await planned(channel, demand, missing={})
        (move,) = [move for step in found.steps for move in step.moves]
        with pytest.raises(ConflictError, match="has changed"):
            await apply_fit(channel, demand, "another", PATIENCE_S)
        begun = await begun_at_last(channel, demand)
        await notes_say(channel, "default/infer stays for now: a PodDisruptionBudget")
        held = {hold["metadata"]["name"] for hold in listed(mesh, "gpuholds.gpuloom.dev")}
        mesh.api.store.delete("poddisruptionbudgets.policy", "keep", namespace="default")
        await until(lambda: "deletionTimestamp" in the_pod(mesh, "infer")["metadata"])
        mesh.api.store.delete("pods", "infer", namespace="default", options=DeleteOptions(grace_s=0))
        cards = await cards_when(channel, MigStage.AVAILABLE, 8, "7g.40gb")

        assert (move.owner, move.placement) == ("default/infer", MigPlacement(6, "1g.5gb"))
        assert len(begun) == 8
        assert len(held) >= 1
        await until(lambda: told(mesh, "MovedToMakeRoom") == 1)
        assert sum(len(card.slices) for card in cards.cards) == 8
        await until(
            lambda: intents(mesh).endswith('"intents":[]}') and not listed(mesh, "gpuholds.gpuloom.dev")
        )


def told(mesh: Mesh, reason: str) -> int:
    return sum(event["reason"] == reason for event in listed(mesh, "events"))


async def planned(channel: RpcChannel, demand: dict[str, int], missing: dict[str, int]) -> PlannedFit:
    """The node may be distrusted for a moment where tests leave its agent no time."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = await plan_fit(channel, demand, PATIENCE_S)
            if found.missing == missing:
                return found


async def begun_at_last(channel: RpcChannel, demand: dict[str, int]) -> tuple[BegunChange, ...]:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = await plan_fit(channel, demand, PATIENCE_S)
            try:
                return await apply_fit(channel, demand, found.fingerprint, PATIENCE_S)
            except ConflictError:
                await asyncio.sleep(0.1)


async def a_bound_pod(mesh: Mesh, channel: RpcChannel, name: str) -> None:
    """It got the slice that was made for it, and something would make it anew elsewhere."""
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u", "controller": True}
    waiting = a_waiting_pod(name)
    waiting["metadata"] |= {"labels": {"app": name}, "ownerReferences": [owner]}
    uid = str(mesh.api.store.create("pods", waiting)["metadata"]["uid"])
    (cut,) = [card for card in (await cards_when(channel, MigStage.AVAILABLE, 1)).cards if card.slices]
    device = AllocatedDevice(DeviceRef(cut.gpu_uuid, cut.slices[0].placement), 125, 4864)
    allocation = Allocation(uid, mesh.node_uid("n1"), "main", advisory=False, devices=(device,))
    annotations = {ANNOTATION_ALLOCATION: encode_allocation(allocation)}
    async with KubeClient(KubeAccess(mesh.api.url), SystemClock()) as client:
        await client.bind(PodBinding("default", name, "n1", uid, annotations=annotations))
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    mesh.api.store.update("pods", {**the_pod(mesh, name), "status": ready}, STATUS)
    await cards_when(channel, MigStage.ALLOCATED, 1)


def the_pod(mesh: Mesh, name: str) -> dict[str, Any]:
    return dict(mesh.api.store.get("pods", name, "default"))


def an_object(name: str, **more: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "default"}, **more}


async def notes_say(channel: RpcChannel, text: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            notes = [card.note for card in (await list_cards(channel, PATIENCE_S)).cards]
            if any(text in note for note in notes):
                return
            await asyncio.sleep(0.05)
