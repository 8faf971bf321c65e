"""`gpuloom optimize` beside `gpuloom run`: what wastes its GPU is found, and its change is taken."""

import json
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
import yaml

from gpuloom.sim.workloads.wasteful import NAME, wasteful_deployment
from tests.scenarios.test_questions import asked
from tests.scenarios.test_run_command import LONGEST_RUN_S, running, wait_for_line

NAMESPACE = "research"
FOUND_AFTER_S = 120.0
RUNNING_AFTER_S = FOLLOWED_AFTER_S = 60.0
JOB, POD = "wasteful-job", "wasteful-pod"


class Run:
    """A run as its user sees it: its Kubernetes API, and the command line beside it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._api = json.loads((directory / "endpoints.json").read_text())["kubernetes"]

    def call(self, method: str, path: str, document: dict[str, Any] | None = None) -> tuple[int, Any]:
        kind = "application/strategic-merge-patch+json" if method == "PATCH" else "application/json"
        body = None if document is None else json.dumps(document).encode()
        request = Request(f"{self._api}{path}", body, {"Content-Type": kind}, method=method)  # noqa: S310
        try:
            with urlopen(request, timeout=10.0) as answer:  # noqa: S310 - our own address
                return answer.status, json.load(answer)
        except HTTPError as error:
            return error.code, error.read().decode()

    def waste(self) -> dict[str, dict[str, Any]]:
        """Those for whom something better is known, by name."""
        found = asked(self._directory, "optimize", "-o", "json")
        report = json.loads(found.stdout) if found.returncode == 0 else {"pods": []}
        return {each["pod"]["name"]: each for each in report["pods"] if each["recommended"]}

    def is_made(self, path: str, manifest: dict[str, Any]) -> bool:
        return self.call("POST", path, manifest)[0] == 201

    def runs(self, stem: str) -> bool:
        _, listed = self.call("GET", f"/api/v1/namespaces/{NAMESPACE}/pods")
        pods = [item for item in listed["items"] if item["metadata"]["name"].startswith(stem)]
        return any(item.get("status", {}).get("phase") == "Running" for item in pods)

    def table(self, *arguments: str) -> str:
        return asked(self._directory, "optimize", *arguments).stdout

    def change(self, pod: str) -> dict[str, Any]:
        document = yaml.safe_load(self.table("--pod", f"{NAMESPACE}/{pod}", "--yaml"))
        assert isinstance(document, dict)
        return document


def batch_of_waste() -> dict[str, dict[str, Any]]:
    """A Job and a bare pod like the wasteful Deployment of the played workload, by where they are made."""
    template = wasteful_deployment(NAMESPACE)["spec"]["template"]
    spec = {**template["spec"], "restartPolicy": "Never"}
    job = {"template": {"metadata": template["metadata"], "spec": spec}}
    return {
        f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs": {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": JOB},
            "spec": job,
        },
        f"/api/v1/namespaces/{NAMESPACE}/pods": {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {**template["metadata"], "name": POD},
            "spec": spec,
        },
    }


def within(limit_s: float, look: Callable[[], Any]) -> Any:
    """What is found first, of something that takes its time in other processes."""
    end_s = time.monotonic() + limit_s
    while time.monotonic() < end_s:
        found = look()
        if found:
            return found
        time.sleep(1.0)
    return look()


@pytest.mark.real
@pytest.mark.timeout(400)
def test_waste_is_found_within_two_minutes_with_a_change_that_passes_a_dry_run(run_directory: Path) -> None:
    options = ("--nodes", "4", "--rate", "2", "--dir", str(run_directory), "--headless", "--no-faults")
    with running(*options) as process:
        wait_for_line(process, "everything is up")
        run = Run(run_directory)
        for path, manifest in batch_of_waste().items():
            assert within(30.0, partial(run.is_made, path, manifest))

        names = (NAME, JOB, POD)
        assert within(RUNNING_AFTER_S, lambda: all(run.runs(name) for name in names))
        found = within(FOUND_AFTER_S, lambda: all_of(run.waste(), names))
        assert found, run.table()
        serving, job, pod = found
        deployments = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{NAME}"
        jobs, pods = batch_of_waste()
        patch = run.change(serving)
        tried = [
            run.call("PATCH", f"{deployments}?dryRun=All", patch),
            run.call("POST", f"{jobs}?dryRun=All", run.change(job)),
            run.call("POST", f"{pods}?dryRun=All", run.change(pod)),
        ]
        header = run.table().splitlines()[0].split()
        applied = run.call("PATCH", deployments, patch)
        followed = within(FOLLOWED_AFTER_S, lambda: "applied 20" in followers(run, serving))

        process.send_signal(signal.SIGINT)
        process.communicate(timeout=LONGEST_RUN_S)

    assert header == ["POD", "SCORE", "GPU-UTIL", "NOW", "RECOMMENDED", "SAVING/MONTH", "CONFIDENCE"]
    assert [status for status, _ in tried] == [200, 201, 201], tried
    assert [answer["metadata"]["name"] for _, answer in tried] == [
        NAME,
        f"{JOB}-right-sized",
        f"{POD}-right-sized",
    ]
    assert applied[0] == 200
    assert followed


def all_of(waste: dict[str, dict[str, Any]], stems: tuple[str, ...]) -> list[str]:
    """One pod of each, if all are there, with what it wastes and what that would save."""
    pods = [next((name for name in sorted(waste) if name.startswith(stem)), "") for stem in stems]
    complete = all(pods) and all(
        waste[name]["score"] > 0 and waste[name]["saving_nano_usd"] is not None for name in pods
    )
    return pods if complete else []


def followers(run: Run, before: str) -> str:
    """What is said of the pods that came in place of one."""
    _, listed = run.call("GET", f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector=app%3D{NAME}")
    names = [item["metadata"]["name"] for item in listed["items"] if item["metadata"]["name"] != before]
    return "".join(run.table("--pod", f"{NAMESPACE}/{name}") for name in names)
