"""The charts as helm renders them: every preset, the names that the product documents print, wrong values."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from gpuloom.roster import ROSTER, Kind
from tests.cluster.helm import CHARTS, ROOT, Document, Helm, HelmError, set_values

pytestmark = pytest.mark.real

PRESETS = sorted(path.stem for path in (CHARTS / "gpuloom" / "presets").glob("*.yaml"))
ALONE = sorted({path.parent.name for path in CHARTS.glob("*/Chart.yaml")} - {"common"})
PRINTED = Path(__file__).with_name("printed-values.yaml")
"""What the product documents print, together."""


def preset(name: str) -> tuple[str, ...]:
    return ("-f", f"charts/gpuloom/presets/{name}.yaml")


def only(documents: list[Document], kind: str, name: str) -> Document:
    (found,) = (one for one in documents if (one["kind"], one["metadata"]["name"]) == (kind, name))
    return found


def container(documents: list[Document], deployment: str) -> Document:
    (main,) = only(documents, "Deployment", deployment)["spec"]["template"]["spec"]["containers"]
    assert isinstance(main, dict)
    return main


def test_every_preset_of_the_documents_is_there() -> None:
    assert PRESETS == ["aws", "azure", "default", "gcp", "ha", "minimal", "on-prem"]


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_renders_and_does_so_equally_twice(helm: Helm, name: str) -> None:
    once = helm.render("gpuloom", *preset(name))

    assert once == helm.render("gpuloom", *preset(name))
    for service in ROSTER:
        kind = "DaemonSet" if service.kind is Kind.DAEMON else "Deployment"
        assert only(once, kind, f"gpuloom-{service.extra}")


@pytest.mark.parametrize("chart", ALONE)
def test_a_chart_renders_alone_and_passes_helms_own_checks(helm: Helm, chart: str) -> None:
    helm.run("lint", "--strict", f"charts/{chart}")

    documents = helm.render(chart, "--namespace", "elsewhere", release="mine")

    namespaces = {one["metadata"].get("namespace") for one in documents} - {None}
    # Events of nodes, who may read metrics, and agents of the umbrella have places of their own.
    assert namespaces <= {"elsewhere", "elsewhere-agents", "default", "kube-system"}
    assert "gpuloom-system" not in yaml.safe_dump_all(documents)


def test_the_printed_command_and_values_give_the_printed_names(helm: Helm) -> None:
    documents = helm.render(
        "gpu-autoscaler", "--namespace", "gpu-autoscaler-system", "-f", str(PRINTED), release="gpu-autoscaler"
    )

    spec = only(documents, "AutoscalingPolicy", "default")["spec"]
    cloud = only(documents, "ConfigMap", "gpu-autoscaler-autoscaling-clouds")["data"]
    assert (spec["provider"], spec["scaleUpCooldownSeconds"], spec["scaleDownCooldownSeconds"]) == (
        "aws",
        180,
        600,
    )
    assert (spec["pendingPodTimeoutSeconds"], spec["minNodes"], spec["maxNodes"]) == (120, 0, 100)
    assert [pool["name"] for pool in spec["nodePools"]] == ["spot-pool", "on-demand-pool"]
    assert "spot-pool=gpu-spot-asg" in cloud["GPULOOM_AUTOSCALER_AWS_GROUPS"].split(",")
    secrets = {
        volume["secret"]["secretName"]
        for one in documents
        if one["kind"] == "Deployment"
        for volume in one["spec"]["template"]["spec"]["volumes"]
        if "secret" in volume
    }
    deployed = {one["metadata"]["name"] for one in documents if one["kind"] == "Deployment"}
    printed = {"autoscaler": "controller", "controller": "workloads"}
    assert {
        f"gpu-autoscaler-{printed.get(row.extra, row.extra)}" for row in ROSTER if row.kind is not Kind.DAEMON
    } <= deployed
    assert {f"gpu-autoscaler-{name}-tls" for name in ("discovery", "scheduler-extender")} <= secrets


def test_spot_target_caps_the_tiers_share(helm: Helm) -> None:
    arguments = ("-f", str(PRINTED), "--set", "autoscaling.spot.targetPercentage=0.4")

    spec = only(helm.render("gpuloom", *arguments), "AutoscalingPolicy", "default")["spec"]

    assert spec["spotInstancePercentage"] == 0.4


def test_without_tiers_the_spot_target_counts_alone(helm: Helm) -> None:
    values = "autoscaling.multiTier.enabled=false,autoscaling.spot.targetPercentage=0.8"

    rendered = helm.render("gpuloom", "-f", str(PRINTED), "--set", values)

    assert only(rendered, "AutoscalingPolicy", "default")["spec"]["spotInstancePercentage"] == 0.8


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("discovery.replcas=3", "additional properties 'replcas' not allowed"),
        ("autoscaling.provider=ibm", "at '/autoscaling/provider': value must be one of"),
        ("autoscaling.scaleUp.cooldown=soon", "at '/autoscaling/scaleUp/cooldown'"),
        ("autoscaling.spot.targetPercentage=60", "at '/autoscaling/spot/targetPercentage'"),
        ("autoscaling.enabled=true", "autoscaling.provider must be aws, gcp, azure or simulated"),
        ("global.certificates.mode=none", "at '/global/certificates/mode'"),
        ("global.ports.discovery.http2=1", "global.ports.discovery.http2: there is no such port"),
        ("node-agent.options.mode=mine", "node-agent.options.mode must be nvidia or gpuloom, not mine"),
        ("monitorng.enabled=true", "additional properties 'monitorng' not allowed"),
        ("node-agent.options.mod=gpuloom", "at '/options': additional properties 'mod' not allowed"),
        ("autoscaler.options.metricsApi=never", "at '/options/metricsApi': value must be one of"),
        ("scheduler.replcas=3", "additional properties 'replcas' not allowed"),
        ("certificates.shedule=daily", "additional properties 'shedule' not allowed"),
        ("gpuloom-crds.upgradejob=false", "additional properties 'upgradejob' not allowed"),
        ("monitoring.grafana.adminSecert=a", "additional properties 'adminSecert' not allowed"),
        ("scheduler.persistence.enabled=true", "at '/persistence/enabled': value must be false"),
        ("global.networkPolicy.outside.postgres.ports[0]=1", "outside.postgres: there is no such place"),
        ("global.networkPolicy.clients.grafana[0].a=b", "clients.grafana: there is no such caller"),
        ("discovery.fullnameOverride=d", "discovery.fullnameOverride: the other services look for gpuloom-"),
        ("webhook.nameOverride=hook", "webhook.nameOverride: the other services look for gpuloom-webhook"),
        ("optimizer.replicas=2", "optimizer.replicas is 2, but two of it would read everything twice"),
        (
            "cost-engine.replicas=2",
            "cost-engine.replicas is 2, but its store is a file, which one pod can use",
        ),
        (
            "scheduler-extender.enabled=false",
            "scheduler-extender.enabled is false, and the scheduler places no",
        ),
    ],
)
def test_a_wrong_value_fails_with_one_clear_line(helm: Helm, value: str, said: str) -> None:
    with pytest.raises(HelmError) as refused:
        helm.render("gpuloom", "--set", value)

    lines = str(refused.value).splitlines()
    # Helm itself adds which chart it is about.
    assert len([line for line in lines if said in line]) == 1
    assert len(lines) <= 3


def test_two_cost_engines_share_a_database(helm: Helm) -> None:
    values = "cost-engine.replicas=2,cost-engine.persistence.enabled=false"

    documents = helm.render("gpuloom", "--set", f"{values},cost-engine.settings.GPULOOM_DATABASE_URL=")

    assert only(documents, "Deployment", "gpuloom-cost-engine")["spec"]["replicas"] == 2
    assert only(documents, "PodDisruptionBudget", "gpuloom-cost-engine")
    with pytest.raises(HelmError, match="its store is a file"):
        helm.render("gpuloom", "--set", f"{values},cost-engine.persistence.ephemeral=true")


def test_contradictory_tiers_are_refused(helm: Helm) -> None:
    with pytest.raises(HelmError, match=r"add up to 1\.40; they are shares of 1"):
        helm.render("gpuloom", "-f", str(PRINTED), "--set", "autoscaling.multiTier.spotPercentage=1.0")


def test_values_of_services_to_come_are_accepted(helm: Helm) -> None:
    assert helm.render("gpuloom", "--set", "console.replicas=2", "--set", "cost-engine.enabled=true")


def test_ports_move_for_a_service_and_for_its_callers(helm: Helm) -> None:
    documents = helm.render("gpuloom", "--set", "global.ports.discovery.grpc=1234")

    (extender,) = only(documents, "Deployment", "gpuloom-scheduler-extender")["spec"]["template"]["spec"][
        "containers"
    ]
    (discovery,) = only(documents, "Deployment", "gpuloom-discovery")["spec"]["template"]["spec"][
        "containers"
    ]
    told = {one["name"]: one.get("value") for one in extender["env"]}
    assert told["GPULOOM_DISCOVERY_ADDRESS"] == "gpuloom-discovery.gpuloom-system.svc:1234"
    assert {"name": "GPULOOM_GRPC_PORT", "value": "1234"} in discovery["env"]


def test_people_can_add_what_they_expect_to_add(helm: Helm, tmp_path: Path) -> None:
    values = {
        "discovery": {
            "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
            "extraArgs": ["--print-config"],
            "podAnnotations": {"team": "gpu"},
            "podLabels": {"mesh": "no"},
            "nodeSelector": {"pool": "system"},
            "tolerations": [{"operator": "Exists"}],
            "priorityClassName": "system-cluster-critical",
            "settings": {"GPULOOM_LOG_LEVEL": "debug", "GPULOOM_A": 5_000_000, "GPULOOM_B": 0.25},
            "image": {"registry": "registry.example.com", "digest": "sha256:" + "0" * 64},
            "serviceAccount": {"annotations": {"iam": "role"}},
        }
    }
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")

    documents = helm.render("gpuloom", "-f", str(tmp_path / "values.yaml"))

    template = only(documents, "Deployment", "gpuloom-discovery")["spec"]["template"]
    (main,) = template["spec"]["containers"]
    assert {"name": "HTTPS_PROXY", "value": "http://proxy:3128"} in main["env"]
    assert {"name": "GPULOOM_LOG_LEVEL", "value": "debug"} in main["env"]
    assert {"name": "GPULOOM_A", "value": "5000000"} in main["env"]
    assert {"name": "GPULOOM_B", "value": "0.25"} in main["env"]
    assert main["args"] == ["--print-config"]
    assert main["image"] == f"registry.example.com/gpuloom/discovery@sha256:{'0' * 64}"
    assert template["metadata"]["annotations"]["team"] == "gpu"
    assert template["metadata"]["labels"]["mesh"] == "no"
    assert template["spec"]["nodeSelector"] == {"pool": "system"}
    assert template["spec"]["priorityClassName"] == "system-cluster-critical"
    account = only(documents, "ServiceAccount", "gpuloom-discovery")
    assert account["metadata"]["annotations"] == {"iam": "role"}


def test_cert_manager_makes_a_certificate_for_every_identity(helm: Helm) -> None:
    documents = helm.render("gpuloom", "--set", "global.certificates.mode=cert-manager")

    made = {
        one["spec"]["uris"][0].removeprefix("spiffe://gpuloom/"): one
        for one in documents
        if one["kind"] == "Certificate" and "uris" in one["spec"]
    }
    assert set(made) == set(ROSTER.identities)
    assert made["node_agent"]["metadata"]["namespace"] == "gpuloom-system-agents"
    assert {one["spec"]["issuerRef"]["name"] for one in made.values()} == {"gpuloom-ca"}
    assert not [
        one
        for one in documents
        if one["kind"] in ("Job", "CronJob") and "crds" not in one["metadata"]["name"]
    ]


def test_prometheus_operators_objects_scrape_every_ten_seconds_and_honour_labels(helm: Helm) -> None:
    documents = helm.render("gpuloom", "--set", "global.monitoring.podMonitors=true")

    monitors = [one for one in documents if one["kind"] == "PodMonitor"]
    scraped = {
        (one["metadata"]["name"], endpoint["port"])
        for one in monitors
        for endpoint in one["spec"]["podMetricsEndpoints"]
    }
    assert scraped == {
        (f"gpuloom-{service.extra}", port.name)
        for service in ROSTER
        for port in service.ports
        if "prometheus" in port.callers
    }
    for one in monitors:
        for endpoint in one["spec"]["podMetricsEndpoints"]:
            assert (endpoint["interval"], endpoint["honorLabels"]) == ("10s", True)


def test_bundled_monitoring_has_the_printed_sizes_and_network_policies(helm: Helm) -> None:
    documents = helm.render("gpuloom", "--set", "monitoring.enabled=true")

    (prometheus,) = only(documents, "Deployment", "gpuloom-prometheus")["spec"]["template"]["spec"][
        "containers"
    ]
    grafana = container(documents, "gpuloom-grafana")
    (web,) = only(documents, "Service", "gpuloom-grafana")["spec"]["ports"]
    into = only(documents, "NetworkPolicy", "gpuloom-prometheus")["spec"]["ingress"][0]
    out_of = only(documents, "NetworkPolicy", "gpuloom-grafana")["spec"]["egress"][-1]
    assert "--storage.tsdb.retention.time=7d" in prometheus["args"]
    assert prometheus["resources"]["requests"] == {"cpu": "500m", "memory": "1Gi"}
    assert grafana["resources"]["requests"] == {"cpu": "100m", "memory": "128Mi"}
    assert web["port"] == 80
    assert into["from"][0]["podSelector"]["matchLabels"]["app.kubernetes.io/name"] == "grafana"
    assert out_of["ports"] == [{"port": 9090, "protocol": "TCP"}]


def test_old_clusters_get_no_admission_policies_and_the_extender_is_told_so(helm: Helm) -> None:
    documents = helm.render("gpuloom", "--kube-version", "1.29.0")

    (extender,) = only(documents, "Deployment", "gpuloom-scheduler-extender")["spec"]["template"]["spec"][
        "containers"
    ]
    assert not [one for one in documents if one["kind"].startswith("ValidatingAdmissionPolicy")]
    assert {"name": "GPULOOM_EXTENDER_ADMISSION_POLICIES", "value": "none"} in extender["env"]


@pytest.mark.parametrize(("version", "conditions"), [("1.27.0", False), ("1.29.0", True), ("1.34.0", True)])
def test_admission_holds_up_no_more_than_it_must(helm: Helm, version: str, conditions: bool) -> None:
    documents = helm.render("gpuloom", "--kube-version", version)

    mutating = only(documents, "MutatingWebhookConfiguration", "gpuloom-webhook")["webhooks"]
    validating = only(documents, "ValidatingWebhookConfiguration", "gpuloom-webhook")["webhooks"]
    of_pods = [one for one in (*mutating, *validating) if "pods" in one["rules"][0]["resources"]]
    guards = [one for one in validating if one["failurePolicy"] == "Fail"]
    assert [one["name"] for one in guards] == ([] if version == "1.34.0" else ["allocations.gpuloom.dev"])
    assert all(("matchConditions" in one) == conditions for one in of_pods)
    assert all(one["timeoutSeconds"] <= 2 for one in of_pods if one not in guards)
    assert all({"pods/binding", "bindings"} <= {*one["rules"][0]["resources"]} for one in guards)


def test_the_manifests_are_what_the_charts_render(helm: Helm) -> None:
    command = (sys.executable, str(ROOT / "deploy/manifests/generate.py"), "--check")

    result = subprocess.run(  # noqa: S603 - our own script
        command, capture_output=True, text=True, check=False, env={"HELM": str(helm.program)}
    )

    assert (result.returncode, result.stderr) == (0, "")


def settings_of(documents: list[Document], deployment: str) -> dict[str, str]:
    return {one["name"]: one.get("value", "") for one in container(documents, deployment)["env"]}


def test_gpu_pods_are_given_to_our_scheduler_only_where_it_is_a_second_one(helm: Helm) -> None:
    second = helm.render("gpuloom")
    alone = helm.render(
        "gpuloom", "--set", "scheduler.enabled=false", "--set", "global.scheduler.second=false"
    )

    for service in ("controller", "webhook"):
        setting = f"GPULOOM_{service.upper()}_SCHEDULER_NAME"
        assert settings_of(second, f"gpuloom-{service}")[setting] == "gpuloom-scheduler"
        assert setting not in settings_of(alone, f"gpuloom-{service}")
    with pytest.raises(HelmError, match=r"global\.scheduler\.second"):
        helm.render("gpuloom", "--set", "scheduler.enabled=false")


@pytest.mark.parametrize("enabled", ["true", "false"])
def test_without_agents_nothing_is_made_in_their_namespace(helm: Helm, enabled: str) -> None:
    documents = helm.render(
        "gpuloom", *set_values({"node-agent.enabled": enabled, "monitoring.enabled": "true"})
    )

    there = {one["metadata"].get("namespace") for one in documents}
    assert ("gpuloom-system-agents" in there) == (enabled == "true")
    # Nor is a certificate meant for there.
    assert ("gpuloom-system-agents" in yaml.safe_dump_all(documents)) == (enabled == "true")


def test_a_controller_of_one_namespace_has_rights_there_alone(helm: Helm) -> None:
    documents = helm.render("gpuloom", "--set", "controller.settings.GPULOOM_CONTROLLER_NAMESPACE=team-a")

    bound = [
        one
        for one in documents
        if one["kind"] in ("RoleBinding", "ClusterRoleBinding")
        and any(subject["name"] == "gpuloom-controller" for subject in one["subjects"])
    ]
    role = next(
        one for one in documents if one["kind"] == "Role" and one["metadata"]["namespace"] == "team-a"
    )
    assert {one["kind"] for one in bound} == {"RoleBinding"}
    assert "nodes" not in {resource for rule in role["rules"] for resource in rule["resources"]}
