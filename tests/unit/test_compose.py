"""The compose file, Prometheus' list of targets and the version, held to the roster and to pyproject.toml."""

import string
from typing import Any

import pytest
import yaml

from deploy.docker.build import IMAGES, ROOT, version
from gpuloom.roster import GRPC, HTTP, ROSTER, Embedded, Kind, Service
from gpuloom.sim.mesh.plan import LIVELY_USAGE, SERVICE_NAMESPACE

COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
BLOCKS: dict[str, dict[str, Any]] = COMPOSE["services"]
SETTINGS = dict(
    line.split("=", 1)
    for line in (ROOT / ".env").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
)
SERVICES = [pytest.param(service, id=service.name) for service in ROSTER]
CENTRAL = [pytest.param(service, id=service.name) for service in ROSTER if service.kind is not Kind.DAEMON]
KNOWN: dict[str, str] = {
    Embedded.CLOUD: "http://simulation:8002",
    Embedded.INFERENCE: "http://simulation:8003",
    Embedded.AGENTS_FILE: "/var/lib/gpuloom/agents.json",
    Embedded.CONSOLE_ACCESS: "published-on-loopback",
    Embedded.NAMESPACE: SERVICE_NAMESPACE,
    Embedded.USAGE_INTERVAL: LIVELY_USAGE,
}


def is_known(value: str) -> bool:
    """Whether a container has the value of a process of `gpuloom run`; a database, say, is another one."""
    return all(name is None or name in KNOWN for _, name, _, _ in string.Formatter().parse(value))


def test_images_have_the_version_of_the_package() -> None:
    assert SETTINGS["GPULOOM_VERSION"] == version()


@pytest.mark.parametrize("service", SERVICES)
def test_every_service_has_a_container_with_its_image_and_its_certificate(service: Service) -> None:
    block = BLOCKS[service.extra]

    assert block["image"] == f"gpuloom/{service.extra}:${{GPULOOM_VERSION}}"
    assert block["build"]["args"]["SERVICE"] == service.name
    assert block["environment"]["GPULOOM_TLS_CERT_FILE"] == f"/certificates/{service.name}.crt"
    assert block["environment"]["GPULOOM_TLS_KEY_FILE"] == f"/certificates/{service.name}.key"
    assert block["environment"]["GPULOOM_TLS_CA_FILE"] == "/certificates/ca.crt"


@pytest.mark.parametrize("service", SERVICES)
def test_every_container_is_set_as_in_a_run_and_finds_whom_it_calls(service: Service) -> None:
    environment = BLOCKS[service.extra]["environment"]
    called = [row for row in ROSTER.called_by(service.name) if row.kind is not Kind.DAEMON]

    settings = {row.address_setting: f"{row.extra}:{row.port(GRPC).number}" for row in called}
    settings |= {name: value.format_map(KNOWN) for name, value in service.embedded.items() if is_known(value)}

    assert settings.items() <= environment.items()
    assert service.embedded.keys() <= environment.keys()
    assert {row.extra for row in called} <= BLOCKS[service.extra]["depends_on"].keys()


@pytest.mark.parametrize("service", CENTRAL)
def test_the_command_line_reaches_every_service_that_it_may_call(service: Service) -> None:
    setting = f"PORT_{service.short.upper()}"

    if service.has_port(GRPC) and "cli" in service.port(GRPC).callers:
        number = service.port(GRPC).number
        address = BLOCKS["cli"]["environment"][service.address_setting]
        assert address == f"{service.extra}:{number}"
        assert f"127.0.0.1:${{{setting}}}:{number}" in BLOCKS[service.extra]["ports"]
        assert SETTINGS[setting] == str(number)


@pytest.mark.parametrize("name", sorted(BLOCKS))
def test_every_container_is_confined_and_published_on_loopback_only(name: str) -> None:
    block = BLOCKS[name]

    assert block["read_only"] is True
    assert block["cap_drop"] == ["ALL"]
    assert block["security_opt"] == ["no-new-privileges:true"]
    assert block["mem_limit"]
    assert block["cpus"]
    assert all(port.startswith("127.0.0.1:") for port in block.get("ports", ()))
    assert block["image"].startswith("gpuloom/") == (block.get("user") == "65532:65532")


def test_all_images_are_built_and_nothing_else() -> None:
    built = {name: block["image"] for name, block in BLOCKS.items() if "build" in block}

    assert built == {name: f"gpuloom/{image}:${{GPULOOM_VERSION}}" for name, image in IMAGES.items()}


def test_prometheus_scrapes_every_service() -> None:
    document = yaml.safe_load((ROOT / "deploy/docker/prometheus.yml").read_text(encoding="utf-8"))
    targets = {
        job["job_name"]: {target for each in job["static_configs"] for target in each["targets"]}
        for job in document["scrape_configs"]
    }

    assert targets["gpuloom"] == {f"{row.extra}:{row.port(HTTP).number}" for row in ROSTER}
    assert targets["gpuloom-exporter"] == {f"node-agent:{ROSTER['node_agent'].port('exporter').number}"}
