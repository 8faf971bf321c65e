"""Every rule file of deploy/monitoring says what its cases want, by promtool; no alert is without a case.

Cases are in `rules/`, one file for each file of rules, with promtool's `tests`. They say which alerts are
due, with their labels; what an alert says to people is left out of the comparison.
"""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.prometheus.programs import require_alertmanager

MONITORING = Path(__file__).parents[2] / "deploy" / "monitoring"
RULES = sorted((MONITORING / "rules").glob("*.yaml"))
CASES = Path(__file__).with_name("rules")
SEVERITIES = {"critical", "warning", "info", "none"}

each_file = pytest.mark.parametrize("path", RULES, ids=lambda path: path.stem)


@pytest.mark.real
@each_file
def test_promtool_finds_every_alert_when_and_only_when_it_is_due(
    path: Path, programs: Path, tmp_path: Path
) -> None:
    wordless = tmp_path / "rules.yaml"
    wordless.write_text(yaml.safe_dump(_without_words(_read(path))))
    cases = {"rule_files": [str(wordless)], "evaluation_interval": "1m", **_read(CASES / path.name)}
    for test in _alert_tests(path):
        assert all(alert.keys() == {"exp_labels"} for alert in test.get("exp_alerts") or ()), test
    (tmp_path / "cases.yaml").write_text(yaml.safe_dump(cases))

    checked = _run(programs / "promtool", "check", "rules", path)
    tested = _run(programs / "promtool", "test", "rules", tmp_path / "cases.yaml")

    assert (checked.returncode, checked.stderr) == (0, "")
    assert (tested.returncode, tested.stderr) == (0, "")


@each_file
def test_each_alert_has_a_case_in_which_it_fires_and_one_in_which_it_is_silent(path: Path) -> None:
    cases = _alert_tests(path)
    fires = {test["alertname"] for test in cases if test.get("exp_alerts")}
    silent = {test["alertname"] for test in cases if not test.get("exp_alerts")}
    always = {rule["alert"] for rule in _alerts(path) if rule["expr"] == "vector(1)"}

    names = {rule["alert"] for rule in _alerts(path)}
    assert fires == names
    assert silent == names - always


@each_file
def test_an_alert_says_how_bad_it_is_what_is_wrong_and_what_to_do(path: Path) -> None:
    for rule in _alerts(path):
        assert rule["alert"].startswith("GPULoom")
        assert rule["labels"]["severity"] in SEVERITIES
        assert rule["annotations"].keys() == {"summary", "description"}


@each_file
def test_no_series_of_a_case_is_a_number_by_accident(path: Path) -> None:
    """YAML reads 0x20 as 32 unless it is quoted."""
    series = [entry for case in _read(CASES / path.name)["tests"] for entry in case.get("input_series", ())]

    assert [entry for entry in series if not isinstance(entry["values"], str)] == []


def test_names_of_rules_are_unique() -> None:
    names = [rule.get("alert") or rule["record"] for path in RULES for rule in _rules(path)]
    groups = [group["name"] for path in RULES for group in _read(path)["groups"]]

    assert len(names) == len(set(names))
    assert len(groups) == len(set(groups))


@pytest.mark.real
@pytest.mark.parametrize(
    ("labels", "receivers"),
    [
        (["severity=critical"], "on-call,slack"),
        (["severity=warning"], "slack"),
        (["severity=none", "alertname=GPULoomWatchdog"], "heartbeat"),
    ],
)
def test_alertmanagers_example_is_valid_and_routes_by_severity(labels: list[str], receivers: str) -> None:
    amtool, config = require_alertmanager() / "amtool", MONITORING / "alertmanager.yaml"

    checked = _run(amtool, "check-config", config)
    routed = _run(amtool, "config", "routes", "test", f"--config.file={config}", *labels)

    assert checked.returncode == 0, checked.stderr
    assert routed.stdout.strip() == receivers


def _alert_tests(path: Path) -> list[dict[str, Any]]:
    return [test for case in _read(CASES / path.name)["tests"] for test in case.get("alert_rule_test", ())]


def _alerts(path: Path) -> list[dict[str, Any]]:
    return [rule for rule in _rules(path) if "alert" in rule]


def _rules(path: Path) -> list[dict[str, Any]]:
    return [rule for group in _read(path)["groups"] for rule in group["rules"]]


def _without_words(document: dict[str, Any]) -> dict[str, Any]:
    for group in document["groups"]:
        for rule in group["rules"]:
            rule.pop("annotations", None)
    return document


def _read(path: Path) -> dict[str, Any]:
    return dict(yaml.safe_load(path.read_text(encoding="utf-8")))


def _run(*command: object) -> "subprocess.CompletedProcess[str]":
    words = [str(word) for word in command]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)  # noqa: S603
