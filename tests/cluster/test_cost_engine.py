"""The cost engine on a real API server, under its own account: it sees nodes, pods and budgets, writes a
budget's status and an Event, knows whose token a caller shows, and may do nothing else.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry

from gpuloom.catalog.manifests import definitions
from gpuloom.errors import ConflictError, NotAllowedError, NotFoundError
from gpuloom.kube.client import KubeClient
from gpuloom.kube.events import EventRecorder
from gpuloom.kube.informer import Informer
from gpuloom.kube.resources import COST_BUDGETS, EVENTS, NODES, PODS, Resource
from gpuloom.kube.reviews import TokenReviews
from gpuloom.runtime.clock import SystemClock, deadline
from gpuloom.store.database import Database
from gpuloom.store.settings import StoreConfig, database_url
from services.cost_engine.alerts.budgets import Budgets, BudgetWriter
from services.cost_engine.alerts.channels import ConfiguredChannels
from services.cost_engine.api.rules import TeamRules
from services.cost_engine.config import AlertsConfig
from services.cost_engine.core.objects import POOL_LABELS, SliceRule
from services.cost_engine.core.prices import Price, Source
from services.cost_engine.core.tracking import Tracker
from services.cost_engine.ingest.consumer import now_ns
from services.cost_engine.ingest.facts import FactWriter, Sources
from services.cost_engine.metrics import CostMetrics
from services.cost_engine.store.store import CostStore
from tests.cluster.fake_nodes import FakeNode, create_nodes
from tests.cluster.shared import SharedControlPlane, account_of

pytestmark = pytest.mark.real

CLOCK = SystemClock()
DEFINITIONS = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
)
BUDGET = {"metadata": {"name": "everything"}, "spec": {"monthlyLimit": 0.000001, "period": "day"}}


async def eventually(condition: Callable[[], Awaitable[object]]) -> object:
    async with deadline(CLOCK, 120.0):
        while True:
            try:
                if found := await condition():
                    return found
            except (NotFoundError, ConflictError):
                pass
            await CLOCK.sleep(0.2)


async def a_budget(admin: KubeClient) -> None:
    for definition in definitions():
        try:
            await admin.create(DEFINITIONS, definition)
        except ConflictError:
            pass

    async def created() -> bool:
        return bool(await admin.create(COST_BUDGETS, BUDGET))

    await eventually(created)


async def test_the_engine_works_with_its_account_and_reaches_no_further(
    shared_control_plane: SharedControlPlane, tmp_path: Path
) -> None:
    shared = shared_control_plane
    kubeconfig = await shared.plane.service_account_kubeconfig(*account_of("cost-engine"))
    config = StoreConfig(url=database_url(f"sqlite:///{tmp_path}/cost.db"), threads=2, timeout_s=10.0)
    async with (
        shared.client() as admin,
        shared.client(kubeconfig) as client,
        Database(config, CLOCK) as database,
    ):
        store = CostStore(database)
        await store.open()
        epoch = await store.epoch_ns(now_ns(CLOCK))
        price = Price("", "", "", "", "on-demand", 36 * 10**9, 0, None, Source.CUSTOM)
        await store.replace_prices(Source.CUSTOM, [price], epoch)
        await a_budget(admin)
        await create_nodes(admin, [FakeNode("cost-node", {"nvidia.com/gpu": "8"})])
        sources, observed = Sources(client, CLOCK), Informer(client, COST_BUDGETS, CLOCK)
        recorder = EventRecorder(client, "gpuloom-cost-engine", "test", CLOCK)
        budgets = Budgets(
            store,
            observed,
            TeamRules(None, CLOCK),
            (BudgetWriter(client, recorder), ConfiguredChannels(AlertsConfig())),
            CLOCK,
            CostMetrics(CollectorRegistry()),
        )
        facts = FactWriter(sources, store, Tracker(epoch, POOL_LABELS, SliceRule.COMPUTE), CLOCK)
        loops = (sources.nodes.run, sources.pods.run, sources.namespaces.run, observed.run, recorder.run)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_running(loop)) for loop in loops]
            await facts.start()
            await observed.wait_synced()

            async def spent() -> object:
                await facts.flush()
                await store.compute(await store.book(), now_ns(CLOCK))
                await budgets.look()
                found = await admin.get(COST_BUDGETS, "everything")
                return (found.get("status") or {}).get("state") == "Exceeded"

            async def told() -> object:
                listing = await admin.list(EVENTS)
                return [event for event in listing.items if event["reason"] == "BudgetReached"]

            await eventually(spent)
            await eventually(told)
            for task in tasks:
                task.cancel()
        tokens = TokenReviews(client, CLOCK)
        token = kubeconfig_token(kubeconfig)
        assert await tokens.accepts(token)
        assert not await tokens.accepts("forged")
        with pytest.raises(NotAllowedError):
            await client.patch(NODES, "cost-node", None, {"metadata": {"labels": {"a": "b"}}})
        with pytest.raises(NotAllowedError):
            await client.patch(COST_BUDGETS, "everything", None, {"spec": {"monthlyLimit": 1}})
        with pytest.raises(NotAllowedError):
            await client.delete(PODS, "p", "default")
        await admin.delete(COST_BUDGETS, "everything")
        await admin.delete(NODES, "cost-node")


def kubeconfig_token(path: Path) -> str:
    user = yaml.safe_load(path.read_text())["users"][0]["user"]
    return str(user["token"]) if "token" in user else Path(user["tokenFile"]).read_text().strip()


async def _running(loop: Callable[[], Awaitable[None]]) -> None:
    await loop()
