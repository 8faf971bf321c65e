"""Which of the agent's settings don't go together."""

import pytest

from gpuloom.runtime.config import ConfigError, load_config
from services.node_agent.config import Timing


@pytest.mark.parametrize("name", ["GPULOOM_AGENT_HEARTBEAT_INTERVAL", "GPULOOM_AGENT_SAMPLE_INTERVAL"])
def test_an_agent_is_heard_at_least_twice_before_its_readers_distrust_it(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be at most 15s"):
        load_config(Timing, {name: "16s"})
    load_config(Timing, {name: "16s", "GPULOOM_DISCOVERY_AGENT_TTL": "60s"})
