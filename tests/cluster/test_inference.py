"""Inference autoscaling on a real control plane, with a real Prometheus and the real HPA controller.

Load goes up and replicas follow; metrics vanish and they stay; an HPA that scales the same target is named
and not fought; an ordinary HPA scales another target by our metrics API, through the real aggregator.
"""

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gpuloom.catalog.manifests import definitions
from gpuloom.kube.client import KubeClient
from gpuloom.kube.listing import Selection
from gpuloom.kube.resources import DEPLOYMENTS, EVENTS, INFERENCE_POLICIES, Resource
from gpuloom.model.node import NodeMode
from gpuloom.rpc.dev_ca import CertificateOrder, issue_development_certificates, tls_files
from gpuloom.runtime.clock import SystemClock, deadline
from gpuloom.sim.machines.cluster import plan_machines
from gpuloom.sim.processes.ports import HOST
from services.autoscaler.inference.adapters.api_services import API_SERVICES
from services.autoscaler.inference.adapters.targets import HPAS
from tests.cluster.binaries import Binaries
from tests.cluster.contract_api import CRDS
from tests.cluster.control_plane import ControlPlane, ControlPlaneOptions, open_control_plane
from tests.cluster.gpu_pods import NAMESPACE, create_namespace
from tests.cluster.inference_load import PlayedService, played
from tests.cluster.mesh import Mesh, open_mesh
from tests.cluster.shared import NAMESPACE as OURS
from tests.prometheus.programs import require_prometheus
from tests.prometheus.server import running as running_prometheus

pytestmark = [pytest.mark.real, pytest.mark.timeout(400)]

CLOCK = SystemClock()
SERVICES = Resource("", "v1", "services", "Service")
SERVICE = "gpuloom-autoscaler"
OWN, PLAIN = "llm-server", "plain-server"
SOMEBODY = "c29tZWJvZHkgZWxzZQ=="
"""A CA that is not ours."""
Until = Callable[[], Awaitable[Any]]


async def until(holds: Until, within_s: float = 120.0) -> Any:
    async with deadline(CLOCK, within_s):
        while not (found := await holds()):
            await CLOCK.sleep(0.5)
    return found


def a_deployment(name: str) -> dict[str, Any]:
    amounts = {"gpuloom.dev/gpu-milli": "125", "cpu": "100m", "memory": "64Mi"}
    container = {"name": "main", "image": "x", "resources": {"limits": amounts, "requests": amounts}}
    labels = {"app": name}
    return {
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"schedulerName": "gpuloom-scheduler", "containers": [container]},
            },
        },
    }


def a_policy() -> dict[str, Any]:
    return {
        "metadata": {"name": "llm", "namespace": NAMESPACE},
        "spec": {
            "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": OWN},
            "maxReplicas": 6,
            "cooldownPeriod": 0,
            "metrics": {"server": "vllm", "requestQueueDepth": {"targetDepth": 10}},
        },
    }


def an_hpa(name: str, target: str, metric: dict[str, Any]) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": target},
            "minReplicas": 1,
            "maxReplicas": 4,
            "metrics": [metric],
        },
    }


PODS_METRIC = {
    "type": "Pods",
    "pods": {
        "metric": {"name": "requests_waiting"},
        "target": {"type": "AverageValue", "averageValue": "10"},
    },
}


def an_api_service(version: str, group: str, port: int) -> dict[str, Any]:
    return {
        "metadata": {"name": f"{version}.{group}"},
        "spec": {
            "group": group,
            "version": version,
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "service": {"namespace": OURS, "name": SERVICE, "port": port},
        },
    }


@dataclass(frozen=True)
class World:
    client: KubeClient
    service: PlayedService
    mesh: Mesh
    plane: ControlPlane
    port: int

    async def replicas(self, name: str) -> int:
        return int((await self.client.get(DEPLOYMENTS, name, NAMESPACE))["spec"]["replicas"])

    async def status(self) -> dict[str, Any]:
        found = await self.client.get(INFERENCE_POLICIES, "llm", NAMESPACE)
        status: dict[str, Any] = found.get("status") or {}
        return status

    async def condition(self, kind: str) -> tuple[str, str]:
        for one in (await self.status()).get("conditions") or ():
            if one["type"] == kind:
                return one["status"], one["reason"]
        return "", ""


@asynccontextmanager
async def a_world(binaries: Binaries, folder: Path) -> AsyncIterator[World]:
    machine = next(spec for spec in plan_machines(4, seed=4) if spec.mode is NodeMode.GPULOOM)
    options = ControlPlaneOptions(controller_manager=True)
    (folder / "prometheus").mkdir()
    async with (
        open_control_plane(binaries, folder / "plane", CLOCK, options) as plane,
        plane.client() as client,
        played(client) as service,
        running_prometheus(
            require_prometheus() / "prometheus", folder / "prometheus", service.port, CLOCK
        ) as prometheus,
    ):
        for definition in definitions():
            await client.create(CRDS, definition)
        await create_namespace(client)
        for name in (OWN, PLAIN):
            service.waiting[name] = 10.0
            await client.create(DEPLOYMENTS, a_deployment(name))
        async with open_mesh(plane, [machine], CLOCK) as mesh:
            order = CertificateOrder(services=("autoscaler",), hosts=(f"{SERVICE}.{OURS}.svc",))
            issue_development_certificates(mesh.layout.certificates, order, CLOCK)
            settings = {
                "GPULOOM_PROMETHEUS_URL": prometheus.url,
                "GPULOOM_AUTOSCALER_INFERENCE_INTERVAL": "1s",
                "GPULOOM_AUTOSCALER_INFERENCE_FRESHNESS": "3s",
                "GPULOOM_AUTOSCALER_METRICS_API": "true",
                "GPULOOM_AUTOSCALER_METRICS_API_SERVICE": SERVICE,
                "GPULOOM_AUTOSCALER_LEASE_NAMESPACE": OURS,
            }
            await mesh.supervisor.start([[mesh.layout.service("autoscaler", settings)]])
            yield World(client, service, mesh, plane, mesh.layout.ports.services["autoscaler"]["metrics-api"])


