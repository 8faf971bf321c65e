"""Names of ours on a pod that nothing reads."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuloom.codec import pod_names
from gpuloom.codec.pod_names import MAX_NAMED, unknown_names
from gpuloom.names import POD_KEYS
from tests.effort import examples

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner, max_size=3),
    max_leaves=12,
)


def a_pod(annotations: Any = None, labels: Any = None, limits: Any = None) -> dict[str, Any]:
    return {
        "metadata": {"annotations": annotations, "labels": labels},
        "spec": {"containers": [{"resources": {"limits": limits}}]},
    }


@pytest.mark.parametrize(
    ("pod", "named", "meant"),
    [
        (
            a_pod({"gpuloom.dev/gpu-modell": "A100"}),
            "annotation gpuloom.dev/gpu-modell",
            "gpuloom.dev/gpu-model?",
        ),
        (
            a_pod(labels={"gpuloom.dev/topolgy": "nvlink"}),
            "label gpuloom.dev/topolgy",
            "gpuloom.dev/topology?",
        ),
        (
            a_pod(limits={"gpuloom.dev/gpu-mili": "500"}),
            "resource gpuloom.dev/gpu-mili",
            "gpuloom.dev/gpu-milli?",
        ),
    ],
)
def test_a_misspelled_name_is_told_with_the_one_that_was_meant(
    pod: dict[str, Any], named: str, meant: str
) -> None:
    (sentence,) = unknown_names(pod)

    assert sentence.startswith(named)
    assert sentence.endswith(f"did you mean {meant}")


def test_known_names_and_those_of_others_are_not_told() -> None:
    pod = a_pod(dict.fromkeys([*POD_KEYS, "example.com/gpuloom.dev/x"], "v"), limits={"nvidia.com/gpu": "1"})

    assert unknown_names(pod) == ()


def test_a_name_that_resembles_nothing_is_told_without_a_guess_and_cut() -> None:
    (sentence,) = unknown_names(a_pod({"gpuloom.dev/" + "z" * 500: "v"}))

    assert "did you mean" not in sentence
    assert len(sentence) < 200


def test_many_are_not_all_told() -> None:
    pod = a_pod({f"gpuloom.dev/unheard-of-{number}": "v" for number in range(50)})

    assert len(unknown_names(pod)) == MAX_NAMED


def test_no_more_is_compared_than_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []

    def note(name: str, *_: object, **__: object) -> list[str]:
        compared.append(name)
        return []

    monkeypatch.setattr(pod_names, "get_close_matches", note)
    unknown_names(a_pod({f"gpuloom.dev/x{number}": "" for number in range(1000)}))

    assert len(compared) == MAX_NAMED


@given(metadata=JSON, spec=JSON)
@settings(max_examples=examples(100))
def test_whatever_is_sent_as_a_pod_is_read_without_an_error(metadata: Any, spec: Any) -> None:
    unknown_names({"metadata": metadata, "spec": spec})
