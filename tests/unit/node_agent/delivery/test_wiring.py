"""Which way an agent delivers, and what it says of it."""

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from gpuloom.errors import UnavailableError
from gpuloom.model.node import Delivery, NodeMode
from gpuloom.runtime.app import App
from gpuloom.runtime.clock import FakeClock
from gpuloom.runtime.config import load_config
from services.node_agent.delivery.config import DeliveryConfig
from services.node_agent.delivery.wiring import start_delivery
from services.node_agent.node import Node
from tests.unit.node_agent.builders import FakeMachine, a_holder, a_start


def an_app() -> App:
    return App("node_agent", FakeClock(), CollectorRegistry())


def a_node(mode: NodeMode = NodeMode.GPULOOM) -> Node:
    return Node(a_start(mode), FakeClock(), 10.0)


def config(way: str) -> DeliveryConfig:
    return load_config(DeliveryConfig, {"GPULOOM_AGENT_DELIVERY": way})


def test_settings_have_the_usual_places_as_defaults() -> None:
    settings = load_config(DeliveryConfig, {"GPULOOM_AGENT_CDI_DIRS": "/a,/b"})

    assert settings.nri_socket == Path("/var/run/nri/nri.sock")
    assert settings.cdi_folders == (Path("/a"), Path("/b"))


async def test_a_simulated_machine_delivers_by_itself() -> None:
    machine, node, app = FakeMachine(runtime_holders=(a_holder(),)), a_node(), an_app()

    runtime = await start_delivery(app, config("auto"), node, machine, machine)

    assert await runtime.holders() == (a_holder(),)
    assert (node.state.delivery, app.loops) == (Delivery.NRI, {})


@pytest.mark.parametrize("way", ["nri", "auto"])
async def test_a_real_node_delivers_nothing_until_the_runtime_is_connected(way: str) -> None:
    machine, node, app = FakeMachine(), a_node(), an_app()

    runtime = await start_delivery(app, config(way), node, machine, machine if way == "nri" else None)

    assert node.state.delivery is Delivery.NONE
    assert set(app.loops) == {"cdi n1", "nri n1"}
    assert not node.looked_at
    with pytest.raises(UnavailableError, match="has not said yet what runs"):
        await runtime.holders()


async def test_switched_off_means_that_nothing_is_delivered_and_nobody_is_known() -> None:
    machine, node, app = FakeMachine(), a_node(), an_app()

    runtime = await start_delivery(app, config("off"), node, machine, machine)

    assert (node.state.delivery, app.loops) == (Delivery.NONE, {})
    with pytest.raises(UnavailableError, match="switched off"):
        await runtime.holders()


async def test_where_a_device_plugin_delivers_we_do_not() -> None:
    machine, node, app = FakeMachine(), a_node(NodeMode.NVIDIA), an_app()

    await start_delivery(app, config("nri"), node, machine)

    assert (node.state.delivery, app.loops) == (Delivery.DEVICE_PLUGIN, {})
