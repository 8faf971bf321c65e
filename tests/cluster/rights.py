"""Are the rights of our accounts minimal? Compared with what a real API server's audit log says was used.

    GPULOOM_RIGHTS_DIR=DIR pytest -m real …      control planes of these tests log what our accounts do
    python -m tests.cluster.rights DIR           fails on a refusal, and where the table is wrong
    python -m tests.cluster.rights DIR --full    after a run of all tests: on what nothing used, too
    python -m tests.cluster.rights DIR --write   first adds rows for what was used, be it by a few tests

`deploy/charts/RIGHTS.md` is the table: for each right that a chart gives, one test that uses it. Whether it
has just these rows, and whether their tests exist, needs no API server: `tests/unit/deploy/test_rights.py`.
"""

import argparse
import ast
import os
import re
import sys
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "deploy" / "charts" / "RIGHTS.md"
RIGHTS_DIR = "GPULOOM_RIGHTS_DIR"
NAMESPACES = ("gpuloom-system", "gpuloom-system-agents")
# They try on purpose what is refused, with helpers of their own.
ON_PURPOSE = ("tests/cluster/test_rbac.py", "tests/cluster/test_admission.py", "tests/charts/test_setup.py")
# An uninstall deletes roles and pods together, and a pod goes on for the moments that its end takes.
UNINSTALLING = "an uninstall"
FEW = 2
# What the API server asks for by itself while it handles another call: no call of that name is logged.
ASKED_FOR_INSIDE = {
    ("update", "gpu.warp.dev/gpuworkloads/finalizers"): "an owner reference that blocks the owner's deletion",
}

_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "Metadata", "userGroups": [f"system:serviceaccounts:{name}" for name in NAMESPACES]},
        {"level": "None"},
    ],
}
_HEAD = """\
# What each right is used for

Every right that a chart's `rbac.yaml` gives, and a test in which a real API server saw it used. `make test`
fails on a right without a row and on a row whose test is not there, `make test-real` on a right that is
refused to a service, `make rights` also on one that nothing used. To add one: give it in `rbac.yaml`, run
`make manifests`, and add its row by hand, or let it be written from a run of its test:

```
GPULOOM_RIGHTS_DIR=.cache/rights pytest -m real tests/cluster/test_….py
python -m tests.cluster.rights .cache/rights --write
```

| account | verb | resource | where | used by |
|---|---|---|---|---|
"""
_ROW = re.compile(r"(?P<right>\| gpuloom-[^|]*\|[^|]*\|[^|]*\|[^|]*\|) (?P<test>[^|]*) \|")


@dataclass(frozen=True, order=True)
class Right:
    """`namespace` is empty for all of them; `names` for any object."""

    account: str
    verb: str
    resource: str
    """`group/plural/subresource`, without the parts that it does not have."""
    namespace: str = ""
    names: tuple[str, ...] = ()

    def covers(self, use: "Use") -> bool:
        return (
            (self.account, self.verb, self.resource) == (use.account, use.verb, use.resource)
            and self.namespace in ("", use.namespace)
            and (not self.names or use.name in self.names)
        )

    def place(self) -> str:
        # Many names are a list that grows with every service, which is no right of another kind.
        few = ", ".join(f"`{name}`" for name in self.names)
        named = (few if len(self.names) <= FEW else "its own") if self.names else "any"
        return f"{named} in {self.namespace}" if self.namespace else f"{named}, everywhere"

    def cells(self) -> str:
        """The start of its row, by which the table knows it."""
        return f"| {self.account} | {self.verb} | {self.resource} | {self.place()} |"


@dataclass(frozen=True)
class Use:
    account: str
    verb: str
    resource: str
    namespace: str
    name: str
    refused: bool
    """By its rights; what admission refuses needs them all the same."""
    test: str


