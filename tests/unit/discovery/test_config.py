from pathlib import Path

import pytest

from gpuloom.runtime.config import ConfigError, load_config
from services.discovery.agents import AgentSource
from services.discovery.config import DiscoveryConfig


def loaded(**settings: str) -> DiscoveryConfig:
    given = {f"GPULOOM_{name}": value for name, value in settings.items()}
    return load_config(DiscoveryConfig, {"GPULOOM_TLS_INSECURE": "true", **given})


def test_agents_are_found_by_their_pods_unless_there_is_a_file(tmp_path: Path) -> None:
    path = tmp_path / "agents.json"
    path.write_text("{}")

    assert loaded().agent_source is AgentSource.PODS
    assert loaded(AGENTS_FILE=str(path)).agent_source is AgentSource.FILE
    assert loaded(AGENTS_FILE=str(path), DISCOVERY_AGENTS="nodes").agent_source is AgentSource.NODES


def test_a_file_that_is_not_named_is_a_problem() -> None:
    with pytest.raises(ConfigError, match="needs GPULOOM_AGENTS_FILE"):
        loaded(DISCOVERY_AGENTS="file")


def test_the_labels_of_agents_are_those_that_ship_unless_set() -> None:
    assert loaded().agent_labels == {
        "app.kubernetes.io/name": "node-agent",
        "app.kubernetes.io/part-of": "gpuloom",
    }
    assert loaded(DISCOVERY_AGENT_SELECTOR="a=b, c=d").agent_labels == {"a": "b", "c": "d"}


@pytest.mark.parametrize("selector", ["a", "a=", "=b", "a!=b", "a==b", "a in (b)"])
def test_a_selector_that_is_no_list_of_labels_is_refused(selector: str) -> None:
    with pytest.raises(ConfigError, match="name=value"):
        loaded(DISCOVERY_AGENT_SELECTOR=selector)


def test_an_agent_may_miss_one_heartbeat_within_its_ttl() -> None:
    with pytest.raises(ConfigError, match="AGENT_TTL must be at least 10s"):
        loaded(DISCOVERY_AGENT_TTL="9s")
    assert loaded(DISCOVERY_AGENT_TTL="9s", AGENT_HEARTBEAT_INTERVAL="2s").agent_ttl_s == 9.0
