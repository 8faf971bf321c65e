"""How the way of delivery is found out, and who is asked for holders under it."""

from pathlib import Path

import pytest

from gpuloom.errors import NotAllowedError, NotFoundError, UnavailableError
from gpuloom.kube.objects import JsonObject
from gpuloom.kube.resources import Resource
from gpuloom.model.node import Delivery
from gpuloom.runtime.clock import FakeClock
from services.node_agent.delivery.chooser import Chooser, ChooserParts, ChosenRuntime
from services.node_agent.delivery.config import DeliveryWay
from services.node_agent.delivery.runtime_class import RuntimeClassReader
from tests.unit.node_agent.builders import FakeMachine, a_holder
from tests.unit.node_agent.delivery.builders import a_device, a_pod, an_allocation, an_informer, known_pods


class Api:
    """Has one runtime class, of this handler; None: it has none."""

    def __init__(self, handler: str | None = "nvidia") -> None:
        self.handler = handler
        self.failure: Exception | None = None
        self.asked: list[str] = []

    async def get(self, resource: Resource, name: str) -> JsonObject:
        self.asked.append(resource.object_path(name))
        if self.failure is not None:
            raise self.failure
        if self.handler is None:
            raise NotFoundError("no such runtime class")
        return {"metadata": {"name": name}, "handler": self.handler}


class Watched:
    """A chooser on a node whose socket is `socket`, and the ways that it told."""

    def __init__(self, folder: Path, api: Api | None, way: DeliveryWay = DeliveryWay.AUTO) -> None:
        self.clock = FakeClock()
        self.socket = folder / "nri.sock"
        self.told: list[Delivery] = []
        reader = RuntimeClassReader(api, "nvidia", self.clock)
        parts = ChooserParts(way, self.socket, self.clock, reader, self.told.append)
        self.chooser = Chooser(parts)

    async def after(self, delay_s: float) -> Delivery:
        await self.clock.advance(delay_s)
        await self.chooser.look()
        return self.chooser.delivery


async def test_a_node_without_a_socket_turns_to_the_environment(tmp_path: Path) -> None:
    api = Api()
    node = Watched(tmp_path, api)

    ways = [await node.after(0), await node.after(29), await node.after(1)]

    assert ways == [Delivery.NONE, Delivery.NONE, Delivery.ENV]
    assert node.told == [Delivery.NONE, Delivery.ENV]
    assert api.asked == ["/apis/node.k8s.io/v1/runtimeclasses/nvidia"]


@pytest.mark.parametrize("handler", [None, "runc", "", "nvidiaish"])
async def test_without_nvidias_runtime_class_nothing_is_delivered(
    tmp_path: Path, handler: str | None
) -> None:
    node = Watched(tmp_path, Api(handler))
    await node.after(0)

    assert await node.after(31) is Delivery.NONE


@pytest.mark.parametrize("handler", ["nvidia", "nvidia-legacy"])
async def test_a_runtime_class_that_comes_or_goes_is_noticed_within_a_minute(
    tmp_path: Path, handler: str
) -> None:
    api = Api(None)
    node = Watched(tmp_path, api)
    await node.after(0)
    before = await node.after(31)

    api.handler = handler
    soon, later = await node.after(30), await node.after(30)
    api.handler = None
    gone = await node.after(60)

    assert (before, soon, later, gone) == (Delivery.NONE, Delivery.NONE, Delivery.ENV, Delivery.NONE)
    assert len(api.asked) == 3


@pytest.mark.parametrize("failure", [UnavailableError("silent"), NotAllowedError("403")])
async def test_an_api_that_does_not_answer_changes_nothing(tmp_path: Path, failure: Exception) -> None:
    api = Api()
    api.failure = failure
    node = Watched(tmp_path, api)
    await node.after(0)
    first = await node.after(31)

    api.failure = None
    found = await node.after(5)
    api.failure = failure
    kept = await node.after(60)

    assert (first, found, kept) == (Delivery.NONE, Delivery.ENV, Delivery.ENV)


async def test_a_socket_is_waited_for_and_a_runtime_that_connects_later_wins(tmp_path: Path) -> None:
    node = Watched(tmp_path, Api())
    await node.after(0)
    by_env = await node.after(31)

    node.socket.touch()
    waiting = await node.after(1)
    node.chooser.set_connected(True)
    connected = node.chooser.delivery
    node.socket.unlink()
    node.chooser.set_connected(False)
    away = await node.after(3600)

    assert (by_env, waiting, connected, away) == (
        Delivery.ENV,
        Delivery.NONE,
        Delivery.NRI,
        Delivery.NONE,
    )


async def test_where_there_is_a_socket_the_cluster_is_never_asked(tmp_path: Path) -> None:
    api = Api()
    node = Watched(tmp_path, api)
    node.socket.touch()

    ways = [await node.after(60) for _ in range(3)]

    assert ways == [Delivery.NONE] * 3
    assert api.asked == []


async def test_nobody_to_ask_means_no_environment(tmp_path: Path) -> None:
    node = Watched(tmp_path, None)
    await node.after(0)

    assert await node.after(31) is Delivery.NONE


async def test_holders_are_asked_of_who_knows_them(tmp_path: Path) -> None:
    plugin = FakeMachine(runtime_holders=(a_holder("by-nri"),))
    by_env = a_pod("by-env", an_allocation(a_device("GPU-b"), pod="by-env"))
    both = a_pod("by-nri", an_allocation(pod="by-nri"))
    node = Watched(tmp_path, Api(), DeliveryWay.AUTO)
    async with an_informer(by_env, both) as informer:
        runtime = ChosenRuntime(node.chooser, plugin, known_pods(informer))
        await node.after(0)
        await node.after(31)
        under_env = await runtime.holders()
        node.chooser.set_connected(True)
        under_nri = await runtime.holders()
        plugin.runtime_problem = "not connected"
        node.chooser.set_connected(False)
        with pytest.raises(UnavailableError, match="not connected"):
            await runtime.holders()

    assert {(holder.pod.name, holder.source.value) for holder in under_env} == {
        ("by-env", "environment"),
        ("by-nri", "environment"),
    }
    assert {(holder.pod.name, holder.source.value) for holder in under_nri} == {
        ("by-env", "environment"),
        ("by-nri", "runtime"),
    }
