"""--watch and -o wide, which all commands that show what is now have alike."""

from datetime import UTC, datetime
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from gpuloom.cli import main as cli
from gpuloom.cli.commands import autoscaler, mig, optimize, workloads
from gpuloom.cli.costs import cost
from gpuloom.cli.nodes import status
from gpuloom.cli.scheduling import holds, plans
from gpuloom.model.autoscaling import (
    AutoscalerStanding,
    ClaimStanding,
    InferenceStanding,
    PolicyStanding,
    ScalingRecord,
)
from gpuloom.model.claims import HoldOwner
from gpuloom.model.cost import BudgetReport, PriceList
from gpuloom.model.ledger import Hold
from gpuloom.model.mig_cards import MigCard, MigCards
from gpuloom.model.node import PodRef
from gpuloom.model.optimization import PodWaste, WasteParts, WasteReport
from gpuloom.model.planning import GangReport, ReservationReport
from gpuloom.model.sharing import MigStage
from gpuloom.model.snapshot import ClusterSnapshot, NodePlace
from gpuloom.model.version import StreamVersion
from gpuloom.model.workload_row import WorkloadRow
from tests.unit.cli.nodes.test_node_pictures import a_node

NOW = datetime(2026, 11, 19, tzinfo=UTC)
POLICY = PolicyStanding(*("gpus", "sim", True, False, 1, 2, 3, 4, 0.5, "grows", 0.0, 0.0), *(0.75, 0.9, ()))
CLAIM = ClaimStanding("c1", "pool", "p4d", "zone-a", "spot", "Ready", "n1", 8, None, None, "is at work")
SERVED = InferenceStanding(
    *("team", "chat", "Deployment/chat", "active", 1, 4, 2, 3, 2, 1, "", "grows", NOW, None, 42.0, ())
)
PLACE = NodePlace(zone="zone-a", capacity_type="spot", instance_type="p4d.24xlarge")
CLUSTER = ClusterSnapshot(StreamVersion("e", 1), {"u": a_node(place=PLACE)})
ROW = WorkloadRow("team", "train", "llama", 8, "high", "pack", "Running", "n1", "train-x7", 0, "")

# What is asked, what is answered, and what only `wide` shows of it.
COMMANDS: list[tuple[str, ModuleType, Any, str]] = [
    ("status", status, CLUSTER, "p4d.24xlarge"),
    ("gangs", plans, (GangReport("team/g", "Waiting", 4, 4, 0, 0, 0, deadline=NOW),), "2026-11-19T00:00:00Z"),
    ("reserve list", plans, (ReservationReport("team", "r", start=NOW),), "2026-11-19T00:00:00Z"),
    ("holds", holds, (Hold("h1", "n1", HoldOwner("Node", "n1"), "repair"),), ""),
    ("workloads", workloads, ((ROW,), 1), "train-x7"),
    ("mig list", mig, MigCards((MigCard("n1", "GPU-7", 0, "A100", MigStage.MIG_ENABLED, 8),)), "GPU-7"),
    (
        "optimize",
        optimize,
        WasteReport((PodWaste(PodRef("team", "p", "u"), "Job/train", WasteParts(), "1 GPU"),)),
        "Job/train",
    ),
    ("autoscaler status", autoscaler, AutoscalerStanding((POLICY,), (CLAIM,), 0.0), "is at work"),
    ("autoscaler history", autoscaler, (ScalingRecord(NOW, "p", "up", "q", 1, "", ("c1",), 0),), "c1"),
    ("autoscaler inference", autoscaler, (SERVED,), "COLD-START"),
    ("cost prices", cost, PriceList(()), ""),
]


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Whatever a command asks is answered so; who waits for the third answer presses Ctrl-C."""
    left = iter((None,))

    def sleep(_seconds: float) -> None:
        if next(left, KeyboardInterrupt) is KeyboardInterrupt:
            raise KeyboardInterrupt

    def answer(module: ModuleType, found: Any) -> None:
        monkeypatch.setattr("gpuloom.cli.output.forms.time", SimpleNamespace(sleep=sleep))
        monkeypatch.setattr(module, "find_endpoint", lambda *_: None)
        monkeypatch.setattr(module, "read_cluster" if module is status else "ask", lambda *_: found)

    return answer


@pytest.mark.parametrize(("command", "module", "found"), [each[:3] for each in COMMANDS])
def test_a_command_that_is_watched_answers_again_and_clears_no_pipe(
    command: str,
    module: ModuleType,
    found: Any,
    answered: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    answered(module, found)
    assert cli.exit_code_of(command.split()) == 0
    once = capsys.readouterr().out

    code = cli.exit_code_of([*command.split(), "--watch"])

    assert code == 130
    assert capsys.readouterr().out == once * 2


@pytest.mark.parametrize(("command", "module", "found", "wide"), [each for each in COMMANDS if each[3]])
def test_wide_shows_more(
    command: str, module: ModuleType, found: Any, wide: str, answered: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    answered(module, found)
    cli.exit_code_of(command.split())
    table = capsys.readouterr().out.splitlines()

    cli.exit_code_of([*command.split(), "-o", "wide"])

    shown = capsys.readouterr().out.splitlines()
    assert wide in "\n".join(shown)
    assert wide not in "\n".join(table)
    assert set(table[0].split()) < set(shown[0].split())


def test_on_a_terminal_each_answer_replaces_the_one_before(
    answered: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answered(plans, ())
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)

    cli.exit_code_of(["gangs", "--watch"])

    assert capsys.readouterr().out == "\x1b[H\x1b[2Jthere are no gangs\n" * 2


def test_answers_in_yaml_are_documents_of_their_own(
    answered: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    answered(plans, ())

    cli.exit_code_of(["gangs", "--watch", "-o", "yaml"])

    assert capsys.readouterr().out == "---\n[]\n" * 2


def test_an_exceeded_budget_is_a_no(answered: Any, capsys: pytest.CaptureFixture[str]) -> None:
    answered(cost, (BudgetReport("b", "monthly", NOW, NOW, 1, 2, 2, 2, 2, "Exceeded", "alert"),))

    assert cli.exit_code_of(["cost", "budgets"]) == 1
    assert "Exceeded" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", ["cost --watch --export csv", "optimize --watch --pod a/b"])
def test_what_can_not_be_watched_is_wrong_usage(arguments: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.exit_code_of([*arguments.split(), "--dir", "nowhere"]) == 2
    assert "--watch" in capsys.readouterr().err
