"""Our admission port beside the simulated and the real API server: TLS, rewriting, absence, rotation."""

import asyncio
import itertools
import random
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from gpuloom.kube.client import DeleteOptions, KubeClient
from gpuloom.kube.objects import JsonObject
from gpuloom.kube.resources import MUTATING_WEBHOOKS, PODS, VALIDATING_WEBHOOKS
from gpuloom.rpc.dev_ca import CertificateOrder, issue_development_certificates, tls_files
from gpuloom.rpc.environment import RpcEnvironment
from gpuloom.rpc.tls import server_ssl_context
from gpuloom.runtime.clock import SystemClock
from gpuloom.sim.processes.ports import HOST, free_ports
from services.webhook.adapters.kubernetes import CaBundle
from services.webhook.admission import GUARD, MUTATE, Admission, AdmissionSettings
from services.webhook.core.pods import Advice, Offers, PodPolicy, Surroundings
from services.webhook.metrics import WebhookMetrics
from services.webhook.server import AdmissionPort
from tests.contract.kube.builders import NAMESPACE, a_pod, ensure_namespace

CLOCK = SystemClock()
NAME = "own-webhook"
NUMBERS = itertools.count()


class SharingCluster:
    """Every pod may become a slice."""

    def surroundings(self, pod: object, namespace: str) -> Surroundings:
        offers = Offers(shares=True, mig_profiles=frozenset({"1g.5gb"}))
        return Surroundings({"gpu-autoscaler.io/sharing-enabled": "true"}, offers)

    async def advice(self, pod: object, namespace: str, *, timeout_s: float) -> Advice:
        return Advice(utilization=0.1, mig_profile="1g.5gb")


class Place:
    """Certificates in a folder, an address that stays, and configurations that point to it."""

    def __init__(self, client: KubeClient, folder: Path) -> None:
        self.client = client
        self.folder = folder
        (self.port,) = free_ports(1, random.Random())
        self.registry = CollectorRegistry()
        self.metrics = WebhookMetrics(self.registry)

    def issue(self) -> None:
        """Certificates of a new authority, over the old ones."""
        made = self.folder / f"made-{next(NUMBERS)}"
        issue_development_certificates(made, CertificateOrder(services=("webhook",)), CLOCK)
        self.folder.mkdir(exist_ok=True)
        for file in made.iterdir():
            shutil.copy(file, self.folder / file.name)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        rpc = RpcEnvironment(tls_files(self.folder, "webhook"), CollectorRegistry(), CLOCK)
        assert rpc.certificates is not None
        certificates = rpc.certificates
        settings = AdmissionSettings(PodPolicy(), 0.03, False, frozenset(), frozenset())
        handlers = Admission(SharingCluster(), SharingCluster(), settings).handlers
        tls = server_ssl_context(certificates, require_client_certificate=False)
        bundle = CaBundle(
            self.client, NAME, lambda: certificates.current().trusted_ca, CLOCK, self.metrics, every_s=0.1
        )
        async with AdmissionPort(handlers, HOST, self.port, tls, CLOCK, self.metrics):
            keeping = asyncio.create_task(bundle.run())
            try:
                yield
            finally:
                keeping.cancel()
                await asyncio.gather(keeping, return_exceptions=True)

    def webhook(self, path: str, failure_policy: str) -> JsonObject:
        rule = {
            "operations": ["CREATE", "UPDATE"],
            "apiGroups": [""],
            "apiVersions": ["v1"],
            "resources": ["pods"],
        }
        return {
            "name": f"{path.strip('/')}.gpuloom.dev",
            "clientConfig": {"url": f"https://{HOST}:{self.port}{path}"},
            "rules": [rule],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": NAMESPACE}},
            "failurePolicy": failure_policy,
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            "timeoutSeconds": 5,
        }

    async def admitted(self) -> JsonObject:
        pod = a_pod(f"gpu-{next(NUMBERS)}")
        pod["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
        created = await self.client.create(PODS, pod)
        options = DeleteOptions(grace_period_s=0)
        await self.client.delete(PODS, created["metadata"]["name"], NAMESPACE, options)
        return created

    async def until_rewritten(self) -> JsonObject:
        async with asyncio.timeout(30.0):
            while True:
                pod = await self.admitted()
                if "labels" in pod["metadata"]:
                    return pod
                await asyncio.sleep(0.1)


@pytest.fixture
async def place(client: KubeClient, tmp_path: Path) -> AsyncIterator[Place]:
    await ensure_namespace(client)
    opened = Place(client, tmp_path / "certificates")
    opened.issue()
    made = (
        (MUTATING_WEBHOOKS, opened.webhook(MUTATE, "Ignore")),
        (VALIDATING_WEBHOOKS, opened.webhook(GUARD, "Ignore")),
    )
    for resource, webhook in made:
        await client.create(resource, {"metadata": {"name": NAME}, "webhooks": [webhook]})
    yield opened
    for resource, _ in made:
        await client.delete(resource, NAME)


async def test_pods_are_rewritten_over_tls_and_get_in_while_the_webhook_is_away(place: Place) -> None:
    async with place.serving():
        rewritten = await place.until_rewritten()
    absent = await place.admitted()

    container = rewritten["spec"]["containers"][0]
    assert container["resources"]["limits"] == {"gpuloom.dev/gpu-milli": "125"}
    assert rewritten["metadata"]["annotations"] == {
        "gpuloom.dev/mig-profile": "1g.5gb",
        "gpu-autoscaler.io/optimized": "true",
    }
    assert rewritten["metadata"]["labels"] == {"gpu-autoscaler.io/optimized": "true"}
    assert absent["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "1"}


async def test_certificates_of_a_new_authority_are_taken_up_without_a_restart(place: Place) -> None:
    async with place.serving():
        await place.until_rewritten()
        before = await place.client.get(MUTATING_WEBHOOKS, NAME)
        place.issue()

        async with asyncio.timeout(30.0):
            after = before
            while after["webhooks"] == before["webhooks"]:
                await asyncio.sleep(0.1)
                after = await place.client.get(MUTATING_WEBHOOKS, NAME)

        assert await place.until_rewritten()
