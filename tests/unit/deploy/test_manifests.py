"""The rendered manifests and the charts' files, held to the table of services. No helm is needed for it."""

import importlib
import importlib.util
import re
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from gpuloom.roster import ROSTER, Kind, Outside, Service
from gpuloom.runtime.config import settings_of
from gpuloom.sim.kubeapi.admission.conditions import conditions_hold

DEPLOY = Path(__file__).parents[3] / "deploy"
CHARTS = DEPLOY / "charts"
NAMESPACE = "gpuloom-system"
AGENTS = "gpuloom-system-agents"
SERVICES = [pytest.param(service, id=service.name) for service in ROSTER]
PART = {"app.kubernetes.io/part-of": "gpuloom"}
DNS = "dns"

Object = dict[str, Any]


def _generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", DEPLOY / "manifests" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def manifests() -> tuple[Object, ...]:
    return tuple(
        document
        for path in sorted((DEPLOY / "manifests").glob("*.yaml"))
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8"))
    )


def documents(*kinds: str) -> list[Object]:
    return [document for document in manifests() if document["kind"] in kinds]


def named(kind: str, service: Service) -> Object:
    (found,) = (
        document for document in documents(kind) if document["metadata"]["name"] == f"gpuloom-{service.extra}"
    )
    return found


def workload(service: Service) -> Object:
    return named("DaemonSet" if service.kind is Kind.DAEMON else "Deployment", service)


def container(service: Service) -> Object:
    (only,) = workload(service)["spec"]["template"]["spec"]["containers"]
    assert isinstance(only, dict)
    return only


def known_settings(service: Service) -> set[str]:
    module = importlib.import_module(f"{service.module}.config")
    whole = [one for one in vars(module).values() if isinstance(one, type) and is_dataclass(one)]
    (config,) = (one for one in whole if {"http", "log"} <= {member.name for member in fields(one)})
    return {one.name for one in settings_of(config)}


def peer_name(peer: Object) -> str:
    """A service or client by the label that a rule selects; an address as it is written."""
    if "ipBlock" in peer:
        return str(peer["ipBlock"]["cidr"])
    if "podSelector" not in peer:
        return DNS
    labels = peer["podSelector"]["matchLabels"]
    return str(labels["app.kubernetes.io/name"]).replace("-", "_")


def test_what_is_generated_of_the_charts_is_up_to_date() -> None:
    for path, text in _generator().generated_chart_files().items():
        assert path.read_text(encoding="utf-8") == text, f"{path}: run make manifests"


@pytest.mark.parametrize("service", SERVICES)
def test_every_service_has_a_chart_that_the_umbrella_takes_in(service: Service) -> None:
    umbrella = yaml.safe_load((CHARTS / "gpuloom" / "Chart.yaml").read_text(encoding="utf-8"))
    values = yaml.safe_load((CHARTS / "gpuloom" / "values.yaml").read_text(encoding="utf-8"))
    chart = CHARTS / service.extra

    assert yaml.safe_load((chart / "Chart.yaml").read_text(encoding="utf-8"))["name"] == service.extra
    assert (CHARTS / "gpuloom" / "charts" / service.extra).resolve() == chart
    (row,) = (one for one in umbrella["dependencies"] if one["name"] == service.extra)
    assert row["condition"] == f"{service.extra}.enabled"
    assert values[service.extra]["enabled"] in (True, False)


@pytest.mark.parametrize("service", SERVICES)
def test_a_pod_has_the_ports_of_the_roster_and_only_settings_that_its_service_knows(service: Service) -> None:
    # A pod is told who and where it is; not every service asks.
    known = known_settings(service) | {"GPULOOM_POD_NAME", "GPULOOM_POD_NAMESPACE"}
    told = {one["name"] for one in container(service)["env"] if one["name"].startswith("GPULOOM_")}

    assert told - {"GPULOOM_NODE_NAME"} <= known
    assert {port["name"]: port["containerPort"] for port in container(service)["ports"]} == {
        port.name: port.number for port in service.ports
    }


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_may_go_to_what_its_settings_name(service: Service) -> None:
    named_by = {"GPULOOM_PROMETHEUS_URL": Outside.PROMETHEUS, "GPULOOM_DATABASE_URL": Outside.POSTGRESQL}

    known = known_settings(service)

    assert {place for name, place in named_by.items() if name in known} == service.outside & {
        *named_by.values()
    }


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_finds_whom_it_calls_where_their_service_is(service: Service) -> None:
    told = {one["name"]: one.get("value") for one in container(service)["env"]}
    called = [other for other in ROSTER.called_by(service.name) if other.kind is not Kind.DAEMON]

    for other in called:
        host, _, port = str(told[other.address_setting]).partition(":")
        endpoint = named("Service", other)
        assert host == f"{endpoint['metadata']['name']}.{endpoint['metadata']['namespace']}.svc"
        assert int(port) in {one["port"] for one in endpoint["spec"]["ports"] if one["name"] == "grpc"}


