"""The console's account on a real API server: it learns whose token somebody shows and where they may list
pods, and may do nothing else.
"""

from pathlib import Path

import pytest
import yaml

from gpuloom.errors import NotAllowedError
from gpuloom.kube.resources import NODES, PODS
from gpuloom.kube.reviews import AccessReviews, Right, TokenReviews
from gpuloom.runtime.clock import SystemClock
from tests.cluster.shared import SharedControlPlane, account_of

pytestmark = pytest.mark.real

CLOCK = SystemClock()


async def test_the_console_knows_users_and_their_namespaces_and_reads_nothing(
    shared_control_plane: SharedControlPlane,
) -> None:
    shared = shared_control_plane
    kubeconfig = await shared.plane.service_account_kubeconfig(*account_of("console"))
    reader = await shared.plane.service_account_kubeconfig(*account_of("cost-engine"))
    async with shared.client(kubeconfig) as client:
        tokens, rights = TokenReviews(client, CLOCK), AccessReviews(client, CLOCK)

        nobody = await tokens.user_of("forged")
        itself = await tokens.user_of(token_in(kubeconfig))
        cost_engine = await tokens.user_of(token_in(reader))

        assert nobody is None
        assert itself is not None
        assert cost_engine is not None
        namespace, name = account_of("cost-engine")
        assert cost_engine.name == f"system:serviceaccount:{namespace}:{name}"
        assert "system:serviceaccounts" in cost_engine.groups
        assert await rights.allows(cost_engine, Right("list", "pods"))
        assert await rights.allows(cost_engine, Right("list", "pods", namespace="default"))
        assert not await rights.allows(itself, Right("list", "pods", namespace="default"))
        for resource in (PODS, NODES):
            with pytest.raises(NotAllowedError):
                await client.list(resource)


def token_in(path: Path) -> str:
    user = yaml.safe_load(path.read_text(encoding="utf-8"))["users"][0]["user"]
    return str(user["token"]) if "token" in user else Path(user["tokenFile"]).read_text().strip()