def audit_flags(folder: Path, port: int, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Flags of an API server; none unless rights are watched."""
    if not environ.get(RIGHTS_DIR):
        return {}
    kept = Path(environ[RIGHTS_DIR]).absolute()
    kept.mkdir(parents=True, exist_ok=True)
    policy = folder / "audit-policy.yaml"
    policy.write_text(yaml.safe_dump(_POLICY), encoding="utf-8")
    log = kept / f"audit-{os.getpid()}-{port}.log"
    return {"audit-policy-file": str(policy), "audit-log-path": str(log), "audit-log-maxsize": "1000"}


@pytest.fixture(autouse=True)
def _note_the_test(request: pytest.FixtureRequest) -> None:
    """Which test runs from when on; for all tests, because control planes are used in several folders."""
    _note(request.node.nodeid.partition("[")[0])


def rights_are_taken_away() -> None:
    """From here to the end of the test nothing that is refused tells of a missing right."""
    _note(UNINSTALLING)


def _note(name: str) -> None:
    if folder := os.environ.get(RIGHTS_DIR):
        Path(folder).mkdir(parents=True, exist_ok=True)
        with (Path(folder) / f"tests-{os.getpid()}.log").open("a", encoding="utf-8") as log:
            log.write(f"{time.time()} {name}\n")


def granted(manifest: Path = ROOT / "deploy" / "manifests" / "rbac.yaml") -> list[Right]:
    documents = list(yaml.safe_load_all(manifest.read_text(encoding="utf-8")))
    bindings = [one for one in documents if one["kind"].endswith("Binding")]
    return sorted(
        Right(subject["name"], verb, resource, role["metadata"].get("namespace", ""), names)
        for role in documents
        if role["kind"] in ("Role", "ClusterRole")
        for binding in bindings
        if _binds(binding, role)
        for subject in binding["subjects"]
        for rule in role["rules"]
        for verb in rule["verbs"]
        for resource in _resources(rule)
        for names in [tuple(rule.get("resourceNames") or ())]
    )


def used(folder: Path) -> Iterator[Use]:
    """A process runs one test at a time, and starts the control planes that this test asks."""
    for path in sorted(folder.glob("audit-*.log")):
        process = path.name.split("-")[1]
        notes = folder / f"tests-{process}.log"
        lines = notes.read_text(encoding="utf-8").splitlines() if notes.exists() else []
        starts = [(float(at), test) for at, _, test in (line.partition(" ") for line in lines)]
        times = [at for at, _ in starts]
        for line in path.read_bytes().splitlines():
            event = orjson.loads(line)
            if event.get("objectRef") is None:
                continue
            number = bisect_right(times, _time_of(event)) - 1
            yield _use(event, starts[number][1] if number >= 0 else "")


def refused(uses: Iterable[Use]) -> set[str]:
    return {
        f"REFUSED: {use.account} may not {use.verb} {use.resource} {use.namespace}/{use.name}, asked for in "
        f"{use.test}: give it in the rbac.yaml of its chart (and run make manifests), or don't ask for it, "
        "or let the test say that it expects NotAllowedError"
        for use in uses
        if use.refused and not tries_on_purpose(use.test)
    }


@cache
def tries_on_purpose(test: str) -> bool:
    """Its own text says so, or that of its whole file."""
    return test.startswith((*ON_PURPOSE, UNINSTALLING)) or "NotAllowedError" in _text_of(test)


def unused(proofs: Mapping[Right, list[str]]) -> list[str]:
    return [
        f"UNUSED: {right.cells()} take it out of the rbac.yaml of its chart, or test what needs it"
        for right, tests in proofs.items()
        if not tests
    ]


def users_of(right: Right, uses: Iterable[Use]) -> list[str]:
    """Those in which a service itself used it come first."""
    if inside := ASKED_FOR_INSIDE.get((right.verb, right.resource)):
        return [inside]
    asked = (use for use in uses if not use.refused and use.test != UNINSTALLING)
    found = {use.test for use in asked if right.covers(use)}
    return sorted(found, key=lambda test: (test.startswith(ON_PURPOSE), test))


def table(text: str) -> dict[str, str]:
    """The test of each right, by the right's cells."""
    rows = (_ROW.fullmatch(line) for line in text.splitlines())
    return {row["right"]: row["test"] for row in rows if row}


def problems_of_the_table(rows: Mapping[str, str], rights: Iterable[Right]) -> list[str]:
    """Each says what to do about it."""
    given = {right.cells() for right in rights}
    missing, needless = given - rows.keys(), rows.keys() - given
    vanished = {test for test in rows.values() if test not in ASKED_FOR_INSIDE.values() and not _exists(test)}
    return [
        *(f"NO ROW: add to {TABLE.name}, with a test that uses it: {cells} TEST |" for cells in missing),
        *(f"NOT GIVEN by any chart: take out of {TABLE.name}: {cells}" for cells in needless),
        *(f"NO SUCH TEST: name another one in {TABLE.name} than {test}" for test in vanished),
    ]


def unconfirmed(rows: Mapping[str, str], proofs: Mapping[Right, list[str]]) -> list[str]:
    return [
        f"NOT USED BY ITS TEST: name {tests[0]} in the row {right.cells()} {rows[right.cells()]} |"
        for right, tests in proofs.items()
        if tests and rows.get(right.cells(), tests[0]) not in tests
    ]


def written(rows: Mapping[str, str], proofs: Mapping[Right, list[str]], *, full: bool = False) -> str:
    """Rows that are there stay; after a run of all tests, only if it confirmed them or knows no better."""
    text = _HEAD
    for right, tests in proofs.items():
        row = rows.get(right.cells())
        test = row if row and (row in tests or not tests or not full) else next(iter(tests), None)
        text += f"{right.cells()} {test} |\n" if test else ""
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare the rights of our accounts with their use.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--full", action="store_true", help="all tests ran: what nothing used is not needed")
    parser.add_argument("--write", action="store_true", help=f"first add to {TABLE.name} what was used")
    options = parser.parse_args()
    uses = list(dict.fromkeys(used(options.folder)))
    proofs = {right: users_of(right, uses) for right in granted()}
    if options.write:
        TABLE.write_text(written(read_table(), proofs, full=options.full), encoding="utf-8")
    problems = sorted(refused(uses)) + sorted(problems_of_the_table(read_table(), proofs))
    notes = unused(proofs) + unconfirmed(read_table(), proofs)
    if options.full:
        problems += notes
    else:
        sys.stdout.write("".join(f"not a failure here: {note}\n" for note in notes))
    sys.stdout.write("".join(f"{problem}\n" for problem in problems))
    sys.stdout.write(f"{len(proofs)} rights, {len(uses)} different calls, {len(problems)} problems\n")
    return 1 if problems else 0


def read_table() -> dict[str, str]:
    return table(TABLE.read_text(encoding="utf-8")) if TABLE.exists() else {}


def _exists(test: str) -> bool:
    return bool(_text_of(test))


def _text_of(test: str) -> str:
    """The function; empty if there is none of that name."""
    path, _, name = test.partition("::")
    return _functions(path).get(name.rpartition("::")[2], "")


@cache
def _functions(path: str) -> Mapping[str, str]:
    """Their text by name."""
    file = ROOT / path
    tree = ast.parse(file.read_text(encoding="utf-8")) if file.is_file() else ast.Module([], [])
    nodes = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return {node.name: ast.unparse(node) for node in nodes}


def _binds(binding: Mapping[str, Any], role: Mapping[str, Any]) -> bool:
    names = (binding["roleRef"]["kind"], binding["roleRef"]["name"], binding["metadata"].get("namespace"))
    return names == (role["kind"], role["metadata"]["name"], role["metadata"].get("namespace"))


def _resources(rule: Mapping[str, Any]) -> Iterator[str]:
    for group in rule["apiGroups"]:
        for resource in rule["resources"]:
            yield f"{group}/{resource}" if group else resource


def _use(event: Mapping[str, Any], test: str) -> Use:
    about = event["objectRef"]
    parts = (about.get("apiGroup", ""), about["resource"], about.get("subresource", ""))
    return Use(
        account=event["user"]["username"].rpartition(":")[2],
        verb=event["verb"],
        resource="/".join(part for part in parts if part),
        namespace=about.get("namespace", ""),
        name=about.get("name", ""),
        refused=(event.get("annotations") or {}).get("authorization.k8s.io/decision") == "forbid",
        test=test,
    )


def _time_of(event: Mapping[str, Any]) -> float:
    return datetime.fromisoformat(event["requestReceivedTimestamp"]).timestamp()


if __name__ == "__main__":
    sys.exit(main())