async def test_replicas_follow_load_hold_without_metrics_and_an_hpa_scales_by_our_metrics(
    binaries: Binaries, tmp_path: Path
) -> None:
    async with a_world(binaries, tmp_path) as world:
        await world.client.create(INFERENCE_POLICIES, a_policy())
        await load_goes_up_and_replicas_follow(world)
        await metrics_vanish_and_replicas_hold(world)
        await a_second_autoscaler_is_named_and_not_fought(world)
        await an_ordinary_hpa_scales_by_our_metrics(world)
        await nobody_reads_them_without_rights(world)
        log = (world.mesh.layout.logs / "autoscaler.log").read_text(encoding="utf-8")

    assert "answered 403" not in log


async def load_goes_up_and_replicas_follow(world: World) -> None:
    async def settled() -> bool:
        return (await world.status()).get("desiredReplicas") == 1

    await until(settled)
    world.service.waiting[OWN] = 40.0

    async def four() -> bool:
        return len(await world.service.ready_pods(OWN)) == 4 and await world.replicas(OWN) == 4

    await until(four)
    status = await world.status()
    (reading,) = status["currentMetrics"]
    assert (reading["name"], reading["target"]) == ("request-queue-depth", 10)
    assert status["lastScaleTime"]


async def metrics_vanish_and_replicas_hold(world: World) -> None:
    world.service.waiting[OWN] = None

    async def missing() -> bool:
        return await world.condition("ScalingActive") == ("False", "MetricsMissing")

    await until(missing)
    await CLOCK.sleep(5.0)
    assert await world.replicas(OWN) == 4

    async def told() -> bool:
        events = (await world.client.list(EVENTS, Selection(NAMESPACE))).items
        reasons = {one["reason"] for one in events if one["involvedObject"]["name"] == "llm"}
        return {"ScaledUp", "MetricsMissing"} <= reasons

    await until(told)
    world.service.waiting[OWN] = 20.0

    async def two() -> bool:
        return await world.replicas(OWN) == 2

    await until(two)


async def a_second_autoscaler_is_named_and_not_fought(world: World) -> None:
    await world.client.create(HPAS, an_hpa("second", OWN, PODS_METRIC))

    async def named() -> bool:
        return await world.condition("AbleToScale") == ("False", "AnotherAutoscaler")

    await until(named)
    await world.client.delete(HPAS, "second", NAMESPACE)

    async def again() -> bool:
        return (await world.condition("AbleToScale"))[0] == "True"

    await until(again)


async def an_ordinary_hpa_scales_by_our_metrics(world: World) -> None:
    service = {
        "metadata": {"name": SERVICE, "namespace": OURS},
        "spec": {"type": "ExternalName", "externalName": "localhost"},
    }
    await world.client.create(SERVICES, service)
    await world.client.create(API_SERVICES, an_api_service("v1beta2", "custom.metrics.k8s.io", world.port))
    foreign = an_api_service("v1beta1", "external.metrics.k8s.io", world.port)
    foreign["spec"]["service"]["name"] = "keda-operator-metrics-apiserver"
    foreign["spec"]["caBundle"] = SOMEBODY
    await world.client.create(API_SERVICES, foreign)

    async def available() -> bool:
        served = await world.client.get(API_SERVICES, "v1beta2.custom.metrics.k8s.io")
        conditions = (served.get("status") or {}).get("conditions") or ()
        return any(one["type"] == "Available" and one["status"] == "True" for one in conditions)

    await until(available, within_s=120.0)
    await world.client.create(HPAS, an_hpa("plain", PLAIN, PODS_METRIC))
    world.service.waiting[PLAIN] = 30.0

    async def three() -> bool:
        return await world.replicas(PLAIN) == 3

    await until(three, within_s=120.0)
    untouched = await world.client.get(API_SERVICES, "v1beta1.external.metrics.k8s.io")
    assert untouched["spec"]["caBundle"] == SOMEBODY


async def nobody_reads_them_without_rights(world: World) -> None:
    url = f"https://{HOST}:{world.port}/apis/custom.metrics.k8s.io/v1beta2/namespaces/{NAMESPACE}"
    url += "/pods/*/requests_waiting"
    files = tls_files(world.mesh.layout.certificates, "cli")
    tls = ssl.create_default_context(cafile=files.ca_file)
    tls.verify_flags &= ~ssl.VERIFY_X509_STRICT
    token = (
        (await world.plane.service_account_kubeconfig(OURS, "gpuloom-webhook"))
        .with_name(f"{OURS}-gpuloom-webhook.token")
        .read_text()
    )
    async with aiohttp.ClientSession(headers={"X-Remote-User": "system:admin"}) as session:
        async with session.get(url, ssl=tls) as answer:
            assert answer.status == 401
        headers = {"Authorization": f"Bearer {token}"}
        async with session.get(url, ssl=tls, headers=headers) as answer:
            assert answer.status == 403
