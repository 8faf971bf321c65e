"""How leadership and failpoints are configured, and which settings don't go together."""

import pytest

from gpuloom.runtime.config import ConfigError, load_config
from gpuloom.runtime.failpoints import Action, Failpoint
from services.scheduler_extender.app import RENEWALS
from services.scheduler_extender.config import ExtenderConfig


def config(**settings: str) -> ExtenderConfig:
    needed = {"GPULOOM_DISCOVERY_ADDRESS": "discovery:50053", "GPULOOM_TLS_INSECURE": "true"}
    return load_config(ExtenderConfig, needed | settings)


@pytest.mark.parametrize(
    ("settings", "environ", "elects"),
    [
        ({}, {}, False),
        ({}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, True),
        ({"GPULOOM_POD_NAMESPACE": "gpus"}, {}, True),
        ({"GPULOOM_EXTENDER_LEADER_ELECTION": "false"}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, False),
        ({"GPULOOM_EXTENDER_LEADER_ELECTION": "true"}, {}, True),
    ],
)
def test_there_is_an_election_in_every_pod_unless_told_otherwise(
    settings: dict[str, str], environ: dict[str, str], elects: bool
) -> None:
    assert config(**settings).leadership.elects(environ) == elects


def test_the_lease_is_in_the_pods_own_namespace_unless_told_otherwise() -> None:
    own = config(GPULOOM_POD_NAME="x", GPULOOM_POD_NAMESPACE="gpus").leadership
    told = config(GPULOOM_POD_NAMESPACE="gpus", GPULOOM_EXTENDER_LEASE_NAMESPACE="leases").leadership

    assert (own.namespace(), own.own_pod()) == ("gpus", ("gpus", "x"))
    assert (told.namespace(), told.own_pod()) == ("leases", None)
    assert config().leadership.namespace() == "gpuloom-system"


def test_a_pods_name_without_its_namespace_is_refused() -> None:
    with pytest.raises(ConfigError, match="GPULOOM_POD_NAME needs GPULOOM_POD_NAMESPACE"):
        config(GPULOOM_POD_NAME="x")


@pytest.mark.parametrize("duration_s", [2, 6, 60])
def test_every_lease_duration_makes_settings_that_fit_each_other(duration_s: int) -> None:
    settings = config(GPULOOM_EXTENDER_LEASE_DURATION=str(duration_s)).leadership.lease_settings(RENEWALS)

    assert settings.lease_duration_s == duration_s


def test_a_binding_finds_its_timeout_left_of_the_lease_when_renewals_take_half_a_second() -> None:
    given = config()
    lease = given.leadership.lease_settings(RENEWALS)

    oldest_s = lease.retry_period_s * 1.2 + 0.5

    assert lease.lease_duration_s - lease.margin_s - oldest_s >= given.bind_timeout_s


def test_failpoints_need_to_be_allowed() -> None:
    with pytest.raises(ConfigError, match="GPULOOM_FAILPOINTS_ALLOWED"):
        config(GPULOOM_FAILPOINTS="bind-before-post=stop")


def test_the_extender_has_a_failpoint_before_a_binding_is_sent() -> None:
    settings = {"GPULOOM_FAILPOINTS": "bind-before-post=30s", "GPULOOM_FAILPOINTS_ALLOWED": "true"}

    assert config(**settings).failpoints.points == (Failpoint("bind-before-post", Action.DELAY, 30.0),)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"GPULOOM_EXTENDER_BIND_TIMEOUT": "5s"}, "GPULOOM_EXTENDER_BIND_TIMEOUT"),
        ({"GPULOOM_EXTENDER_BIND_TIMEOUT": "500ms"}, "GPULOOM_EXTENDER_BIND_TIMEOUT"),
        ({"GPULOOM_EXTENDER_SETTLE": "60s"}, "GPULOOM_EXTENDER_SETTLE"),
        ({"GPULOOM_EXTENDER_FACTS_TTL": "60s"}, "GPULOOM_EXTENDER_SETTLE"),
        ({"GPULOOM_DISCOVERY_AGENT_TTL": "60s"}, "GPULOOM_EXTENDER_SETTLE"),
    ],
)
def test_settings_that_are_not_safe_together_are_refused(settings: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        config(**settings)


def test_a_takeover_waits_for_bindings_as_long_as_a_lease_and_a_bind_may_take_together() -> None:
    told = config(GPULOOM_EXTENDER_LEASE_DURATION="15", GPULOOM_EXTENDER_BIND_TIMEOUT="2s")

    assert config().patience().refused_s == 10.0
    assert told.patience().refused_s == 17.0
