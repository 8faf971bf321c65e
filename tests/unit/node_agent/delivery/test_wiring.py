"""Which way an agent delivers, and what it says of it."""

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from gpuloom.errors import UnavailableError
from gpuloom.model.node import Delivery, HolderSource, NodeMode
from gpuloom.runtime.app import App
from gpuloom.runtime.clock import FakeClock
from gpuloom.runtime.config import load_config
from services.node_agent.delivery.config import DeliveryConfig
from services.node_agent.delivery.core.handlers import HandlerRules
from services.node_agent.delivery.known_pods import Cluster
from services.node_agent.delivery.wiring import start_delivery
from services.node_agent.node import Node
from tests.unit.node_agent.builders import FakeMachine, a_holder, a_start
from tests.unit.node_agent.delivery.builders import a_pod, an_allocation, an_informer
from tests.unit.node_agent.delivery.test_chooser import Api


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


def test_nvidias_handlers_are_refused_by_default_but_to_the_agents_own_namespace() -> None:
    usual = load_config(DeliveryConfig, {}).handler_rules()
    named = {
        "GPULOOM_POD_NAMESPACE": "ours",
        "GPULOOM_AGENT_RUNTIME_HANDLERS_REFUSED": "gpu-runtime",
        "GPULOOM_AGENT_RUNTIME_HANDLERS_ALLOWED": "gpu-operator,team/exporter",
    }
    set_up = load_config(DeliveryConfig, named).handler_rules()
    off = load_config(DeliveryConfig, {"GPULOOM_AGENT_RUNTIME_HANDLERS_REFUSED": "none"}).handler_rules()

    assert usual.allowed == {"gpuloom-system"}
    assert usual.refused == {"nvidia", "nvidia-cdi", "nvidia-legacy", "nvidia-experimental"}
    assert set_up == HandlerRules(
        frozenset({"gpu-runtime"}), frozenset({"ours", "gpu-operator", "team/exporter"})
    )
    assert off.refused == frozenset()


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
    assert set(app.loops) - {"delivery way n1"} == {"cdi n1", "nri n1"}
    assert ("delivery way n1" in app.loops) == (way == "auto")
    assert not node.looked_at
    with pytest.raises(UnavailableError, match="has not said yet what runs"):
        await runtime.holders()


async def test_by_environment_holders_are_pods_and_no_runtime_is_connected() -> None:
    machine, node, app = FakeMachine(), a_node(), an_app()
    pod = a_pod("train", an_allocation(node_uid=machine.node_uid()))
    async with an_informer(pod) as informer:
        cluster = Cluster(informer, Api())

        runtime = await start_delivery(app, config("env"), node, machine, None, cluster)
        holders = await runtime.holders()
        machine.unsynced = "pods are not listed yet"
        with pytest.raises(UnavailableError, match="not listed yet"):
            await runtime.holders()

    assert [(holder.pod.name, holder.source) for holder in holders] == [("train", HolderSource.ENVIRONMENT)]
    assert (node.state.delivery, app.loops) == (Delivery.ENV, {})
    assert app.registry.get_sample_value("gpuloom_node_agent_delivery_way", {"way": "env"}) == 1


async def test_the_environment_without_word_of_pods_knows_nobody() -> None:
    machine, node, app = FakeMachine(), a_node(), an_app()

    runtime = await start_delivery(app, config("env"), node, machine)

    with pytest.raises(UnavailableError, match="pods of this node are not known"):
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
