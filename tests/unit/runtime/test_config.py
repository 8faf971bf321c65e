from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.runtime.config import ConfigError, describe, group, load_config, render, setting
from gpuloom.runtime.logs import LogFormat, LogLevel
from gpuloom.runtime.parsers import (
    Address,
    address,
    boolean,
    comma_list,
    existing_file,
    integer,
    port,
    seconds,
    text,
)
from gpuloom.runtime.settings import HttpConfig, LogConfig


@dataclass(frozen=True)
class PoolConfig:
    smallest: int = setting("GPULOOM_POOL_MIN", default=1, parse=integer(0, 99), help="Least nodes")
    largest: int = setting("GPULOOM_POOL_MAX", default=9, parse=integer(0, 99), help="Most nodes")

    def problems(self) -> Iterator[str]:
        if self.smallest > self.largest:
            yield f"GPULOOM_POOL_MIN ({self.smallest}) is above GPULOOM_POOL_MAX ({self.largest})"


@dataclass(frozen=True)
class ExampleConfig:
    http: HttpConfig = group(HttpConfig)
    pool: PoolConfig = group(PoolConfig)
    port: int = setting("GPULOOM_GRPC_PORT", default=50053, parse=port, help="Port to serve gRPC on")
    peer: Address = setting("GPULOOM_PEER", parse=address, help="Who to call")
    token: str = setting("GPULOOM_API_TOKEN", default="", parse=text, help="Who we are", secret=True)
    certificate: Path | None = setting("GPULOOM_TLS_CERT", default=None, parse=existing_file, help="Ours")
    verbose: bool = setting("GPULOOM_VERBOSE", default=False, parse=boolean, help="Say more")
    zones: tuple[str, ...] = setting("GPULOOM_ZONES", default=(), parse=comma_list(text), help="Where")

    def problems(self) -> Iterator[str]:
        if self.port and self.port == self.http.port:
            yield "GPULOOM_GRPC_PORT and GPULOOM_HTTP_PORT must differ"


