"""What `gpuloom mig` prints."""

import pytest

from gpuloom.cli.commands.mig import card_lines, demand_of, plan_lines
from gpuloom.errors import InvalidRequestError
from gpuloom.model.mig import MigPlacement
from gpuloom.model.mig_cards import (
    MigCard,
    MigCards,
    MigSlice,
    PlannedCard,
    PlannedFit,
    PlannedMove,
    WaitingPod,
)
from gpuloom.model.node import PodRef
from gpuloom.model.sharing import MigStage

LARGE, SMALL = MigPlacement(0, "3g.20gb"), MigPlacement(6, "1g.5gb")


def test_a_card_is_drawn_slice_by_slice_with_who_has_what() -> None:
    slices = (
        MigSlice(LARGE, 4, MigStage.IN_USE, "team/train"),
        MigSlice(SMALL, 1, MigStage.PARTITION_CREATED),
    )
    card = MigCard("n1", "GPU-a", 2, "A100-SXM4-40GB", MigStage.MIG_ENABLED, 8, slices, "its agent is at it")
    waiting = WaitingPod(PodRef("team", "infer", "uid"), "1g.5gb", "1g.5gb is being made on n1")

    text = "\n".join(card_lines(MigCards((card,), (waiting,))))

    assert "MIGEnabled  -       ####..*." in text
    assert "InUse             team/train  its agent is at it" in text
    assert "team/infer  1g.5gb   1g.5gb is being made on n1" in text


def test_a_plan_reads_as_what_is_done_and_what_is_missing() -> None:
    move = PlannedMove("team/small", SMALL, 1.5)
    step = PlannedCard("n1", "GPU-a", (move,), (SMALL,), (MigPlacement(4, "3g.20gb"),))
    fit = PlannedFit((step,), {"3g.20gb": 1}, {"7g.40gb": 1}, ("team/small",))

    lines = list(plan_lines(fit, {"3g.20gb": 2, "7g.40gb": 1}))

    assert lines == [
        "to fit 2 x 3g.20gb, 1 x 7g.40gb (1 x 3g.20gb free already):",
        "  node n1, GPU GPU-a",
        "    move team/small away from 1g.5gb at 6 ($1.50 of work lost)",
        "    make 3g.20gb at 4",
        "1 pod has to move: $1.50 of work lost",
        "no place now for team/small: they would wait",
        "does not fit, whatever moves: 1 x 7g.40gb",
    ]


@pytest.mark.parametrize(
    "text", ["3g.20gb", "3g.20gb=0", "=2", "3g.20gb=many", "3g.20gb=²", "3g.20gb=" + 5000 * "9"]
)
def test_a_demand_is_a_profile_and_a_number(text: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"as in 3g\.40gb=4"):
        demand_of([text])
