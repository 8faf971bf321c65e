"""Rules, the dashboard and the examples are about what there is."""

import json
import re
from pathlib import Path

import yaml
from prometheus_client import CollectorRegistry

from gpuloom.codec.custom.budget import cost_budget
from services.cost_engine.core.teams import parse_rules
from services.cost_engine.metrics import CostMetrics, OpenCostMetrics
from services.cost_engine.prices.catalogue import custom_prices

ROOT = Path(__file__).parents[3]
NAME = re.compile(r"gpuloom_cost_engine_\w+")


def known_names() -> set[str]:
    registry = CollectorRegistry()
    CostMetrics(registry)
    OpenCostMetrics(registry)
    families = list(registry.collect())
    suffixes = ("", "_total", "_bucket", "_sum", "_count")
    return {f"{family.name}{suffix}" for family in families for suffix in suffixes}


def test_every_metric_of_a_rule_or_a_panel_is_one_that_the_engine_has() -> None:
    rules = yaml.safe_load((ROOT / "deploy/monitoring/rules/cost-engine.yaml").read_text())
    dashboard = json.loads((ROOT / "deploy/monitoring/dashboards/cost.json").read_text())
    expressions = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    expressions += [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]

    asked = {name for expression in expressions for name in NAME.findall(expression)}

    assert len(asked) > 8
    assert asked <= known_names()


def test_the_examples_are_understood() -> None:
    folder = ROOT / "examples/cost"

    rules = parse_rules((folder / "teams.toml").read_text())
    prices = custom_prices((folder / "prices.toml").read_text())
    budget = cost_budget(yaml.safe_load((folder / "budget.yaml").read_text()))

    assert (len(rules), len(prices), budget.spec.enforcement.grace_period_minutes) == (3, 2, 60)
