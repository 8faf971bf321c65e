"""Which settings each driver needs."""

from pathlib import Path

import pytest

from gpuloom.model.node import NodeMode
from gpuloom.runtime.config import ConfigError, load_config
from services.node_agent.config import KUBELET_SOCKET, AgentConfig, Driver

BASICS = {"GPULOOM_NODE_NAME": "n1", "GPULOOM_TLS_INSECURE": "true"}


def problems_of(**settings: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        load_config(AgentConfig, BASICS | settings)
    return caught.value.problems


def test_nvml_needs_the_nodes_mode_and_no_machine() -> None:
    config = load_config(
        AgentConfig,
        BASICS | {"GPULOOM_AGENT_DRIVER": "nvml", "GPULOOM_AGENT_MODE": "nvidia"},
    )

    assert (config.driver, config.mode, config.machine_dir) == (Driver.NVML, NodeMode.NVIDIA, None)
    assert config.kubelet_socket == KUBELET_SOCKET
    assert problems_of(GPULOOM_AGENT_DRIVER="nvml") == (
        "GPULOOM_AGENT_MODE is required by driver nvml: nvidia or gpuloom",
    )


def test_a_simulated_driver_needs_its_machine_which_knows_the_mode() -> None:
    machine = str(Path("machine"))

    assert problems_of(GPULOOM_AGENT_DRIVER="simulated") == (
        "GPULOOM_AGENT_MACHINE_DIR is required by driver simulated: the machine's directory",
    )
    assert problems_of(
        GPULOOM_AGENT_DRIVER="simulated", GPULOOM_AGENT_MACHINE_DIR=machine, GPULOOM_AGENT_MODE="gpuloom"
    ) == ("GPULOOM_AGENT_MODE is for driver nvml; a simulated machine says its mode itself",)


def test_a_node_is_in_one_of_two_modes() -> None:
    (problem,) = problems_of(GPULOOM_AGENT_DRIVER="nvml", GPULOOM_AGENT_MODE="unknown")

    assert problem.startswith("GPULOOM_AGENT_MODE must be one of nvidia, gpuloom")
