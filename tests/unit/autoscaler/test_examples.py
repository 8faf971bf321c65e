"""The printed examples are what the code reads."""

import json
from pathlib import Path

import yaml

from gpuloom.codec.custom.autoscaling import autoscaling_policy
from gpuloom.model.policies import CapacityType, CloudProvider
from services.autoscaler.core.buying.offerings import Book
from services.autoscaler.core.buying.table import Market, offering_table
from services.autoscaler.core.lifecycle.machines import CloudView, Group
from tests.unit.autoscaler.builders import CATALOG, NOW

ROOT = Path(__file__).parents[3]
PHASE3 = ROOT / "examples/phase3"


def test_the_printed_policy_gives_one_offering_for_its_group_by_the_smallest_type() -> None:
    policy = autoscaling_policy(yaml.safe_load((PHASE3 / "autoscaling-policy.yaml").read_text()))
    group = Group("gpu-spot-asg", "spot-pool", 0, 50, zones=("us-west-2a", "us-west-2b", "us-west-2c"))

    table = offering_table(
        policy.spec, Market(CloudView(CloudProvider.AWS, groups=(group,))), CATALOG, Book(), NOW
    )
    without = offering_table(policy.spec, Market(CloudView(CloudProvider.AWS)), CATALOG, Book(), NOW)

    (offering,) = table.offerings
    assert offering.key.instance_type == "p3.2xlarge"
    assert offering.key.capacity_type is CapacityType.SPOT
    assert offering.estimated
    assert "spot-pool" in without.problems


def test_the_dashboard_example_is_the_shipped_dashboard() -> None:
    example = yaml.safe_load((PHASE3 / "grafana-dashboard.yaml").read_text())
    shipped = json.loads((ROOT / "deploy/monitoring/dashboards/autoscaling.json").read_text())

    assert json.loads(example["data"]["autoscaling.json"]) == shipped
