"""The definitions themselves: what every one of them must have, and the page that is made from them."""

import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuloom.catalog.manifests import definitions, priority_classes
from gpuloom.kube.resources import CUSTOM_RESOURCES, Resource

ROOT = Path(__file__).parents[3]
DEFINITIONS = pytest.mark.parametrize(
    "definition", definitions(), ids=[one["spec"]["names"]["kind"] for one in definitions()]
)


def nodes(schema: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for key, one in (schema.get("properties") or {}).items():
        if path or key in ("spec", "status"):
            yield from nodes(one, f"{path}.{key}")
    for key in ("items", "additionalProperties"):
        if key in schema:
            yield from nodes(schema[key], f"{path}[]")


def test_the_resources_that_services_use_are_those_that_are_defined() -> None:
    defined = {
        Resource(
            one["spec"]["group"],
            one["spec"]["versions"][0]["name"],
            one["spec"]["names"]["plural"],
            one["spec"]["names"]["kind"],
            one["spec"]["scope"] == "Namespaced",
        )
        for one in definitions()
    }

    assert set(CUSTOM_RESOURCES) == defined


@DEFINITIONS
def test_every_definition_has_a_status_columns_and_bounds(definition: dict[str, Any]) -> None:
    spec = definition["spec"]
    (version,) = spec["versions"]
    schema = version["schema"]["openAPIV3Schema"]

    assert version["subresources"]["status"] == {}
    assert version["additionalPrinterColumns"][-1]["name"] == "Age"
    assert spec["names"]["shortNames"]
    for path, one in nodes(schema, ""):
        assert "description" in one or path.endswith("[]"), path
        if one["type"] == "string" and "enum" not in one and "format" not in one:
            assert "maxLength" in one, path
        if one["type"] == "array":
            assert "maxItems" in one, path


def test_priorities_have_the_values_that_are_documented() -> None:
    values = {one["metadata"]["name"]: one["value"] for one in priority_classes()}

    assert values == {"gpuloom-low": 1_000, "gpuloom-medium": 100_000, "gpuloom-high": 1_000_000}


def test_the_reference_is_what_the_definitions_give() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "generate_custom_resources.py"))

    assert (ROOT / "docs" / "custom-resources.md").read_text("utf-8") == made["reference"](), "make reference"
