"""What `gpuloom explain` and `gpuloom whatif` show, and how they fail before they ask anybody."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import orjson
import pytest

from gpuloom.cli.connection.endpoints import find_endpoint
from gpuloom.cli.main import exit_code_of
from gpuloom.cli.scheduling.explain import explanation_lines, parse_pod
from gpuloom.cli.scheduling.whatif import forecast_lines, is_fine
from gpuloom.errors import InvalidRequestError
from gpuloom.model.allocation import AllocatedDevice
from gpuloom.model.explanation import (
    Change,
    Explanation,
    Forecast,
    Judgement,
    NearMiss,
    Offer,
    PodStanding,
    QuarantineNotice,
    ReasonCount,
)
from gpuloom.model.gpu import DeviceRef
from gpuloom.model.ledger import Decision, NodeScore, Verdict
from gpuloom.model.mig import MigPlacement
from gpuloom.model.node import PodRef
from gpuloom.sim.mesh.run_directory import open_run_directory

NOW = datetime(2026, 1, 1, 12, 30, tzinfo=UTC)
POD = PodRef("team", "train", "uid")
WHOLE = AllocatedDevice(DeviceRef("GPU-1"), 1000, 40_960)
SHARE = AllocatedDevice(DeviceRef("GPU-2"), 500, 20_480)
SLICE = AllocatedDevice(DeviceRef("GPU-3", MigPlacement(4, "3g.20gb")), 500, 20_096)
OFFER = Offer("n1", (WHOLE,), 81.25, 50.0, 90.0, 100.0)
REFUSED = Judgement(
    12,
    0,
    reasons=(
        ReasonCount("not enough free GPUs: 4 asked", 11, resolvable=True),
        ReasonCount("node closed: the agent is silent", 1, resolvable=False),
    ),
    near_misses=(NearMiss("n7", "2 of 4 GPUs free"),),
    changes=(Change("nvidia.com/gpu: 2 instead of nvidia.com/gpu: 4", 1, "n7"),),
)


def shown(explanation: Explanation) -> str:
    return "\n".join(explanation_lines(explanation))


def test_a_refused_pod_is_explained_from_reasons_to_changes() -> None:
    explanation = Explanation(
        POD,
        PodStanding.REFUSED,
        request="nvidia.com/gpu: 4",
        judgement=REFUSED,
        decisions=(Decision(NOW, POD, Verdict.REFUSED, reason="12 no room"),),
        note="Not all is judged.",
    )

    assert shown(explanation).splitlines() == [
        "team/train: waits; none of 12 nodes would take it",
        "asks for nvidia.com/gpu: 4",
        "",
        "why not:",
        "  11 nodes: not enough free GPUs: 4 asked; room may come back",
        "   1 node: node closed: the agent is silent",
        "",
        "nearest:",
        "  n7: 2 of 4 GPUs free",
        "",
        "would fit:",
        "  nvidia.com/gpu: 2 instead of nvidia.com/gpu: 4 (1 node, best n7)",
        "",
        "last decisions:",
        "  12:30:00 UTC refused: 12 no room",
        "",
        "Not all is judged.",
    ]


def test_a_pod_that_fits_has_its_scores_in_a_table() -> None:
    explanation = Explanation(POD, PodStanding.FITS, judgement=Judgement(12, 3, (OFFER,)))

    lines = shown(explanation).splitlines()

    assert lines[0] == "team/train: waits; 3 of 12 nodes would take it"
    assert lines[2].split() == ["NODE", "TOTAL", "TOPOLOGY", "RESOURCE", "BALANCE", "DEVICES"]
    assert lines[3].split() == ["n1", "81.2", "50.0", "90.0", "100.0", "GPU-1"]


@pytest.mark.parametrize(
    ("explanation", "text"),
    [
        (Explanation(POD, PodStanding.UNMANAGED), "asks for no GPU that GPULoom manages"),
        (Explanation(POD, PodStanding.BOUND, node_name="n1"), "bound to n1"),
        (Explanation(POD, PodStanding.ENDED, node_name="n1"), "ended on n1"),
        (Explanation(POD, PodStanding.ENDED), "team/train: ended"),
        (Explanation(POD, PodStanding.REFUSED, problem="bad"), "no node may have it\nproblem: bad"),
        (
            Explanation(POD, PodStanding.BOUND, devices=(WHOLE, SHARE, SLICE)),
            "has GPU-1, GPU-2 500 milli, 20480 MiB, GPU-3 3g.20gb at 4",
        ),
        (
            Explanation(POD, PodStanding.REFUSED, quarantine=QuarantineNotice(NOW, 4, whole_controller=True)),
            "train: waits; its binds keep failing\n"
            "quarantine: all pods of its controller, until 2026-01-01 12:30:00 UTC, after 4 failed binds",
        ),
    ],
)
def test_every_standing_has_its_words(explanation: Explanation, text: str) -> None:
    assert text in shown(explanation)


def test_a_forecast_groups_replicas_by_node_and_says_why_the_next_does_not_fit() -> None:
    other = replace(OFFER, node_name="n2", devices=(SHARE,))
    forecast = Forecast(4, "nvidia.com/gpu: 1", "", (OFFER, other, OFFER), REFUSED, "note")

    lines = list(forecast_lines("Job train", forecast))

    assert lines[0] == "Job train: 3 of 4 would fit"
    assert [line.split() for line in lines[3:6]] == [
        ["NODE", "PODS", "DEVICES"],
        ["n1", "2", "2", "x", "GPU-1"],
        ["n2", "1", "GPU-2", "500", "milli,", "20480", "MiB"],
    ]
    assert "the next one fits on none of 12 nodes" in lines
    assert not is_fine(forecast)


@pytest.mark.parametrize(
    ("forecast", "fine", "text"),
    [
        (Forecast(1, "asks", placed=(OFFER,)), True, "Pod p: 1 of 1 would fit"),
        (Forecast(1), True, "Pod p: asks for no GPU"),
        (Forecast(1, problem="senseless"), False, "problem: senseless"),
        (Forecast(1, "asks", judgement=REFUSED), False, "Pod p: 0 of 1 would fit"),
    ],
)
def test_a_forecast_is_fine_if_nothing_stands_in_the_way(forecast: Forecast, fine: bool, text: str) -> None:
    assert is_fine(forecast) is fine
    assert text in "\n".join(forecast_lines("Pod p", forecast))


def test_a_pod_is_named_with_or_without_its_namespace() -> None:
    assert parse_pod("team/train") == PodRef("team", "train", "")
    assert parse_pod("train") == PodRef("default", "train", "")


@pytest.mark.parametrize("text", ["", "/", "team/", "/train", "a/b/c"])
def test_what_names_no_pod_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="NAMESPACE/NAME"):
        parse_pod(text)


def test_the_extender_of_a_run_is_found_in_its_directory(tmp_path: Path) -> None:
    document = {
        "discovery": "127.0.0.1:1",
        "scheduler_extender": "127.0.0.1:2",
        "certificate": "c",
        "key": "k",
        "authority": "a",
    }
    with open_run_directory(tmp_path, ["n1"]) as directory:
        directory.endpoints_file.write_bytes(orjson.dumps(document))

        found = find_endpoint("scheduler_extender", "", tmp_path, {})

    assert (found.service, found.address) == ("scheduler_extender", "127.0.0.1:2")
    assert found.tls["GPULOOM_TLS_CERT_FILE"] == "c"


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (["explain", "pod", "a/b/c"], 2, "name a pod as NAMESPACE/NAME, not a/b/c"),
        (["explain", "pod", "a/b", "--extender", "nowhere"], 2, "--extender: "),
        (["explain", "pod", "a/b"], 3, "no mesh runs in"),
        (["explain"], 2, "gpuloom explain: Missing command"),
        (["explain", "node", "a"], 2, "No such command 'node'"),
        (["whatif"], 2, "Missing option '--filename'"),
        (["whatif", "-f", "absent.yaml"], 2, "No such file"),
        (["whatif", "-f", "pod.yaml", "--replicas", "0"], 2, "greater than or equal to 1"),
        (["whatif", "-f", "pod.yaml", "--replicas", "1001"], 2, "less than or equal to 1000"),
        (["whatif", "-f", "service.yaml"], 2, "give a Pod (v1)"),
        (["whatif", "-f", "pod.yaml"], 3, "no mesh runs in"),
    ],
)
def test_a_failure_is_one_line_and_its_exit_code(
    arguments: list[str],
    code: int,
    complaint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pod.yaml").write_text("{apiVersion: v1, kind: Pod, spec: {containers: []}}", encoding="utf-8")
    Path("service.yaml").write_text("{apiVersion: v1, kind: Service}", encoding="utf-8")

    found = exit_code_of(arguments)

    said = capsys.readouterr().err
    assert (found, said.count("\n")) == (code, 1), said
    assert complaint in said


def test_a_bound_pod_shows_the_scores_of_its_node_and_of_the_runners_up() -> None:
    scores = (NodeScore("n1", 81.25, 50.0, 90.0, 100.0), NodeScore("n2", 80.0, 50.0, 88.0, 98.0))
    decision = Decision(NOW, POD, Verdict.BOUND, "n1", (WHOLE,), scores=scores)

    lines = shown(
        Explanation(POD, PodStanding.BOUND, node_name="n1", devices=(WHOLE,), decisions=(decision,))
    )

    assert lines.splitlines()[3:7] == [
        "why n1: the best score when it was chosen",
        "NODE  TOTAL  TOPOLOGY  RESOURCE  BALANCE",
        "n1    81.2   50.0      90.0      100.0",
        "n2    80.0   50.0      88.0      98.0",
    ]


def test_another_scheduler_and_misspelled_names_are_told_before_anything_else() -> None:
    explanation = Explanation(
        POD,
        PodStanding.OTHER_SCHEDULER,
        request="nvidia.com/gpu: 4",
        problem="the pod names the scheduler 'volcano'",
        judgement=REFUSED,
        warnings=("annotation gpuloom.dev/topolgy means nothing",),
    )

    assert shown(explanation).splitlines()[:4] == [
        "team/train: waits for a scheduler that does not ask GPULoom",
        "asks for nvidia.com/gpu: 4",
        "problem: the pod names the scheduler 'volcano'",
        "warning: annotation gpuloom.dev/topolgy means nothing",
    ]
