import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.sim.kubeapi.selectors import (
    FieldTerm,
    Selector,
    parse_fields,
    parse_labels,
    parse_selector,
)
from gpuloom.sim.kubeapi.status import ApiError

KEYS = st.sampled_from(["app", "tier", "gpuloom.dev/mode", "zone"])
VALUES = st.sampled_from(["a", "b", "c-1", ""])
LABELS = st.dictionaries(KEYS, VALUES)


@st.composite
def written_terms(draw: st.DrawFn) -> tuple[str, str, str, list[str]]:
    """A requirement as text, with its key, operator and values."""
    key, operator = draw(KEYS), draw(st.sampled_from(["=", "==", "!=", "in", "notin", "exists", "!exists"]))
    values = draw(st.lists(VALUES, min_size=1, max_size=3))
    space = draw(st.sampled_from(["", " "]))
    if operator in ("in", "notin"):
        return f"{key} {operator} ({(',' + space).join(values)})", key, operator, values
    if operator == "exists":
        return key, key, operator, []
    if operator == "!exists":
        return f"!{space}{key}", key, operator, []
    return f"{key}{space}{operator}{space}{values[0]}", key, operator, values[:1]


def naive(labels: dict[str, str], key: str, operator: str, values: list[str]) -> bool:
    if operator in ("=", "==", "in"):
        return labels.get(key) in values
    if operator in ("!=", "notin"):
        return labels.get(key) not in values
    return (key in labels) is (operator == "exists")


@given(LABELS, st.lists(written_terms(), max_size=4))
def test_a_label_selector_holds_when_each_requirement_holds(
    labels: dict[str, str], terms: list[tuple[str, str, str, list[str]]]
) -> None:
    text = ",".join(term[0] for term in terms)

    matched = parse_selector(text, "").matches({"metadata": {"labels": labels}})

    assert matched == all(naive(labels, *term[1:]) for term in terms)


@given(st.sampled_from(["a", "b"]), st.sampled_from(["a", "b", ""]), st.sampled_from(["=", "==", "!="]))
def test_a_field_selector_compares_text_at_any_path(actual: str, wanted: str, operator: str) -> None:
    obj = {"metadata": {"name": "x"}, "status": {"deep": {"er": actual}}}

    matched = parse_selector("", f"status.deep.er{operator}{wanted}").matches(obj)

    assert matched == ((actual == wanted) is (operator != "!="))


def test_an_absent_field_is_the_empty_text() -> None:
    pod = {"metadata": {"name": "x"}, "spec": {}}

    assert parse_selector("", "spec.nodeName=").matches(pod)
    assert not parse_selector("", "spec.nodeName!=").matches(pod)


def test_numbers_and_truth_values_compare_as_text() -> None:
    node = {"metadata": {"name": "x"}, "spec": {"unschedulable": True, "port": 80}}

    assert parse_selector("", "spec.unschedulable=true,spec.port=80").matches(node)


def test_escaped_commas_belong_to_the_value() -> None:
    assert parse_fields(r"metadata.name=a\,b,status.phase!=Failed") == (
        FieldTerm(("metadata", "name"), "a,b"),
        FieldTerm(("status", "phase"), "Failed", equal=False),
    )


def test_a_selector_tells_the_value_it_fixes() -> None:
    selector = Selector((), parse_fields("spec.nodeName=n1,status.phase!=Failed"))

    assert selector.exact(("spec", "nodeName")) == "n1"
    assert selector.exact(("status", "phase")) is None


@pytest.mark.parametrize(
    "text", ["a===b", "a in b", "a in (b", "=b", "a=b=c", "a b", "-x=1", "a=?", ",", "a,,b"]
)
def test_a_malformed_label_selector_is_a_bad_request(text: str) -> None:
    with pytest.raises(ApiError) as refusal:
        parse_labels(text)

    assert refusal.value.code == 400


@pytest.mark.parametrize("text", ["metadata.name", "=x", "metadata.name>x"])
def test_a_malformed_field_selector_is_a_bad_request(text: str) -> None:
    with pytest.raises(ApiError) as refusal:
        parse_fields(text)

    assert refusal.value.code == 400


def test_an_overlong_selector_is_a_bad_request() -> None:
    with pytest.raises(ApiError) as refusal:
        parse_labels("a=b," * 10_000)

    assert refusal.value.code == 400


@given(st.text(max_size=40))
def test_any_text_is_understood_or_refused(text: str) -> None:
    code = 200
    try:
        parse_labels(text)
    except ApiError as refusal:
        code = refusal.code

    assert code in (200, 400)
