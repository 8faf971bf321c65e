"""What people add to pods: every pod of ours takes it."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.charts.test_rendering import container, only, preset
from tests.cluster.helm import CHARTS, Document, Helm, set_values

pytestmark = pytest.mark.real

OF_A_POD: dict[str, Any] = {
    "podAnnotations": {"sidecar.istio.io/inject": "false"},
    "podLabels": {"team": "gpu"},
    "nodeSelector": {"pool": "system"},
    "tolerations": [{"key": "system", "operator": "Exists"}],
    "affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
    "priorityClassName": "first",
    "imagePullSecrets": [{"name": "mirror"}],
}
PARTS = sorted(
    {path.parent.name for path in CHARTS.glob("*/Chart.yaml")} - {"common", "gpuloom", "gpu-autoscaler"}
)


def templates(documents: list[Document]) -> dict[str, Document]:
    """Of every pod, by what makes it."""
    made = [one for one in documents if one["kind"] in ("Deployment", "DaemonSet", "Job", "CronJob")]
    return {
        f"{one['kind']} {one['metadata']['name']}": one["spec"].get("jobTemplate", one)["spec"]["template"]
        for one in made
    }


def test_every_pod_takes_what_people_add_to_pods(helm: Helm, tmp_path: Path) -> None:
    values = dict.fromkeys(PARTS, OF_A_POD) | {"monitoring": {**OF_A_POD, "enabled": True}}
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")

    made = templates(helm.render("gpuloom", "-f", str(tmp_path / "values.yaml")))

    assert len(made) > len(PARTS)
    for name, template in made.items():
        spec = template["spec"]
        assert template["metadata"]["annotations"].items() >= OF_A_POD["podAnnotations"].items(), name
        assert template["metadata"]["labels"].items() >= OF_A_POD["podLabels"].items(), name
        assert OF_A_POD["tolerations"][0] in spec["tolerations"], name
        assert spec["affinity"].items() >= OF_A_POD["affinity"].items(), name
        for taken in ("nodeSelector", "priorityClassName", "imagePullSecrets"):
            assert spec[taken] == OF_A_POD[taken], name


def test_pull_secrets_and_tolerations_of_the_whole_are_those_of_every_pod(helm: Helm) -> None:
    options = ("global.imagePullSecrets[0].name=mirror", "global.tolerations[0].operator=Exists")

    made = templates(
        helm.render(
            "gpuloom", *(part for one in (*options, "monitoring.enabled=true") for part in ("--set", one))
        )
    )

    for name, template in made.items():
        assert template["spec"]["imagePullSecrets"] == [{"name": "mirror"}], name
        assert {"operator": "Exists"} in template["spec"]["tolerations"], name


def test_the_autoscaler_keeps_its_clouds_beside_variables_of_yours(helm: Helm) -> None:
    documents = helm.render("gpuloom", "--set", "autoscaler.extraEnvFrom[0].secretRef.name=aws")

    sources = container(documents, "gpuloom-autoscaler")["envFrom"]
    assert {"secretRef": {"name": "aws"}} in sources
    assert {"configMapRef": {"name": "gpuloom-autoscaling-clouds", "optional": True}} in sources


@pytest.mark.parametrize("service", ["autoscaler", "controller", "console"])
def test_whoever_asks_prometheus_takes_its_credentials_from_a_secret(helm: Helm, service: str) -> None:
    secret = {"name": "reader", "tokenKey": "token", "caKey": "ca.crt"}
    values = {f"{service}.options.prometheusSecret.{key}": value for key, value in secret.items()}

    documents = helm.render(
        "gpuloom", *set_values({**values, f"{service}.settings.GPULOOM_LOG_LEVEL": "debug"})
    )

    pod = only(documents, "Deployment", f"gpuloom-{service}")["spec"]["template"]["spec"]
    told = {one["name"]: one.get("value") for one in container(documents, f"gpuloom-{service}")["env"]}
    (mount,) = (one for one in pod["containers"][0]["volumeMounts"] if one["name"] == "prometheus")
    (volume,) = (one for one in pod["volumes"] if one["name"] == "prometheus")
    assert volume["secret"]["secretName"] == "reader"
    assert told["GPULOOM_PROMETHEUS_TOKEN_FILE"] == f"{mount['mountPath']}/token"
    assert told["GPULOOM_PROMETHEUS_CA_FILE"] == f"{mount['mountPath']}/ca.crt"
    assert "GPULOOM_PROMETHEUS_PASSWORD_FILE" not in told
    assert told["GPULOOM_LOG_LEVEL"] == "debug"


def test_a_variable_that_is_said_twice_is_told_once_as_you_say_it(helm: Helm, tmp_path: Path) -> None:
    secret = {"secretKeyRef": {"name": "database", "key": "url"}}
    values = {
        "cost-engine": {"extraEnv": [{"name": "GPULOOM_DATABASE_URL", "valueFrom": secret}]},
        "autoscaler": {"env": [{"name": "A", "value": "1"}], "extraEnv": [{"name": "A", "value": "2"}]},
    }
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")

    documents = helm.render("gpuloom", "-f", str(tmp_path / "values.yaml"))

    engine, autoscaler = (container(documents, f"gpuloom-{name}")["env"] for name in values)
    assert [one["valueFrom"] for one in engine if one["name"] == "GPULOOM_DATABASE_URL"] == [secret]
    assert [one["value"] for one in autoscaler if one["name"] == "A"] == ["2"]


def test_a_share_of_a_pool_that_was_set_in_the_shell_is_a_number(helm: Helm) -> None:
    values = "autoscaling.enabled=true,autoscaling.provider=aws,autoscaling.nodePools[0].name=a"

    documents = helm.render("gpuloom", "--set", f"{values},autoscaling.nodePools[0].spotPercentage=0.5")

    pools = only(documents, "AutoscalingPolicy", "default")["spec"]["nodePools"]
    assert pools == [{"name": "a", "spotPercentage": 0.5}]


def test_google_lets_agents_in_only_where_a_quota_counts_their_priority_class(helm: Helm) -> None:
    documents = helm.render("gpuloom", *preset("gcp"))

    (agents,) = (one for one in documents if one["kind"] == "DaemonSet")
    (quota,) = (one for one in documents if one["kind"] == "ResourceQuota")
    assert quota["metadata"]["namespace"] == agents["metadata"]["namespace"]
    assert quota["spec"]["scopeSelector"]["matchExpressions"] == [
        {
            "scopeName": "PriorityClass",
            "operator": "In",
            "values": [agents["spec"]["template"]["spec"]["priorityClassName"]],
        }
    ]
    assert not [one for one in helm.render("gpuloom") if one["kind"] == "ResourceQuota"]
