"""The table of services, and everything that must agree with it."""

import configparser
import importlib
import pkgutil
import re
import tomllib
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import services
from gpuloom.roster import GRPC, ROSTER, Client, Kind, Roster, Service, grpc_port
from gpuloom.runtime.config import settings_of
from services.scheduler_extender.verbs import https as extender_http

ROOT = Path(__file__).parents[2]
SERVICES = [pytest.param(service, id=service.name) for service in ROSTER]
WITH_GRPC = [pytest.param(service, id=service.name) for service in ROSTER if service.has_port(GRPC)]
RPC = re.compile(r"((?:^ *//.*\n)+) *rpc (\w+)\(", re.MULTILINE)


def a_service(name: str, *callers: str) -> Service:
    return Service(name, Kind.REPLICAS, name, (grpc_port(50100, *callers),))


def configuration(service: Service) -> type[Any]:
    """The dataclass with what every service has."""
    module = importlib.import_module(f"{service.module}.config")
    found = [each for each in vars(module).values() if isinstance(each, type) and is_dataclass(each)]
    (whole,) = (each for each in found if {"http", "log"} <= {member.name for member in fields(each)})
    return whole


def allowed_callers(service: Service) -> dict[str, frozenset[str]]:
    found = importlib.import_module(f"{service.module}.server").ALLOWED_CALLERS
    assert isinstance(found, dict)
    return found


def documented_callers(service: Service) -> dict[str, frozenset[str]]:
    """What the comment of every RPC says: `Callers: discovery, cli.`"""
    text = (ROOT / "protos/gpuloom/v1" / f"{service.name}.proto").read_text(encoding="utf-8")
    documented = {}
    for comment, rpc in RPC.findall(text):
        said = re.search(r"Callers: ([\w, ]+)\.", re.sub(r"\s*//\s*", " ", comment))
        documented[rpc] = frozenset(said[1].split(", ")) if said else frozenset()
    return documented


def test_every_folder_of_services_has_its_row() -> None:
    folders = {module.name for module in pkgutil.iter_modules(services.__path__)}

    assert folders == {service.name for service in ROSTER}


@pytest.mark.parametrize("service", WITH_GRPC)
def test_server_contract_and_roster_name_the_same_callers(service: Service) -> None:
    allowed = allowed_callers(service)

    assert allowed == documented_callers(service)
    assert frozenset().union(*allowed.values()) == service.port(GRPC).callers


def test_the_https_port_is_kube_scheduler_s() -> None:
    assert ROSTER["scheduler_extender"].port("https").callers == extender_http.ALLOWED_CALLERS


@pytest.mark.parametrize("service", SERVICES)
def test_ports_and_addresses_are_settings_of_the_service_with_the_roster_s_defaults(service: Service) -> None:
    declared = {each.name: each.default for each in settings_of(configuration(service))}

    assert {port.setting: declared[port.setting] for port in service.ports} == {
        port.setting: port.number for port in service.ports
    }
    assert {port.host_setting for port in service.ports} | service.embedded.keys() <= declared.keys()
    # Agents are many; who calls them is told where each one is.
    called = [other for other in ROSTER.called_by(service.name) if other.kind is not Kind.DAEMON]
    assert {other.address_setting for other in called} <= declared.keys()


def test_every_service_has_an_extra_and_a_run_has_them_all() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]

    of_a_run = re.fullmatch(r"gpuloom\[(.*)\]", extras["sim"][0])

    assert of_a_run is not None
    assert {service.extra for service in ROSTER} <= extras.keys() & set(of_a_run[1].split(","))


def test_the_import_rules_keep_all_services_apart() -> None:
    rules = configparser.ConfigParser()
    rules.read(ROOT / ".importlinter", encoding="utf-8")

    apart = rules["importlinter:contract:services-are-apart"]["modules"].split()

    assert set(apart) == {service.module for service in ROSTER}


def test_no_two_services_share_a_number_or_a_short_name() -> None:
    numbers = [port.number for service in ROSTER for port in service.own_ports]
    shorts = [service.short for service in ROSTER]

    assert len(set(numbers)) == len(numbers)
    assert len(set(shorts)) == len(shorts)


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ((a_service("one", "nobody"),), "nobody, which is neither"),
        ((a_service("one", "two"), a_service("two", "one")), "two is called by one, which comes before it"),
        ((a_service("one", "one"),), "one is called by one"),
        ((a_service("one"), a_service("one")), "one is there twice"),
        ((a_service("cli"),), "cli is there twice"),
    ],
)
def test_callers_that_are_unknown_or_make_a_cycle_are_refused(
    rows: tuple[Service, ...], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        Roster(rows, (Client("cli"), Client("prometheus", certified=False)))


def test_a_row_more_gives_an_identity_and_the_addresses_of_whom_it_calls() -> None:
    last = ROSTER.services[-1]
    called = replace(last, own_ports=(grpc_port(50058, "cli", "planner"),))

    roster = replace(ROSTER, services=(*ROSTER.services[:-1], called, a_service("planner", "cli")))

    services = tuple(service.name for service in ROSTER)
    certified = (client.name for client in ROSTER.clients if client.certified)
    assert roster.identities == (*services, "planner", *certified)
    assert [service.address_setting for service in roster.called_by("planner")] == [last.address_setting]
