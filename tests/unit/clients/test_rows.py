import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.clients.rows import Rows, TextCodes


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.booleans()), max_size=30))
def test_a_row_has_one_owner_who_keeps_it(steps: list[tuple[str, bool]]) -> None:
    rows, owners = Rows[str](), dict[str, int]()

    for key, stays in steps:
        if stays:
            row = rows.take(key)
            assert owners.setdefault(key, row) == row
        elif key in owners:
            assert rows.release(key) == owners.pop(key)

    assert len(set(owners.values())) == len(owners) == len(rows)
    assert {rows.key(row): row for row in range(rows.used) if rows.key(row) is not None} == owners


def test_the_lowest_free_row_is_given_first() -> None:
    rows = Rows[str]()
    for key in "abc":
        rows.take(key)

    rows.release("b")
    rows.release("a")

    assert [rows.take("d"), rows.take("e"), rows.take("f")] == [0, 1, 3]


def test_nobody_has_a_row_beyond_the_last() -> None:
    rows = Rows[str]()

    assert (rows.key(0), rows.key(-1), rows.row("a")) == (None, None, None)
    with pytest.raises(KeyError):
        rows.release("a")


def test_a_text_keeps_its_number() -> None:
    codes = TextCodes()

    numbers = [codes.code(text) for text in ("", "a", "b", "a")]

    assert numbers == [0, 1, 2, 1]
    assert [codes.text(number) for number in (0, 1, 2)] == ["", "a", "b"]
    assert (codes.find("b"), codes.find("c")) == (2, None)
