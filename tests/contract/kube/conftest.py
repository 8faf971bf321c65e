"""The APIs that every test of this folder runs against: the simulated one and a real API server."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

import pytest
import uvloop

from gpuloom.kube.access import KubeAccess
from gpuloom.kube.client import KubeClient
from gpuloom.runtime.clock import SystemClock
from gpuloom.sim.kubeapi import SimKubeApi
from tests.cluster.contract_api import real_api
from tests.cluster.shared import shared_control_plane

__all__ = ["client", "kube_api", "shared_control_plane"]

TOKEN = "contract-token"


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop that our processes run on."""
    return {"uvloop": uvloop.new_event_loop}


class KubeApiUnderTest(Protocol):
    @property
    def access(self) -> KubeAccess:
        """As a caller who may do everything."""

    def access_as(self, token: str) -> KubeAccess:
        """The same server, called with another token."""

    async def compact(self, resource_version: str) -> None:
        """Forget the history up to and including that version, and end the watches."""

    def disconnect_watches(self) -> None:
        """Break the connections of all watches."""


@dataclass(frozen=True)
class SimulatedApi:
    api: SimKubeApi

    @property
    def access(self) -> KubeAccess:
        return KubeAccess.with_token(self.api.url, TOKEN)

    def access_as(self, token: str) -> KubeAccess:
        return KubeAccess.with_token(self.api.url, token)

    async def compact(self, resource_version: str) -> None:
        self.api.expire_watches()

    def disconnect_watches(self) -> None:
        self.api.disconnect_watches()


@asynccontextmanager
async def simulated() -> AsyncIterator[KubeApiUnderTest]:
    async with SimKubeApi(clock=SystemClock(), token=TOKEN, bookmark_interval_s=0.05) as api:
        yield SimulatedApi(api)


def start(request: pytest.FixtureRequest) -> AbstractAsyncContextManager[KubeApiUnderTest]:
    if request.param == "simulated":
        return simulated()
    return real_api(request.getfixturevalue("shared_control_plane"))


@pytest.fixture(params=["simulated", pytest.param("real", marks=pytest.mark.real)])
async def kube_api(request: pytest.FixtureRequest) -> AsyncIterator[KubeApiUnderTest]:
    async with start(request) as api:
        yield api


@pytest.fixture
async def client(kube_api: KubeApiUnderTest) -> AsyncIterator[KubeClient]:
    async with KubeClient(kube_api.access, SystemClock()) as opened:
        yield opened
