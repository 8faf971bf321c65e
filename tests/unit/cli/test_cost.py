"""How costs are shown, as tables and as pages."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from gpuloom.cli.costs.cost import cost_lines, money, parse_window
from gpuloom.cli.costs.report import TABLES, gather
from gpuloom.cli.costs.report_data import Report
from gpuloom.cli.costs.report_pages import html_page, markdown_page
from gpuloom.errors import InvalidRequestError
from gpuloom.model.cost import (
    BudgetReport,
    CostAmounts,
    CostAnswer,
    CostGap,
    CostLine,
    CostQuestion,
    CostSummary,
    MechanismSaving,
    SavingsReport,
)
from gpuloom.v1 import cost_engine_pb2 as pb

NOW = datetime(2026, 6, 20, 12, tzinfo=UTC)
HOSTILE = '<script src="https://evil.example/x.js">|`</script>'


def some_amounts(scale: int = 1) -> CostAmounts:
    return CostAmounts(
        cost=10 * scale,
        used=4 * scale,
        idle=3 * scale,
        unknown=1 * scale,
        unallocated=2 * scale,
        baseline=20 * scale,
    )


def an_answer(*groups: str, step: int = 0) -> CostAnswer:
    lines = tuple(
        CostLine(NOW + timedelta(days=step * place), (group,), some_amounts(10**9))
        for place, group in enumerate(groups)
    )
    gap = CostGap("n", "", NOW, NOW, "the node was gone")
    return CostAnswer(lines, some_amounts(len(groups) * 10**9), NOW, NOW + timedelta(days=1), False, (gap,))


def a_report() -> Report:
    summary = CostSummary(3 * 10**9, 2160 * 10**9, 720, 3, 1, some_amounts(), some_amounts(), NOW)
    saved = SavingsReport(20 * 10**9, 10 * 10**9, (MechanismSaving("spot", 10**10, True),), NOW, NOW)
    budget = BudgetReport("lab", "month", NOW, NOW, 10**9, 2 * 10**9, 3, 2, 4, "Exceeded", "block")
    tables = (("namespace", an_answer("a", HOSTILE)), ("pod", an_answer("a/p")))
    return Report(NOW, summary, an_answer("", "", step=1), tables, saved, (budget,))


def test_a_table_has_the_columns_and_the_total_and_says_what_is_missing() -> None:
    header, *lines = cost_lines(an_answer("a", "b"), CostQuestion(group_by=("namespace",)))

    assert header.split() == ["GROUP", "ALLOCATED", "USED", "IDLE", "COST", "SHARE", "UNKNOWN"]
    assert lines[0].split() == ["a", "8.00", "4.00", "3.00", "10.00", "50.0%", "1.00"]
    assert lines[2].split()[0] == "TOTAL"
    assert "not final" in lines[3]
    assert "the node was gone" in lines[4]


def test_a_small_amount_is_not_shown_as_nothing() -> None:
    assert [money(amount) for amount in (0, 1, 12_345_678_901)] == ["0.00", "0.000000001", "12.35"]


def test_a_page_asks_nobody_for_anything_and_names_can_not_break_it() -> None:
    page = html_page(a_report())

    assert "<script" not in page
    assert not re.search(r"""(?:src|href)\s*=\s*["']?http""", page)
    assert "default-src 'none'" in page
    assert page.count("<svg") == 1
    assert "a month is 720 h" in page


def test_a_page_of_markdown_has_the_same_and_cells_stay_cells() -> None:
    page = markdown_page(a_report())

    row = next(line for line in page.splitlines() if "evil" in line)
    assert row.replace("\\|", "").count("|") == 8
    assert "Exceeded" in page


@pytest.mark.parametrize("text", ["", "7", "x", "7y", "2026,bad", "99999999999999d"])
def test_a_window_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="--window"):
        parse_window(text, NOW)


class Refusing:
    """A cost engine with more pods than an answer may have lines."""

    def stub(self, _: object) -> "Refusing":
        return self

    async def QueryCosts(self, request: pb.QueryCostsRequest, timeout: float) -> pb.QueryCostsResponse:
        if "pod" in request.group_by:
            raise InvalidRequestError("the answer has more than 20000 lines: group by namespace")
        return pb.QueryCostsResponse(start=a_time(), end=a_time(), rows=[pb.CostRow(start=a_time())])

    async def GetCostSummary(self, request: object, timeout: float) -> pb.GetCostSummaryResponse:
        return pb.GetCostSummaryResponse(since=a_time())

    async def GetSavings(self, request: object, timeout: float) -> pb.GetSavingsResponse:
        return pb.GetSavingsResponse(start=a_time(), end=a_time())

    async def ListBudgets(self, request: object, timeout: float) -> pb.ListBudgetsResponse:
        return pb.ListBudgetsResponse()


def a_time() -> Timestamp:
    found = Timestamp()
    found.FromDatetime(NOW)
    return found


async def test_a_page_without_a_table_by_pod_says_why_and_has_the_rest() -> None:
    found = await gather(Refusing(), (NOW - timedelta(days=30), NOW), NOW, 1.0)  # type: ignore[arg-type]

    assert [name for name, _ in found.tables] == list(TABLES[:-1])
    for page in (html_page(found), markdown_page(found)):
        assert "no table by pod: the answer has more than 20000 lines" in page
