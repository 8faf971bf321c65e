"""The APIs that every test of this folder runs against, both with our definitions installed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from gpuloom.errors import NotFoundError
from gpuloom.kube.access import KubeAccess, access_from_kubeconfig
from gpuloom.kube.client import KubeClient
from gpuloom.kube.objects import key_of
from gpuloom.runtime.clock import SystemClock
from gpuloom.sim.kubeapi import SimKubeApi
from tests.cluster.contract_api import CRDS
from tests.cluster.shared import SharedControlPlane, shared_control_plane
from tests.contract.crds.api import Api, open_api
from tests.contract.crds.manifests import DEFINITIONS, RESOURCES

__all__ = ["api", "shared_control_plane"]


@asynccontextmanager
async def simulated() -> AsyncIterator[Api]:
    async with (
        SimKubeApi(preinstalled=DEFINITIONS.values()) as server,
        open_api(KubeAccess(server.url)) as api,
    ):
        yield api


@asynccontextmanager
async def real(shared: SharedControlPlane) -> AsyncIterator[Api]:
    """Definitions stay for the next test, because it takes a while until they are served; objects go."""
    async with shared.client() as client:
        await _install(client)
    access = access_from_kubeconfig(
        [shared.plane.kubeconfig_for("crds", ["system:masters"])], None, SystemClock()
    )
    async with open_api(access) as api:
        try:
            yield api
        finally:
            for resource in RESOURCES.values():
                await api.delete_all(resource)


async def _install(client: KubeClient) -> None:
    present = {key_of(item)[1] for item in (await client.list(CRDS)).items}
    missing = {kind for kind, one in DEFINITIONS.items() if one["metadata"]["name"] not in present}
    for kind in missing:
        await client.create(CRDS, DEFINITIONS[kind])
    async with asyncio.timeout(30.0):
        for kind in missing:
            await _until_served(client, kind)


async def _until_served(client: KubeClient, kind: str) -> None:
    while True:
        try:
            await client.list(RESOURCES[kind])
        except NotFoundError:
            await asyncio.sleep(0.05)
        else:
            return


def start(request: pytest.FixtureRequest) -> AbstractAsyncContextManager[Api]:
    if request.param == "simulated":
        return simulated()
    return real(request.getfixturevalue("shared_control_plane"))


@pytest.fixture(params=["simulated", pytest.param("real", marks=pytest.mark.real)])
async def api(request: pytest.FixtureRequest) -> AsyncIterator[Api]:
    async with start(request) as opened:
        yield opened
