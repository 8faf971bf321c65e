import math

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.errors import InvalidRequestError
from gpuloom.model.optimization import ClassSource, WorkloadClass
from services.optimizer.core.classify import classify
from services.optimizer.core.features import FEATURES, features_of
from services.optimizer.core.model import forest_to_json, load_forest, probabilities, tempered
from services.optimizer.training.fit import fit, generated_samples, with_own
from services.optimizer.training.generator import generate
from tests.unit.optimizer.builders import a_run, a_workload

SAMPLES = generated_samples(seed=3, runs=400)
FOREST, CLASSIFIER = fit(SAMPLES, seed=3)


def test_our_evaluation_is_scikit_learns_to_the_last_bit_that_matters() -> None:
    unseen = np.random.default_rng(1).uniform(-1, 60, (500, len(FEATURES))).astype(np.float32)
    ours = load_forest(forest_to_json(FOREST))

    for rows in (SAMPLES.rows, unseen):
        theirs = tempered(CLASSIFIER.predict_proba(rows), FOREST.temperature)
        found = probabilities(ours, rows)

        np.testing.assert_allclose(found, theirs, atol=1e-9)
        assert (found.argmax(axis=1) == theirs.argmax(axis=1)).all()


def test_the_model_beats_a_guess_on_workloads_it_has_not_seen() -> None:
    right = [
        classify(made.workload, made.run, FOREST).workload_class is made.label
        for made in generate(200, seed=99, kinds=40)
    ]

    assert sum(right) / len(right) > 0.75


@given(st.binary(max_size=200))
def test_no_bytes_are_a_model_unless_they_are_ours(text: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        load_forest(text)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("temperature",), "NaN"),
        (("temperature",), 0),
        (("classes",), ["batch", "batch"]),
        (("features",), ["mean"]),
        (("trees",), []),
        (("trees", 0, "left"), [0]),
        (("trees", 0, "feature", 0), 99),
        (("trees", 0, "left", 0), 0),
        (("trees", 0, "value", 0, 0), None),
    ],
)
def test_a_spoiled_model_is_refused(path: tuple[str | int, ...], value: object) -> None:
    document = orjson.loads(forest_to_json(FOREST))
    target = document
    for step in path[:-1]:
        target = target[step]
    target[path[-1]] = value

    with pytest.raises(InvalidRequestError):
        load_forest(orjson.dumps(document))


def test_a_label_wins_over_everything_measured() -> None:
    workload = a_workload(**{"gpu-autoscaler.io/workload-type": "Batch"})

    found = classify(workload, a_run([0.95] * 90), FOREST)

    assert (found.workload_class, found.source) == (WorkloadClass.BATCH, ClassSource.LABEL)


def test_without_a_model_or_measurements_rules_or_nobody_decide() -> None:
    named = classify(a_workload("jupyter-7"), None, None)
    unknown = classify(a_workload("thing", resources={"nvidia.com/gpu": "1"}), None, None)
    idle = classify(a_workload("thing"), a_run([0.0] * 20), None)

    assert (named.workload_class, named.source) == (WorkloadClass.INTERACTIVE, ClassSource.RULES)
    assert idle.workload_class is WorkloadClass.IDLE
    assert unknown.confidence in (0.0, 0.6)
    assert unknown.reason


def test_constant_poisoned_and_broken_history_does_not_break_training() -> None:
    constant: list[float | str] = ["idle", *[0.0] * len(FEATURES)]
    rows: list[list[float | str]] = [constant] * 30 + [
        ["rubbish", *[1.0] * len(FEATURES)],
        ["idle", *[math.nan] * len(FEATURES)],
        ["idle", 1.0],
    ]

    both = with_own(SAMPLES, rows)

    assert len(both.labels) == len(SAMPLES.labels) + 30
    assert load_forest(forest_to_json(fit(both, seed=1)[0])).classes == FOREST.classes


def test_too_little_or_no_number_gives_no_features() -> None:
    assert features_of(a_run([0.5]), a_workload()) is None
    assert features_of(a_run([None] * 20), a_workload()) is None
