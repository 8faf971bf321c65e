"""Are the rights of our accounts minimal? Compared with what a real API server's audit log says was used.

    GPULOOM_RIGHTS_DIR=DIR pytest …                control planes of these tests log what our accounts do
    python -m tests.cluster.rights DIR [--write]   fails on a refusal, and on a right that nothing used

`deploy/charts/RIGHTS.md` names for each right the test that uses it; `--write` writes it anew.
"""

import argparse
import os
import sys
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "deploy" / "charts" / "RIGHTS.md"
RIGHTS_DIR = "GPULOOM_RIGHTS_DIR"
NAMESPACES = ("gpuloom-system", "gpuloom-system-agents")
# They try on purpose what is refused.
ON_PURPOSE = ("tests/cluster/test_rbac.py", "tests/cluster/test_admission.py", "tests/charts/test_setup.py")
FORBIDDEN = 403
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

Every right that a chart's `rbac.yaml` gives, and a test in which a real API server saw it used. One that is
refused to a service, or that nothing uses, fails `make test-real`. Written by
`python -m tests.cluster.rights DIR --write`.

| account | verb | resource | where | used by |
|---|---|---|---|---|
"""


@dataclass(frozen=True, order=True)
class Right:
    """`namespace` is empty for all of them; `name` for any object."""

    account: str
    verb: str
    resource: str
    """`group/plural/subresource`, without the parts that it does not have."""
    namespace: str = ""
    name: str = ""

    def covers(self, use: "Use") -> bool:
        return (
            (self.account, self.verb, self.resource) == (use.account, use.verb, use.resource)
            and self.namespace in ("", use.namespace)
            and self.name in ("", use.name)
        )

    def place(self) -> str:
        named = f"`{self.name}`" if self.name else "any"
        return f"{named} in {self.namespace}" if self.namespace else f"{named}, everywhere"

    def row(self, test: str) -> str:
        return f"| {self.account} | {self.verb} | {self.resource} | {self.place()} | {test} |\n"


@dataclass(frozen=True)
class Use:
    account: str
    verb: str
    resource: str
    namespace: str
    name: str
    code: int
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
    if folder := os.environ.get(RIGHTS_DIR):
        Path(folder).mkdir(parents=True, exist_ok=True)
        with (Path(folder) / f"tests-{os.getpid()}.log").open("a", encoding="utf-8") as log:
            log.write(f"{time.time()} {request.node.nodeid.partition('[')[0]}\n")


def granted(manifest: Path = ROOT / "deploy" / "manifests" / "rbac.yaml") -> list[Right]:
    documents = list(yaml.safe_load_all(manifest.read_text(encoding="utf-8")))
    bindings = [one for one in documents if one["kind"].endswith("Binding")]
    return sorted(
        Right(subject["name"], verb, resource, role["metadata"].get("namespace", ""), name)
        for role in documents
        if role["kind"] in ("Role", "ClusterRole")
        for binding in bindings
        if _binds(binding, role)
        for subject in binding["subjects"]
        for rule in role["rules"]
        for verb in rule["verbs"]
        for resource in _resources(rule)
        for name in rule.get("resourceNames") or [""]
    )


def used(folder: Path) -> Iterator[Use]:
    starts = sorted(
        (float(at), test)
        for path in folder.glob("tests-*.log")
        for at, _, test in (line.partition(" ") for line in path.read_text(encoding="utf-8").splitlines())
    )
    times = [at for at, _ in starts]
    for path in sorted(folder.glob("audit-*.log")):
        for line in path.read_bytes().splitlines():
            event = orjson.loads(line)
            if event.get("objectRef") is None:
                continue
            number = bisect_right(times, _time_of(event)) - 1
            yield _use(event, starts[number][1] if number >= 0 else "")


def refused(uses: Iterable[Use]) -> set[str]:
    return {
        f"{use.account} may not {use.verb} {use.resource} {use.namespace}/{use.name} in {use.test}"
        for use in uses
        if use.code == FORBIDDEN and not use.test.startswith(ON_PURPOSE)
    }


def tests_of(right: Right, uses: Iterable[Use]) -> list[str]:
    """Those in which a service itself used it come first."""
    if inside := ASKED_FOR_INSIDE.get((right.verb, right.resource)):
        return [inside]
    found = {use.test for use in uses if use.code != FORBIDDEN and right.covers(use)}
    return sorted(found, key=lambda test: (test.startswith(ON_PURPOSE), test))


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare the rights of our accounts with their use.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", action="store_true", help=f"write {TABLE.name} anew")
    options = parser.parse_args()
    uses = list(dict.fromkeys(used(options.folder)))
    proofs = {right: tests_of(right, uses) for right in granted()}
    problems = sorted(refused(uses))
    problems += [f"nothing used: {right}" for right, tests in proofs.items() if not tests]
    rows = "".join(right.row(tests[0]) for right, tests in proofs.items() if tests)
    if options.write:
        TABLE.write_text(_HEAD + rows, encoding="utf-8")
    problems += _problems_of_the_table(proofs)
    sys.stdout.write("".join(f"{problem}\n" for problem in problems))
    sys.stdout.write(f"{len(proofs)} rights, {len(uses)} different calls, {len(problems)} problems\n")
    return 1 if problems else 0


def _problems_of_the_table(proofs: Mapping[Right, list[str]]) -> list[str]:
    lines = TABLE.read_text(encoding="utf-8").splitlines(keepends=True) if TABLE.exists() else []
    rows = {line for line in lines if line.startswith("| gpuloom-")}
    true_rows = {right.row(test) for right, tests in proofs.items() for test in tests}
    missing = [right for right, tests in proofs.items() if not {right.row(test) for test in tests} & rows]
    return [
        *(f"{TABLE.name} names no test that used: {right}" for right in missing),
        *(f"{TABLE.name} has a row that is not true: {row.strip()}" for row in sorted(rows - true_rows)),
    ]


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
        code=(event.get("responseStatus") or {}).get("code", 0),
        test=test,
    )


def _time_of(event: Mapping[str, Any]) -> float:
    return datetime.fromisoformat(event["requestReceivedTimestamp"]).timestamp()


if __name__ == "__main__":
    sys.exit(main())
