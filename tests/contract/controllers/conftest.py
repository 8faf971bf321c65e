"""The controllers that every test here runs against: the simulated ones and kube-controller-manager."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TypeVar

import pytest
import uvloop

from gpuloom.catalog.manifests import definitions, priority_classes
from gpuloom.kube.access import KubeAccess
from gpuloom.kube.client import KubeClient
from gpuloom.kube.listing import Selection
from gpuloom.kube.objects import JsonObject, key_of, metadata_of
from gpuloom.kube.resources import NAMESPACES, PODS
from gpuloom.runtime.clock import SystemClock
from gpuloom.sim.controllers.loop import ControllerLoop
from gpuloom.sim.kubeapi import SimKubeApi
from tests.cluster.background import BackgroundLoop
from tests.cluster.binaries import require_binaries
from tests.cluster.control_plane import ControlPlane, ControlPlaneOptions, open_control_plane
from tests.cluster.shared import MANIFESTS, account_of, apply_rights

TOKEN = "contract-token"
NAMESPACE_PREFIX = "controllers-"
Found = TypeVar("Found")


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop that our processes run on."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(scope="session")
def plane_with_controllers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    binaries = require_binaries()
    directory = tmp_path_factory.mktemp("controllers")
    stack = AsyncExitStack()
    options = ControlPlaneOptions(controller_manager=True)

    async def start() -> ControlPlane:
        plane = open_control_plane(binaries, directory, SystemClock(), options)
        opened = await stack.enter_async_context(plane)
        await opened.apply(MANIFESTS.parent / "crds", MANIFESTS.parent / "priority-classes.yaml")
        await apply_rights(opened)
        return opened

    with BackgroundLoop() as background:
        try:
            yield background.run(start())
        finally:
            background.run(stack.aclose())


@asynccontextmanager
async def simulated() -> AsyncIterator[KubeClient]:
    async with (
        SimKubeApi(
            clock=SystemClock(), token=TOKEN, preinstalled=(*definitions(), *priority_classes())
        ) as api,
        KubeClient(KubeAccess.with_token(api.url, TOKEN), SystemClock()) as client,
    ):
        controllers = asyncio.create_task(ControllerLoop(client, SystemClock()).run())
        try:
            yield client
        finally:
            controllers.cancel()
            await asyncio.gather(controllers, return_exceptions=True)


@pytest.fixture(params=["simulated", pytest.param("real", marks=pytest.mark.real)])
async def client(request: pytest.FixtureRequest) -> AsyncIterator[KubeClient]:
    if request.param == "simulated":
        async with simulated() as opened:
            yield opened
        return
    plane: ControlPlane = request.getfixturevalue("plane_with_controllers")
    async with plane.client() as opened:
        yield opened


class Workspace:
    """A namespace of a test's own, and the test as the kubelet of its pods. `account` is our controller's."""

    def __init__(self, client: KubeClient, account: KubeClient, namespace: str) -> None:
        self.client = client
        self.account = account
        self.namespace = namespace

    async def pods(self) -> list[JsonObject]:
        listing = await self.client.list(PODS, Selection(self.namespace))
        return sorted(listing.items, key=key_of)

    async def live_pods(self) -> list[JsonObject]:
        """Neither ended nor ending."""
        return [
            pod
            for pod in await self.pods()
            if pod["status"]["phase"] in ("Pending", "Running")
            and "deletionTimestamp" not in metadata_of(pod)
        ]

    async def until_live(self, count: int) -> list[JsonObject]:
        async def found() -> list[JsonObject] | None:
            live = await self.live_pods()
            return live if len(live) == count else None

        return await eventually(found)

    async def set_phase(self, pod: JsonObject, phase: str) -> None:
        ready = "True" if phase == "Running" else "False"
        conditions = [
            {"type": "Ready", "status": ready, "lastTransitionTime": metadata_of(pod)["creationTimestamp"]}
        ]
        status = {"phase": phase, "conditions": conditions}
        await self.client.patch_status(PODS, key_of(pod)[1], self.namespace, {"status": status})

    async def run_pods(self) -> None:
        for pod in await self.live_pods():
            if pod["status"]["phase"] == "Pending":
                await self.set_phase(pod, "Running")


@pytest.fixture
async def account(request: pytest.FixtureRequest, client: KubeClient) -> AsyncIterator[KubeClient]:
    """Beside the real API server the service account, which may do no more than its chart says."""
    if request.node.callspec.params["client"] == "simulated":
        yield client
        return
    plane: ControlPlane = request.getfixturevalue("plane_with_controllers")
    async with plane.client(await plane.service_account_kubeconfig(*account_of("controller"))) as opened:
        yield opened


@pytest.fixture
async def workspace(client: KubeClient, account: KubeClient) -> Workspace:
    created = await client.create(NAMESPACES, {"metadata": {"generateName": NAMESPACE_PREFIX}})
    return Workspace(client, account, metadata_of(created)["name"])


async def eventually(find: Callable[[], Awaitable[Found | None]], timeout_s: float = 60.0) -> Found:
    """The first answer that is not None (or False); controllers act in their own time."""
    async with asyncio.timeout(timeout_s):
        while True:
            found = await find()
            if found is not None and found is not False:
                return found
            await asyncio.sleep(0.05)
