"""Who follows the ledger makes the extender's own views, whatever happens to pods, nodes and devices."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest

from gpuloom.clients.ledger import LedgerMirror
from gpuloom.kube.cache import Change
from gpuloom.rpc.server import RpcServer
from gpuloom.runtime.clock import SystemClock
from gpuloom.v1.scheduler_extender_pb2_grpc import add_SchedulerExtenderServiceServicer_to_server
from services.scheduler_extender.inquiries.decisions import DecisionLog
from services.scheduler_extender.server import SERVICE, SchedulerExtenderServer, callers_of
from services.scheduler_extender.state.cluster import ClusterState
from services.scheduler_extender.state.ledger_feed import NODES_A_MESSAGE, LedgerFeed
from tests.mesh.rpc.builders import a_channel, an_environment
from tests.mesh.waiting import running, until
from tests.unit.scheduler_extender.builders import a_gpu, a_node, some_facts
from tests.unit.scheduler_extender.inquiry_setup import InquiryDesk
from tests.unit.scheduler_extender.model.game import Game


class Extender:
    """Serves the ledger of this state. `unready` is why it does not lead."""

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self.unready = ""
        self.feed = LedgerFeed(state.views, lambda: self.unready, SystemClock())

    @asynccontextmanager
    async def mirrored(self) -> AsyncIterator[LedgerMirror]:
        decisions, desk = DecisionLog(SystemClock()), InquiryDesk()
        servicer = SchedulerExtenderServer(self.state.ledger, self.feed, decisions, desk.inquiries)
        server = RpcServer(an_environment(None), "127.0.0.1", 0)
        server.add(servicer, add_SchedulerExtenderServiceServicer_to_server, SERVICE, callers_of(SERVICE))
        async with server, a_channel(an_environment(None), server) as channel:
            mirror = LedgerMirror(channel, SystemClock())
            async with running(mirror.run):
                yield mirror

    def differs_from(self, mirror: LedgerMirror) -> str:
        """The first node that the mirror shows otherwise; empty if there is none."""
        names = self.state.views.node_names()
        if names != sorted(mirror.nodes):
            return f"{names} are there, and {sorted(mirror.nodes)} are mirrored"
        for name in names:
            own = self.state.views.view(name)
            read = mirror.view(name, self.state.ledger.facts(name))
            if own != read or self.state.views.node_ledger(name) != mirror.nodes[name]:
                return f"{name} is {own}, and mirrored {read}"
        return ""


@pytest.mark.parametrize("theme", ["binds", "ends", "reports", "nodes", "modes"])
async def test_a_mirror_follows_the_ledger_through_everything(theme: str) -> None:
    chance = Random(theme)
    game = Game(chance.randrange, theme)
    extender = Extender(game.world.replica.state)

    async with extender.mirrored() as mirror:
        await mirror.wait_synced()
        for _ in range(8):
            for _ in range(12):
                game.play(chance.choice(game.choices()), chance.randrange)
            if game.world.replica.state is not extender.state:
                break  # A game may replace all extenders; their successor has a stream of its own.
            await until(lambda: not extender.differs_from(mirror) or mirror.facts_stale)

        assert mirror.age_s() < 15


async def test_a_large_ledger_comes_in_parts_and_goes_on_from_there() -> None:
    extender = Extender(a_state(3 * NODES_A_MESSAGE + 1))

    async with extender.mirrored() as mirror:
        await mirror.wait_synced()
        assert not extender.differs_from(mirror)

        extender.state.observe_node(Change(a_node("n7"), None))
        extender.state.observe_node(Change(None, a_node("n7", "uid-another")))
        extender.state.observe_node(Change(a_node("n8"), None))
        extender.state.views.refresh(1000)
        await until(lambda: not extender.differs_from(mirror))

        assert mirror.nodes["n7"].node_uid == "uid-another"


async def test_a_reader_that_is_far_behind_is_told_each_node_once() -> None:
    state = a_state(3)
    feed = LedgerFeed(state.views, lambda: "", SystemClock())
    messages = feed.messages(heartbeat_s=60.0)
    full = await anext(messages)

    for number in range(1000):
        facts = some_facts("n1", a_gpu("GPU-n1", memory_mib=40_000 + number))
        state.observe_facts("uid-n1", facts)
        state.views.refresh(10)
    delta = await anext(messages)

    assert [node.node_name for node in full.full.nodes] == ["n0", "n1", "n2"]
    assert [node.node_name for node in delta.delta.nodes] == ["n1"]
    assert (delta.version.after, delta.version.number) == (full.version.number, full.version.number + 1000)
    await messages.aclose()


async def test_a_replica_that_does_not_lead_is_not_followed() -> None:
    extender = Extender(a_state(2))
    extender.unready = "standby; leader is another"

    async with extender.mirrored() as mirror:
        await asyncio.sleep(0.3)
        assert not mirror.synced

        extender.unready = ""
        await mirror.wait_synced()
        extender.unready = "the lease has run out"
        extender.state.observe_node(Change(None, a_node("late")))
        extender.state.views.refresh(10)
        await asyncio.sleep(0.3)

        assert "late" not in mirror.nodes


def a_state(nodes: int) -> ClusterState:
    state = ClusterState(InquiryDesk().state.ledger, lambda: False, SystemClock())
    for number in range(nodes):
        name = f"n{number}"
        state.observe_node(Change(None, a_node(name)))
        state.observe_facts(f"uid-{name}", some_facts(name, a_gpu(f"GPU-{name}")))
    state.views.refresh(10_000)
    return state