@pytest.mark.parametrize("service", SERVICES)
def test_network_policies_let_in_exactly_the_callers_of_each_port(service: Service) -> None:
    policy = named("NetworkPolicy", service)
    let_in = {
        (rule["ports"][0]["port"], peer_name(peer))
        for rule in policy["spec"]["ingress"]
        for peer in rule["from"]
    }

    # Nobody is the command line or another client by labels: they come by port-forward, or by peers that the
    # values name.
    seen_as = {"kube_scheduler": ("scheduler",), "kube_apiserver": ("0.0.0.0/0", "::/0")}
    unknown = {client.name for client in ROSTER.clients} - {*seen_as, "prometheus"}
    expected = {
        (port.name, peer)
        for port in service.ports
        for caller in port.callers - unknown
        for peer in seen_as.get(caller, (caller,))
    }
    assert let_in == expected
    assert set(policy["spec"]["policyTypes"]) == {"Ingress", "Egress"}


@pytest.mark.parametrize("service", SERVICES)
def test_network_policies_let_out_exactly_the_calls_of_the_roster(service: Service) -> None:
    policy = named("NetworkPolicy", service)
    text = (DEPLOY / "charts" / "common" / "templates" / "_network.tpl").read_text(encoding="utf-8")

    let_out = {
        (peer_name(peer), rule["ports"][0]["port"])
        for rule in policy["spec"]["egress"]
        for peer in rule["to"]
    }
    calls = {
        (other.name, port.number) for other in ROSTER for port in other.ports if service.name in port.callers
    }
    outside = {place for place in let_out - calls if place[0] != DNS}

    assert calls <= let_out
    # What is outside is named in the template, and there are no more rules than the roster has places.
    assert len(policy["spec"]["egress"]) == 1 + len(calls) + len(service.outside)
    assert bool(outside) == bool(service.outside)
    for place in service.outside:
        assert f'"{place.value}"' in text, f"say in _network.tpl what a NetworkPolicy lets out to {place}"


def test_every_pod_is_restricted_but_the_agents_and_those_are_in_a_namespace_of_their_own() -> None:
    for document in documents("Deployment", "DaemonSet", "Job", "CronJob"):
        spec = document["spec"].get("jobTemplate", document)["spec"]["template"]["spec"]
        agent = document["kind"] == "DaemonSet"
        assert document["metadata"]["namespace"] == (AGENTS if agent else NAMESPACE)
        assert spec["enableServiceLinks"] is False
        assert spec["securityContext"]["runAsNonRoot"] is not agent
        assert spec["securityContext"]["runAsUser"] == (0 if agent else 65532)
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for one in spec["containers"]:
            assert one["securityContext"]["readOnlyRootFilesystem"] is True
            assert one["securityContext"]["allowPrivilegeEscalation"] is False
            assert one["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert {"requests", "limits"} <= one["resources"].keys()
    levels = {
        one["metadata"]["name"]: one["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
        for one in documents("Namespace")
    }
    assert levels == {NAMESPACE: "restricted", AGENTS: "privileged"}


def test_a_role_names_whom_it_is_for_and_no_right_is_a_wildcard() -> None:
    bound = {
        (one["roleRef"]["kind"], one["roleRef"]["name"], one["metadata"].get("namespace"))
        for one in documents("RoleBinding", "ClusterRoleBinding")
    }

    for role in documents("Role", "ClusterRole"):
        assert (role["kind"], role["metadata"]["name"], role["metadata"].get("namespace")) in bound
        for rule in role["rules"]:
            assert "*" not in [*rule["verbs"], *rule["resources"], *rule["apiGroups"]]


def test_an_outage_of_one_machine_leaves_a_replica_of_what_pods_wait_for() -> None:
    budgets = {one["metadata"]["name"] for one in documents("PodDisruptionBudget")}

    for service in ROSTER:
        spec = workload(service)["spec"]
        if service.kind is Kind.DAEMON or spec["replicas"] == 1:
            continue
        assert f"gpuloom-{service.extra}" in budgets
        assert spec["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
        assert spec["template"]["spec"]["terminationGracePeriodSeconds"] == 10


def test_no_manifest_depends_on_the_default_namespace_of_the_product() -> None:
    for path in CHARTS.rglob("*"):
        if path.is_file() and not path.is_symlink() and path.suffix != ".md":
            assert not re.search(r"gpuloom-system", path.read_text(encoding="utf-8")), path


@pytest.mark.parametrize(
    ("spec", "comes"),
    [
        ({"containers": [{"resources": {"limits": {"nvidia.com/gpu": "1"}}}]}, True),
        ({"containers": [{}], "initContainers": [{"resources": {"limits": {"nvidia.com/gpu": "1"}}}]}, True),
        (
            {
                "containers": [{}],
                "initContainers": [
                    {"restartPolicy": "Always", "resources": {"limits": {"gpuloom.dev/gpu-milli": "500"}}}
                ],
            },
            True,
        ),
        ({"containers": [{"resources": {"limits": {"cpu": "1"}}}], "initContainers": [{}]}, False),
        ({"containers": [{}]}, False),
    ],
)
def test_pods_of_which_any_container_asks_for_gpus_come_to_the_webhook_and_no_others(
    spec: Object, comes: bool
) -> None:
    webhooks = [
        one
        for document in documents("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
        for one in document["webhooks"]
        if one["rules"][0]["resources"] == ["pods"]
    ]

    assert len(webhooks) == 2
    assert [conditions_hold(one["matchConditions"], {"object": {"spec": spec}}) for one in webhooks] == [
        comes
    ] * 2
