"""The alert rules of deploy/monitoring say what they should, by promtool, on metrics that there are."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry

from services.scheduler_extender.metrics import ExtenderMetrics

RULES = Path(__file__).parents[2] / "deploy" / "monitoring" / "rules" / "gpuloom.yaml"
CASES = Path(__file__).with_name("rules.yaml")


@pytest.mark.real
def test_promtool_finds_every_alert_when_and_only_when_it_is_due(programs: Path, tmp_path: Path) -> None:
    cases = tmp_path / "rules.yaml"
    cases.write_text(CASES.read_text().replace("- RULES", f"- {RULES}"))

    done = subprocess.run(  # noqa: S603
        [programs / "promtool", "test", "rules", cases], capture_output=True, timeout=60, check=False
    )

    assert (done.returncode, done.stderr.decode()) == (0, "")


def test_every_metric_of_a_rule_is_one_that_a_service_has() -> None:
    registry = CollectorRegistry()
    ExtenderMetrics(registry)
    known = {family.name for family in registry.collect()}
    rules = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]

    assert all(set(re.findall(r"gpuloom_\w+", rule["expr"])) <= known for rule in rules)
    assert all(rule["annotations"].keys() == {"summary", "description"} for rule in rules)
