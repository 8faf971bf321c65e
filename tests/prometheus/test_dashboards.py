"""The committed dashboards are what their definitions give, and Grafana can load all of them together."""

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.prometheus.queries import DASHBOARDS, MONITORING, Selector, selectors

DOCUMENTS = {path.name: json.loads(path.read_text()) for path in sorted(DASHBOARDS.glob("*.json"))}

each_dashboard = pytest.mark.parametrize("document", DOCUMENTS.values(), ids=DOCUMENTS)


def test_the_files_are_what_their_definitions_give() -> None:
    command = [sys.executable, str(MONITORING / "generate.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)  # noqa: S603

    assert (done.returncode, done.stderr) == (0, "")


def test_no_two_dashboards_share_an_identity() -> None:
    identities = [document[key] for document in DOCUMENTS.values() for key in ("uid", "title")]

    assert len(set(identities)) == len(identities)


@each_dashboard
def test_panels_don_t_overlap_and_ask_the_chosen_data_source(document: dict[str, Any]) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in document["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & taken
        taken |= cells
        assert panel["type"] == "row" or panel["datasource"]["uid"] == "${datasource}"
    assert len({panel["id"] for panel in document["panels"]}) == len(document["panels"])


@each_dashboard
def test_a_link_leads_to_a_dashboard_that_there_is(document: dict[str, Any]) -> None:
    known = {other["uid"]: other for other in DOCUMENTS.values()}
    for panel in document["panels"]:
        for link in panel.get("fieldConfig", {}).get("defaults", {}).get("links", ()):
            uid, _, variable = link["url"].removeprefix("/d/").partition("?var-")
            names = {entry["name"] for entry in known[uid]["templating"]["list"]}
            assert variable.partition("=")[0] in names


def test_selectors_are_found_in_any_expression() -> None:
    expression = (
        'histogram_quantile(0.9, sum by (le, x) (rate(a_bucket{b="-", c=~"d|e"}[5m])))'
        " / on (job) group_left (service) f:g:h offset 5m > bool 1 or absent(i == 1)"
        ' and increase(sum({__name__=~"j.+", k!="l"})[15m:1m])'
    )

    assert selectors(expression) == [
        Selector("a_bucket", (("b", "=", "-"), ("c", "=~", "d|e"))),
        Selector("f:g:h", ()),
        Selector("i", ()),
        Selector("", (("__name__", "=~", "j.+"), ("k", "!=", "l"))),
    ]
