"""Write docs/runbooks.md from deploy/monitoring, by `make reference`. Decides how it reads."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "runbooks.md"
MONITORING = ROOT / "deploy" / "monitoring"
_INTRODUCTION = """# Runbooks

<!-- Made by `make reference` from deploy/monitoring; change rules and runbooks.yaml there, not this page. -->

Every alert that GPULoom ships, by name: what it means, where to look, what to do. `gpuloom doctor` is
a good first step for all of them."""
_VALUE = re.compile(r"\{\{\s*\$(?:labels\.(\w+)|value)[^}]*\}\}")


def alerts() -> dict[str, Any]:
    """Each alert's rule by its name."""
    files = sorted((MONITORING / "rules").glob("*.yaml"))
    groups = [group for path in files for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]]
    return {rule["alert"]: rule for group in groups for rule in group["rules"] if "alert" in rule}


def steps() -> dict[str, Any]:
    return dict(yaml.safe_load((MONITORING / "runbooks.yaml").read_text(encoding="utf-8")))


def page() -> str:
    known = steps()
    sections = ["\n".join(_section(name, rule, known[name])) for name, rule in sorted(alerts().items())]
    return "\n\n".join([_INTRODUCTION, *sections]) + "\n"


def _section(name: str, rule: dict[str, Any], known: dict[str, list[str]]) -> Iterator[str]:
    annotations = rule["annotations"]
    waits = f", after {rule['for']}" if "for" in rule else ""
    yield f"## {name}"
    yield ""
    summary, description = _plain(annotations["summary"]), _plain(annotations["description"])
    yield f"*{rule['labels']['severity']}{waits}.* **{summary}.** {description}"
    yield ""
    yield from (f"- Look: {line}" for line in known["look"])
    yield from (f"- Mend: {line}" for line in known["mend"])


def _plain(text: str) -> str:
    """Without the templates of Prometheus: the name of the label, or N."""
    return _VALUE.sub(lambda match: f"*{match[1] or 'N'}*", " ".join(text.split())).rstrip()


if __name__ == "__main__":
    TARGET.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"{TARGET.relative_to(ROOT)}\n")
