"""From simulated cards to a recommendation: agent, spool, discovery, the optimizer and its client."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import orjson
import pytest
import yaml

from gpuloom.clients import optimizer as client
from gpuloom.codec.pod import pod_request
from gpuloom.errors import InvalidRequestError, NotAllowedError, NotFoundError
from gpuloom.model.node import PodRef
from gpuloom.model.optimization import ClassSource, WasteReport, WorkloadClass
from gpuloom.rpc.channel import RpcChannel
from gpuloom.sim.kubeapi.verbs import subresources
from gpuloom.sim.machines.machine import Machine
from services.optimizer import app as optimizer
from services.optimizer.config import OptimizerConfig
from services.optimizer.core.offers import Fit
from services.optimizer.core.recommend import change_of
from services.optimizer.core.workload import workload_of
from tests.mesh.node_agent.builders import Mesh, Service, a_mesh
from tests.mesh.waiting import PATIENCE_S, until
from tests.unit.sim.builders import hosted, whole

Answer = TypeVar("Answer")

EXAMPLES = tuple(
    yaml.safe_load_all((Path(__file__).parents[3] / "examples" / "optimizer.yaml").read_text("utf-8"))
)
LABELS = {"app": "serve"}
POD = PodRef("default", "serve", "")


def add_pod(mesh: Mesh, machine: Machine, load: float) -> None:
    """A pod in Kubernetes and on the card that it was given."""
    uuid = machine.hardware.gpus[0].uuid
    amounts = {"gpuloom.dev/gpu-milli": "1000"}
    container = {
        "name": "main",
        "image": "example.test/serve:1",
        "resources": {"limits": amounts, "requests": amounts},
    }
    pod: dict[str, Any] = {
        "metadata": {"name": "serve", "labels": LABELS},
        "spec": {"containers": [container]},
    }
    uid = mesh.api.store.create("pods", pod)["metadata"]["uid"]
    binding = {"metadata": {"name": "serve"}, "target": {"kind": "Node", "name": "n1"}}
    subresources.bind(mesh.api.store, "default", "serve", binding)
    given = hosted("serve", whole(uuid), load=load)
    reference = PodRef("default", "serve", str(uid))
    machine.write_hosted([type(given)(reference, given.containers, given.load, 0.0, 0.0)])


def wipe(folder: Path) -> None:
    for file in folder.glob("optimizer.db*"):
        file.unlink()


async def start_optimizer(mesh: Mesh, discovery: Service, folder: Path) -> Service:
    settings = {
        "GPULOOM_DISCOVERY_ADDRESS": f"127.0.0.1:{discovery.port}",
        "GPULOOM_DATABASE_URL": f"sqlite:///{folder}/optimizer.db",
        "GPULOOM_OPTIMIZER_WASTE_AFTER": "1s",
        "GPULOOM_OPTIMIZER_WASTE_WINDOW": "30s",
        "GPULOOM_OPTIMIZER_WASTE_INTERVAL": "100ms",
        "GPULOOM_OPTIMIZER_TRAIN": "false",
        "GPULOOM_OPTIMIZER_USD_PER_GPU_HOUR": "2",
        "GPULOOM_GRPC_HOST": "127.0.0.1",
        "GPULOOM_GRPC_PORT": "0",
    }
    return await mesh._start("optimizer", OptimizerConfig, optimizer.build, settings)


@pytest.mark.timeout(400)
async def test_a_pod_that_wastes_its_card_is_found_also_after_a_restart_and_without_its_database(
    tmp_path: Path,
) -> None:
    async with a_mesh(tmp_path) as mesh:
        machine = mesh.add_machine("n1")
        add_pod(mesh, machine, load=0.2)
        agent = await mesh.start_agent("n1")
        mesh.tell_agents(n1=agent.port)
        discovery = await mesh.start_discovery()
        for begins in ("new", "as it was", "wiped"):
            if begins == "wiped":
                # The agents' spools tell it all again.
                wipe(tmp_path)
            service = await start_optimizer(mesh, discovery, tmp_path)
            channel = await mesh.channel(service, "optimizer", "cli")
            report = await found_waste(channel)
            found = await client.recommend(channel, POD)
            advice = await client.advise(channel, yaml.safe_load(found.yaml), timeout_s=PATIENCE_S)
            assert await service.stop() == 0

            (waste,) = report.pods
            assert waste.pod.name == "serve"
            assert waste.utilization_ratio is not None
            assert 0.1 < waste.utilization_ratio < 0.3
            assert waste.score > 50
            # Seen for seconds only.
            assert advice.utilization_ratio == pytest.approx(0.2, abs=0.1)
            assert (advice.milli, advice.basis, advice.reason[:15]) == (0, "owner", "not sure enough")
            assert waste.saving_nano_usd is not None
            assert waste.saving_nano_usd > 0
            # Its resources can't be changed: a new manifest, which asks for what was recommended.
            manifest = yaml.safe_load(found.yaml)
            request = pod_request(manifest)
            assert not found.is_patch
            assert request is not None
            assert f"gpuloom.dev/gpu-milli={request.gpu.milli}" in waste.recommended
            assert await tried(mesh, "POST", "/api/v1/namespaces/default/pods", manifest) == 201


@pytest.mark.timeout(180)
async def test_what_is_not_known_is_said_and_strangers_are_refused(tmp_path: Path) -> None:
    async with a_mesh(tmp_path) as mesh:
        machine = mesh.add_machine("n1")
        discovery = await mesh.start_discovery()
        service = await start_optimizer(mesh, discovery, tmp_path)
        channel = await mesh.channel(service, "optimizer", "cli")
        add_pod(mesh, machine, load=0.2)
        await until(lambda: not [reason for reason in service.not_ready() if "pods" in reason])

        # Nobody has measured anything of it: no agent runs.
        classification = await until_answered(lambda: client.classify(channel, POD))
        prediction = await client.predict(channel, POD)
        hint = await client.hint(channel, POD, timeout_s=PATIENCE_S)
        profiles = await client.profiles(channel)
        with pytest.raises(NotFoundError, match="does not waste"):
            await client.recommend(channel, POD)
        with pytest.raises(NotFoundError, match="no pod default/nobody"):
            await client.classify(channel, PodRef("default", "nobody", ""))
        with pytest.raises(NotAllowedError):
            await client.waste(await mesh.channel(service, "optimizer", "scheduler_extender"))

        assert (classification.workload_class, classification.source) == (
            WorkloadClass.INFERENCE,
            ClassSource.RULES,
        )
        assert prediction.memory_mib is None
        assert "0 runs" in prediction.reason
        assert hint.points == ()
        assert profiles == ()


@pytest.mark.timeout(180)
async def test_a_pod_at_admission_is_advised_by_pods_of_its_owner(tmp_path: Path) -> None:
    async with a_mesh(tmp_path) as mesh:
        discovery = await mesh.start_discovery()
        service = await start_optimizer(mesh, discovery, tmp_path)
        asked = await mesh.channel(service, "optimizer", "cli")
        amounts = {"limits": {"nvidia.com/gpu": "1"}}
        planned = {
            "metadata": {"generateName": "serve-1-", "labels": {"a": "\"'; DROP TABLE run; --"}},
            "spec": {"containers": [{"name": "main", "image": "example.test/new:1", "resources": amounts}]},
        }

        unknown = await client.advise(asked, planned, "default", timeout_s=PATIENCE_S)
        nothing = await client.advise(asked, {"spec": {"containers": []}}, timeout_s=PATIENCE_S)
        for hostile in (
            {"spec": 7},
            {"spec": {}, "metadata": "x"},
            {"spec": {}, "metadata": {"name": "x" * 600_000}},
        ):
            with pytest.raises(InvalidRequestError, match="pod_json"):
                await client.advise(asked, hostile, timeout_s=PATIENCE_S)

        assert unknown.utilization_ratio is None
        assert "no pod of its owner was measured" in unknown.reason
        assert "asks for no GPU" in nothing.reason


async def test_changes_and_examples_pass_a_dry_run_of_the_api_server(tmp_path: Path) -> None:
    async with a_mesh(tmp_path) as mesh:
        deployment, job = EXAMPLES
        path = "/apis/apps/v1/namespaces/default/deployments"
        mesh.api.store.create("deployments.apps", deployment)
        template = deployment["spec"]["template"]
        owner = {"kind": "ReplicaSet", "name": "chat-1", "controller": True}
        labels = {**template["metadata"]["labels"], "pod-template-hash": "1"}
        metadata = {"name": "chat-1-x", "namespace": "default", "uid": "u", "labels": labels}
        pod = {"metadata": {**metadata, "ownerReferences": [owner]}, "spec": template["spec"]}
        workload = workload_of(pod)
        assert workload is not None
        fit = Fit((("gpuloom.dev/gpu-milli", 250), ("gpuloom.dev/gpu-memory-mib", 2048)), 0.25)
        change = change_of(workload, fit, None)
        assert change is not None

        patched = await tried(mesh, "PATCH", f"{path}/chat", change.document)
        created = await tried(mesh, "POST", "/apis/batch/v1/namespaces/default/jobs", job)

        assert (change.target, patched, created) == ("Deployment/chat", 200, 201)


async def tried(mesh: Mesh, method: str, path: str, document: dict[str, Any]) -> int:
    """What the API server would say, without anything being changed."""
    kind = "application/strategic-merge-patch+json" if method == "PATCH" else "application/json"
    async with (
        aiohttp.ClientSession() as session,
        session.request(
            method,
            f"{mesh.api.url}{path}?dryRun=All",
            data=orjson.dumps(document),
            headers={"Content-Type": kind},
        ) as answer,
    ):
        return answer.status


async def found_waste(channel: RpcChannel) -> WasteReport:
    """As soon as there is any, with what to do: that needs to know what the cluster offers."""

    async def look() -> WasteReport:
        report = await client.waste(channel)
        if not report.pods or report.pods[0].score <= 50 or not report.pods[0].recommended:
            raise NotFoundError("no waste yet")
        return report

    return await until_answered(look)


async def until_answered(question: Callable[[], Awaitable[Answer]]) -> Answer:
    for _ in range(1500):
        try:
            return await question()
        except NotFoundError:
            await asyncio.sleep(0.02)
    raise AssertionError("not found within 30 s")
