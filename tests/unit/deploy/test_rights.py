"""The table of rights names, for each right that a chart gives, a test that exists."""

from tests.cluster.rights import (
    UNINSTALLING,
    Right,
    Use,
    granted,
    problems_of_the_table,
    read_table,
    refused,
    table,
    unconfirmed,
    unused,
    users_of,
    written,
)

PODS = Right("gpuloom-discovery", "list", "pods")
SECRET = Right("gpuloom-certificates", "get", "secrets", "gpuloom-system", ("gpuloom-ca",))
HERE = "tests/unit/deploy/test_rights.py::test_every_right_has_a_row_with_a_test_that_exists"
OTHER = "tests/unit/deploy/test_rights.py::test_a_row_stays_until_a_full_run_knows_better"


def a_use(right: Right, test: str, *, is_refused: bool = False) -> Use:
    return Use(
        right.account, right.verb, right.resource, right.namespace, "".join(right.names[:1]), is_refused, test
    )


def test_every_right_has_a_row_with_a_test_that_exists() -> None:
    problems = problems_of_the_table(read_table(), granted())

    assert not problems, "\n".join(sorted(problems))


def test_what_is_wrong_with_a_table_says_what_to_do() -> None:
    rows = {
        PODS.cells(): "tests/unit/deploy/test_rights.py::test_that_nobody_wrote",
        "| gpuloom-x | a | b | c |": HERE,
    }

    problems = sorted(problems_of_the_table(rows, [PODS, SECRET]))

    missing = "| gpuloom-certificates | get | secrets | `gpuloom-ca` in gpuloom-system | TEST |"
    assert problems[0] == f"NO ROW: add to RIGHTS.md, with a test that uses it: {missing}"
    assert problems[1].startswith("NO SUCH TEST: name another one in RIGHTS.md than tests/unit/deploy/")
    assert problems[2] == "NOT GIVEN by any chart: take out of RIGHTS.md: | gpuloom-x | a | b | c |"


def test_a_right_is_used_by_calls_that_it_covers_and_were_not_refused() -> None:
    uses = [a_use(PODS, HERE), a_use(SECRET, OTHER, is_refused=True)]

    proofs = {right: users_of(right, uses) for right in (PODS, SECRET)}

    assert proofs == {PODS: [HERE], SECRET: []}
    assert [line for line in unused(proofs) if SECRET.cells() in line] == unused(proofs)
    assert [line for line in refused(uses) if "may not get secrets gpuloom-system/gpuloom-ca" in line]


def test_a_refusal_that_a_test_expects_is_no_problem() -> None:
    expecting = (
        "tests/cluster/test_cost_engine.py::test_the_engine_works_with_its_account_and_reaches_no_further"
    )

    assert refused([a_use(PODS, HERE, is_refused=True)])
    assert not refused([a_use(PODS, expecting, is_refused=True)])


def test_of_an_uninstall_neither_refusals_nor_uses_count() -> None:
    uses = [a_use(PODS, UNINSTALLING, is_refused=True), a_use(SECRET, UNINSTALLING)]

    assert refused(uses) == set()
    assert users_of(SECRET, uses) == []


def test_a_row_stays_until_a_full_run_knows_better() -> None:
    rows = {PODS.cells(): OTHER, SECRET.cells(): OTHER}
    proofs = {PODS: [HERE, OTHER], SECRET: [HERE]}

    (said,) = unconfirmed(rows, proofs)

    assert f"name {HERE} in the row {SECRET.cells()} {OTHER} |" in said
    assert table(written(rows, proofs)) == rows
    assert table(written(rows, proofs, full=True)) == {PODS.cells(): OTHER, SECRET.cells(): HERE}


def test_a_run_of_few_tests_adds_to_the_other_rows() -> None:
    after = table(written({PODS.cells(): OTHER}, {PODS: [], SECRET: [HERE]}))

    assert after == {PODS.cells(): OTHER, SECRET.cells(): HERE}
