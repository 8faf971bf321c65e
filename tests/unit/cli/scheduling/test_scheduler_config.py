from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuloom.catalog import load_catalog
from gpuloom.cli.main import exit_code_of
from gpuloom.cli.scheduling.scheduler_config import (
    DEFAULT_SCHEDULER,
    REPLACE_DEFAULT,
    TIMEOUT_S,
    SchedulerConfigOptions,
    TlsPaths,
    render_scheduler_config,
)
from services.scheduler_extender.config import ExtenderConfig

DEPLOY = Path(__file__).parents[4] / "deploy"
SECOND = "kube-scheduler-config.yaml"
REPLACEMENT = "kube-scheduler-config.replace-default.yaml"


def rendered(options: SchedulerConfigOptions) -> dict[str, Any]:
    document = yaml.safe_load(render_scheduler_config(options))
    assert isinstance(document, dict)
    return document


def committed(name: str) -> str:
    return (DEPLOY / "scheduler" / name).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "arguments", "options"),
    [
        (SECOND, [], SchedulerConfigOptions()),
        (REPLACEMENT, ["--replace-default"], REPLACE_DEFAULT),
    ],
)
def test_the_files_in_deploy_are_what_the_command_prints(
    name: str, arguments: list[str], options: SchedulerConfigOptions, capsys: pytest.CaptureFixture[str]
) -> None:
    code = exit_code_of(["scheduler-config", *arguments])

    assert (code, capsys.readouterr().out) == (0, committed(name))
    assert committed(name) == render_scheduler_config(options)


def test_replacing_the_default_under_another_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    code = exit_code_of(["scheduler-config", "--replace-default", "--scheduler-name", "mine"])

    assert code == 2
    assert "exclude each other" in capsys.readouterr().err


def the_extender(options: SchedulerConfigOptions) -> dict[str, Any]:
    (entry,) = rendered(options)["extenders"]
    assert isinstance(entry, dict)
    return entry


def test_one_entry_has_all_four_verbs() -> None:
    entry = the_extender(SchedulerConfigOptions())

    verbs = {key: value for key, value in entry.items() if key.endswith("Verb")}
    assert verbs == {
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "preemptVerb": "preempt",
        "bindVerb": "bind",
    }


def test_a_failing_extender_keeps_gpu_pods_waiting_and_nodes_are_sent_by_name() -> None:
    entry = the_extender(SchedulerConfigOptions())

    assert entry["ignorable"] is False
    assert entry["nodeCacheCapable"] is True


def test_every_resource_of_the_catalogue_is_managed_and_still_counted_by_kube_scheduler() -> None:
    wanted = [{"name": name, "ignoredByScheduler": False} for name in load_catalog().managed_resources()]

    assert the_extender(SchedulerConfigOptions())["managedResources"] == wanted


def test_kube_scheduler_waits_longer_for_a_bind_than_the_extender_does() -> None:
    defaults: dict[str, Any] = {field.name: field.default for field in fields(ExtenderConfig)}

    assert the_extender(SchedulerConfigOptions())["httpTimeout"] == f"{TIMEOUT_S}s"
    assert defaults["bind_timeout_s"] < TIMEOUT_S


def test_one_step_of_the_extenders_score_outweighs_all_own_scores() -> None:
    highest_own_sum = 1200

    assert the_extender(SchedulerConfigOptions())["weight"] * 10 > highest_own_sum


def test_a_second_scheduler_has_a_lease_of_its_own_and_a_replacement_takes_the_old_one() -> None:
    second = rendered(SchedulerConfigOptions())
    replacement = rendered(SchedulerConfigOptions(scheduler_name=DEFAULT_SCHEDULER))

    assert second["profiles"] == [{"schedulerName": "gpuloom-scheduler"}]
    assert second["leaderElection"] == {
        "leaderElect": True,
        "resourceName": "gpuloom-scheduler",
        "resourceNamespace": "gpuloom-system",
    }
    assert replacement["profiles"] == [{"schedulerName": "default-scheduler"}]
    assert replacement["leaderElection"]["resourceName"] == "kube-scheduler"
    assert replacement["leaderElection"]["resourceNamespace"] == "kube-system"


def test_a_kubeconfig_is_named_only_outside_a_pod() -> None:
    inside = rendered(SchedulerConfigOptions())
    outside = rendered(SchedulerConfigOptions(kubeconfig="/etc/kubernetes/scheduler.conf"))

    assert "kubeconfig" not in inside["clientConnection"]
    assert outside["clientConnection"]["kubeconfig"] == "/etc/kubernetes/scheduler.conf"


def test_it_shows_its_certificate_and_expects_the_extenders_name() -> None:
    options = SchedulerConfigOptions("https://10.0.0.1:8443", TlsPaths("/c", "/k", "/a"))

    entry = the_extender(options)

    assert entry["urlPrefix"] == "https://10.0.0.1:8443"
    assert entry["tlsConfig"] == {
        "serverName": "scheduler-extender.gpuloom",
        "certFile": "/c",
        "keyFile": "/k",
        "caFile": "/a",
    }


def test_the_command_prints_the_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    code = exit_code_of(["scheduler-config", "--tls-folder", "/tls/", "--scheduler-name", "mine"])

    printed = yaml.safe_load(capsys.readouterr().out)
    assert code == 0
    assert printed["profiles"] == [{"schedulerName": "mine"}]
    assert printed["extenders"][0]["tlsConfig"]["caFile"] == "/tls/ca.crt"
