"""One control plane for many tests, which leave it as they found it.

A conftest imports the fixture; it starts with the first test that asks for it.
"""

from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from gpuloom.kube.client import KubeClient
from gpuloom.runtime.clock import SystemClock
from tests.cluster.background import BackgroundLoop
from tests.cluster.binaries import require_binaries
from tests.cluster.control_plane import ControlPlane, open_control_plane

MANIFESTS = Path(__file__).parents[2] / "deploy" / "manifests"
NAMESPACE = "gpuloom-system"
AGENT_NAMESPACE = "gpuloom-system-agents"


def account_of(service: str) -> tuple[str, str]:
    """Namespace and name of a service's account, as the manifests have them."""
    return (AGENT_NAMESPACE if service == "node-agent" else NAMESPACE), f"gpuloom-{service}"


async def apply_rights(plane: ControlPlane) -> None:
    """The accounts and rules of the charts. Namespaces have no level: tests put pods of any kind there."""
    namespaces = plane.directory / "namespaces.yaml"
    named = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        for name in (NAMESPACE, AGENT_NAMESPACE)
    ]
    namespaces.write_text(yaml.safe_dump_all(named), encoding="utf-8")
    await plane.apply(namespaces)
    await plane.apply(MANIFESTS / "rbac.yaml")


@dataclass(frozen=True)
class SharedControlPlane:
    """Its processes belong to a loop of their own; clients belong to the test's."""

    plane: ControlPlane
    background: BackgroundLoop

    def client(self, kubeconfig: Path | None = None) -> KubeClient:
        return self.plane.client(kubeconfig)

    async def restart_api_server(self) -> None:
        await self.background.run_from_loop(self.plane.restart_api_server())


@pytest.fixture(scope="session")
def shared_control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedControlPlane]:
    """With the accounts and rules of the charts."""
    binaries = require_binaries()
    directory = tmp_path_factory.mktemp("control-plane")
    stack = AsyncExitStack()

    async def start() -> ControlPlane:
        plane = await stack.enter_async_context(open_control_plane(binaries, directory, SystemClock()))
        await apply_rights(plane)
        return plane

    with BackgroundLoop() as background:
        try:
            yield SharedControlPlane(background.run(start()), background)
        finally:
            background.run(stack.aclose())
