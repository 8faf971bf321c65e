"""The example for Argo CD names what is there, and ignores the fields that others write."""

from pathlib import Path

import yaml

ROOT = Path(__file__).parents[3]
APPLICATION = yaml.safe_load((ROOT / "examples" / "argocd" / "gpuloom.yaml").read_text(encoding="utf-8"))


def test_the_application_points_at_the_chart_and_a_preset_that_exist() -> None:
    source = APPLICATION["spec"]["source"]

    assert (ROOT / source["path"] / "Chart.yaml").exists()
    assert all((ROOT / source["path"] / name).exists() for name in source["helm"]["valueFiles"])


def test_drift_of_every_ca_bundle_is_ignored() -> None:
    ignored = {one["kind"] for one in APPLICATION["spec"]["ignoreDifferences"]}

    assert ignored == {
        "MutatingWebhookConfiguration",
        "ValidatingWebhookConfiguration",
        "APIService",
        "CustomResourceDefinition",
    }
    for one in APPLICATION["spec"]["ignoreDifferences"]:
        assert all(path.endswith("caBundle") for path in one["jqPathExpressions"])