def problems_of(**variables: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as refusal:
        load_config(ExampleConfig, variables)
    return refusal.value.problems


def test_values_come_from_the_environment_and_defaults_fill_the_rest() -> None:
    environ = {"GPULOOM_PEER": "discovery:50053", "GPULOOM_POOL_MAX": "20", "GPULOOM_ZONES": "a,b"}

    config = load_config(ExampleConfig, environ)

    assert config.peer == Address("discovery", 50053)
    assert config.pool == PoolConfig(smallest=1, largest=20)
    assert config.http.port == 8080
    assert config.zones == ("a", "b")
    assert config.certificate is None


def test_an_empty_variable_counts_as_not_set() -> None:
    config = load_config(ExampleConfig, {"GPULOOM_PEER": "a:1", "GPULOOM_GRPC_PORT": " "})

    assert config.port == 50053


def test_all_problems_are_told_at_once() -> None:
    problems = problems_of(
        GPULOOM_HTTP_PORT="http", GPULOOM_GRPC_PORT="70000", GPULOOM_VERBOS="yes", GPULOOM_TLS_CERT="/none"
    )

    assert problems == (
        "GPULOOM_HTTP_PORT must be a whole number from 0 to 65535, not 'http'",
        "GPULOOM_GRPC_PORT must be a whole number from 0 to 65535, not '70000'",
        "GPULOOM_PEER is required: Who to call",
        "GPULOOM_TLS_CERT must name an existing file, and '/none' is none",
        "GPULOOM_VERBOS is not a setting, did you mean GPULOOM_VERBOSE?",
    )


def test_the_settings_of_other_services_are_ignored() -> None:
    config = load_config(ExampleConfig, {"GPULOOM_PEER": "a:1", "GPULOOM_PRICES_URL": "x", "PATH": "/bin"})

    assert config.peer == Address("a", 1)


def test_a_group_checks_its_fields_against_each_other() -> None:
    problems = problems_of(GPULOOM_PEER="a:1", GPULOOM_POOL_MIN="10")

    assert problems == ("GPULOOM_POOL_MIN (10) is above GPULOOM_POOL_MAX (9)",)


def test_checks_of_the_group_and_of_the_whole_are_gathered_together() -> None:
    problems = problems_of(GPULOOM_PEER="a:1", GPULOOM_POOL_MIN="10", GPULOOM_GRPC_PORT="8080")

    assert len(problems) == 2
    assert "GPULOOM_GRPC_PORT and GPULOOM_HTTP_PORT must differ" in problems


def test_a_group_that_parsed_is_checked_even_if_another_field_did_not() -> None:
    problems = problems_of(GPULOOM_PEER="nonsense", GPULOOM_POOL_MIN="10")

    assert len(problems) == 2


def test_fields_are_not_checked_against_each_other_until_they_all_parsed() -> None:
    problems = problems_of(GPULOOM_PEER="a:1", GPULOOM_POOL_MIN="10", GPULOOM_POOL_MAX="many")

    assert problems == ("GPULOOM_POOL_MAX must be a whole number from 0 to 99, not 'many'",)


def test_a_problem_of_a_setting_that_two_groups_share_is_told_once() -> None:
    @dataclass(frozen=True)
    class Twice:
        one: HttpConfig = group(HttpConfig)
        other: HttpConfig = group(HttpConfig)

    with pytest.raises(ConfigError) as refusal:
        load_config(Twice, {"GPULOOM_HTTP_PORT": "x"})

    assert len(refusal.value.problems) == 1


def test_the_value_of_a_secret_is_never_shown() -> None:
    @dataclass(frozen=True)
    class Secretive:
        pin: int = setting("GPULOOM_PIN", parse=integer(0, 9999), help="Number", secret=True)

    config = load_config(Secretive, {"GPULOOM_PIN": "4711"})
    with pytest.raises(ConfigError) as refusal:
        load_config(Secretive, {"GPULOOM_PIN": "hunter2"})

    assert render(config) == "GPULOOM_PIN=***"
    assert "hunter2" not in str(refusal.value)
    assert refusal.value.problems[0].startswith("GPULOOM_PIN ")


def test_the_printed_configuration_has_every_setting_once_on_its_own_line() -> None:
    config = load_config(
        ExampleConfig, {"GPULOOM_PEER": "a:1", "GPULOOM_DRAIN_TIMEOUT": "500ms", "GPULOOM_VERBOSE": "on"}
    )

    assert render(config).splitlines() == [
        "GPULOOM_HTTP_HOST=0.0.0.0",
        "GPULOOM_HTTP_PORT=8080",
        "GPULOOM_DRAIN_TIMEOUT=0.5",
        "GPULOOM_POOL_MIN=1",
        "GPULOOM_POOL_MAX=9",
        "GPULOOM_GRPC_PORT=50053",
        "GPULOOM_PEER=a:1",
        "GPULOOM_API_TOKEN=***",
        "GPULOOM_TLS_CERT=",
        "GPULOOM_VERBOSE=true",
        "GPULOOM_ZONES=",
    ]


def test_a_value_with_a_line_break_stays_on_its_line() -> None:
    config = load_config(ExampleConfig, {"GPULOOM_PEER": "a:1", "GPULOOM_ZONES": "a\nGPULOOM_PEER=b:2,c"})

    assert len(render(config).splitlines()) == 11


def test_the_help_lists_every_setting_in_columns() -> None:
    lines = describe(ExampleConfig).splitlines()

    assert len(lines) == 11
    assert lines[0].split() == ["GPULOOM_HTTP_HOST", "default", str(HttpConfig().host), *lines[0].split()[3:]]
    assert next(line for line in lines if "GPULOOM_PEER" in line).split()[1] == "required"
    assert next(line for line in lines if "GPULOOM_TLS_CERT" in line).split()[1:] == ["not", "set", "Ours"]
    assert (
        len({line.index(word) for line, word in zip(lines[3:6], ("Least", "Most", "Port"), strict=True)}) == 1
    )


def test_a_field_that_is_no_setting_is_a_mistake_of_the_programmer() -> None:
    @dataclass(frozen=True)
    class Wrong:
        plain: int = 1

    with pytest.raises(TypeError, match=r"Wrong\.plain"):
        load_config(Wrong, {})
    with pytest.raises(ValueError, match="GPULOOM_"):
        setting("PORT", parse=port, help="")


def test_log_settings_are_read() -> None:
    config = load_config(LogConfig, {"GPULOOM_LOG_LEVEL": "DEBUG", "GPULOOM_LOG_FORMAT": "json"})

    assert config == LogConfig(level=LogLevel.DEBUG, format=LogFormat.JSON)


@given(st.floats(min_value=1e-3, max_value=1e6))
def test_a_printed_duration_reads_back_the_same(duration_s: float) -> None:
    line = render(HttpConfig(drain_timeout_s=round(duration_s, 6)))

    printed = line.splitlines()[-1].removeprefix("GPULOOM_DRAIN_TIMEOUT=")
    assert "e" in printed or seconds(printed) == round(duration_s, 6)
