"""Writes Grafana's dashboards from the short definitions beside it, so that all of them look and link alike.

    python deploy/monitoring/generate.py [--check]

A definition says what is asked and in which unit; this file alone knows Grafana's model. Equal definitions
give equal files.
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
DEFINITIONS = HERE / "definitions"
DASHBOARDS = HERE / "dashboards"
TAG = "gpuloom"

_COLUMNS = 24
_HEIGHTS = {"stat": 4, "time": 8, "heat": 8, "table": 8}
_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
_KEYS = {"uid", "title", "description", "variables", "rows"}
_PANEL_KEYS = {"title", "description", "kind", "unit", "width", "queries", "links", "thresholds"}
_DRAWING = {
    "drawStyle": "line",
    "lineWidth": 1,
    "fillOpacity": 10,
    "showPoints": "never",
    # A gap is not known; a line through it would be a guess.
    "spanNulls": False,
}


def main(arguments: Sequence[str]) -> int:
    """0 if all is written, or, with --check, if all files are what the definitions give."""
    wrong = []
    for name, text in sorted(dashboards().items()):
        path = DASHBOARDS / name
        if "--check" not in arguments:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            wrong.append(f"{path.name} is not what its definition gives")
    known = {*dashboards()}
    wrong += [f"{path.name} has no definition" for path in DASHBOARDS.iterdir() if path.name not in known]
    for line in wrong:
        sys.stderr.write(f"{line}; run make dashboards\n")
    return 1 if wrong else 0


def dashboards() -> dict[str, str]:
    """The text of each file, by its name."""
    return {
        path.with_suffix(".json").name: json.dumps(
            dashboard(yaml.safe_load(path.read_text(encoding="utf-8"))), indent=2, ensure_ascii=False
        )
        + "\n"
        for path in sorted(DEFINITIONS.glob("*.yaml"))
    }


def dashboard(definition: Mapping[str, Any]) -> dict[str, Any]:
    """Raise ValueError if the definition has a key that nobody knows."""
    _refuse_unknown(definition, _KEYS)
    return {
        "uid": definition["uid"],
        "title": f"GPULoom / {definition['title']}",
        "description": definition["description"],
        "tags": [TAG],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "browser",
        "links": [
            {
                "type": "dashboards",
                "title": "GPULoom",
                "tags": [TAG],
                "asDropdown": True,
                "includeVars": True,
                "keepTime": True,
            }
        ],
        "templating": {"list": [_datasource(), *_variables(definition.get("variables") or {})]},
        "annotations": {"list": []},
        "panels": list(_panels(definition["rows"])),
    }


def _panels(rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    number, top = 1, 0
    for row in rows:
        grid = {"x": 0, "y": top, "w": _COLUMNS, "h": 1}
        yield {
            "id": number,
            "type": "row",
            "title": row["title"],
            "collapsed": False,
            "gridPos": grid,
            "panels": [],
        }
        number, top, left, tallest = number + 1, top + 1, 0, 0
        for panel in row["panels"]:
            width, height = panel.get("width", 8), _HEIGHTS[panel["kind"]]
            if left + width > _COLUMNS:
                left, top, tallest = 0, top + tallest, 0
            yield {
                "id": number,
                **_panel(panel),
                "gridPos": {"x": left, "y": top, "w": width, "h": height},
            }
            number, left, tallest = number + 1, left + width, max(tallest, height)
        top += tallest


def _panel(panel: Mapping[str, Any]) -> dict[str, Any]:
    _refuse_unknown(panel, _PANEL_KEYS)
    kind = panel["kind"]
    targets = [
        {"refId": chr(ord("A") + number), **_target(kind, legend, expression)}
        for number, (legend, expression) in enumerate(panel["queries"].items())
    ]
    defaults: dict[str, Any] = {"unit": panel.get("unit", "short"), "thresholds": _thresholds(panel)}
    if panel.get("unit") == "percentunit":
        defaults |= {"min": 0, "max": 1}
    if kind == "time":
        defaults["custom"] = _DRAWING
    if kind == "heat":
        defaults["color"] = {"mode": "continuous-GrYlRd"}
    if panel.get("links"):
        defaults["links"] = [{"title": title, "url": url} for title, url in panel["links"].items()]
    return {
        "type": {"time": "timeseries", "heat": "status-history"}.get(kind, kind),
        "title": panel["title"],
        "description": panel.get("description", ""),
        "datasource": _DATASOURCE,
        "targets": targets,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": _options(kind),
        **({"transformations": _as_table()} if kind == "table" else {}),
    }


def _target(kind: str, legend: str, expression: str) -> dict[str, Any]:
    at_once = kind in ("stat", "table")
    return {
        "datasource": _DATASOURCE,
        "expr": " ".join(expression.split()),
        "legendFormat": legend,
        "instant": at_once,
        "range": not at_once,
        **({"format": "table"} if kind == "table" else {}),
    }


def _options(kind: str) -> dict[str, Any]:
    if kind == "stat":
        reduced = {"calcs": ["lastNotNull"], "fields": "", "values": False}
        return {"colorMode": "value", "graphMode": "none", "reduceOptions": reduced, "textMode": "auto"}
    if kind == "time":
        legend = {"displayMode": "table", "placement": "bottom", "calcs": ["mean", "max"]}
        return {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}
    return {"showValue": "never", "rowHeight": 0.9} if kind == "heat" else {"showHeader": True}


def _thresholds(panel: Mapping[str, Any]) -> dict[str, Any]:
    """`thresholds` are two values: from the first on it is yellow, from the second on red."""
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    colours = zip(("yellow", "red"), panel.get("thresholds") or (), strict=False)
    return {"mode": "absolute", "steps": steps + [{"color": name, "value": at} for name, at in colours]}


def _as_table() -> list[dict[str, Any]]:
    return [{"id": "merge", "options": {}}, {"id": "organize", "options": {"excludeByName": {"Time": True}}}]


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _variables(variables: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    for name, query in variables.items():
        yield {
            "name": name,
            "label": name.capitalize(),
            "type": "query",
            "datasource": _DATASOURCE,
            "query": {"query": query, "refId": name},
            "refresh": 2,
            "sort": 1,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
        }


def _refuse_unknown(mapping: Mapping[str, Any], known: set[str]) -> None:
    unknown = sorted(set(mapping) - known)
    if unknown:
        raise ValueError(
            f"{mapping.get('title')}: unknown key {unknown[0]}; known are {', '.join(sorted(known))}"
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
