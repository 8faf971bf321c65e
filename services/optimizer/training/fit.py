"""Fits the forest. scikit-learn is imported here and nowhere else."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from sklearn.ensemble import RandomForestClassifier
from sklearn.metrics import f1_score

from gpuloom.model.optimization import WorkloadClass
from services.optimizer.core.features import features_of
from services.optimizer.core.model import LEAF, Forest, Tree, tempered
from services.optimizer.training.generator import MadeRun, generate

TREES = 60
DEPTH = 9
GENERATED_RUNS = 3000
OWN_WEIGHT = 3.0
"""The cluster's own runs count more than made-up ones."""
_HELD_BACK = 0.25


@dataclass(frozen=True, slots=True)
class Samples:
    """`groups`: runs of one workload have one number, so that none is both learned from and held back."""

    rows: NDArray[np.float32]
    labels: Sequence[str]
    weights: NDArray[np.float64]
    groups: NDArray[np.int64]


def generated_samples(seed: int, runs: int = GENERATED_RUNS) -> Samples:
    return samples_of(generate(runs, seed, kinds=max(60, runs // 10)))


def samples_of(runs: Iterable[MadeRun]) -> Samples:
    rows, labels, kinds = [], [], []
    for made in runs:
        row = features_of(made.run, made.workload)
        if row is not None:
            rows.append(row)
            labels.append(made.label.value)
            kinds.append(made.workload.signature.stem)
    groups = np.unique(kinds, return_inverse=True)[1].astype(np.int64)
    return Samples(np.array(rows, dtype=np.float32), labels, np.ones(len(rows)), groups)


def with_own(samples: Samples, own: Sequence[Sequence[float | str]]) -> Samples:
    """`own` are rows of a label and its features; what is no such row is left out."""
    width = samples.rows.shape[1]
    good = [
        row
        for row in own
        if len(row) == width + 1
        and row[0] in set(WorkloadClass) - {WorkloadClass.UNKNOWN}
        and np.isfinite(np.array(row[1:], dtype=np.float64)).all()
    ]
    if not good:
        return samples
    rows = np.array([row[1:] for row in good], dtype=np.float32)
    return Samples(
        np.concatenate([samples.rows, rows]),
        [*samples.labels, *(str(row[0]) for row in good)],
        np.concatenate([samples.weights, np.full(len(good), OWN_WEIGHT)]),
        np.concatenate([samples.groups, samples.groups.max() + 1 + np.arange(len(good))]),
    )


def fit(samples: Samples, seed: int) -> tuple[Forest, RandomForestClassifier]:
    """The forest as ours and as scikit-learn's; its temperature and score are of runs held back."""
    groups = np.random.default_rng(seed).permutation(np.unique(samples.groups))
    is_held = np.isin(samples.groups, groups[: int(len(groups) * _HELD_BACK)])
    held, used = np.flatnonzero(is_held), np.flatnonzero(~is_held)
    labels = np.array(samples.labels)
    classifier = RandomForestClassifier(
        n_estimators=TREES, max_depth=DEPTH, min_samples_leaf=3, random_state=seed, n_jobs=1
    )
    classifier.fit(samples.rows[used], labels[used], sample_weight=samples.weights[used])
    raw = classifier.predict_proba(samples.rows[held])
    truth = np.searchsorted(classifier.classes_, labels[held])
    temperature = _temperature(raw, truth)
    score = f1_score(labels[held], classifier.classes_[raw.argmax(axis=1)], average="macro")
    forest = Forest(
        classes=tuple(WorkloadClass(name) for name in classifier.classes_),
        temperature=temperature,
        trees=tuple(_tree(estimator.tree_) for estimator in classifier.estimators_),
        trained_on=len(used),
        macro_f1=float(score),
    )
    return forest, classifier


def _temperature(raw: NDArray[np.float64], truth: NDArray[np.intp]) -> float:
    """That makes the probabilities of runs held back as likely as can be."""

    def loss(logarithm: float) -> float:
        found = tempered(raw, float(np.exp(logarithm)))
        return float(-np.log(found[np.arange(len(truth)), truth]).mean())

    return float(np.exp(minimize_scalar(loss, bounds=(-2.5, 2.5), method="bounded").x))


def _tree(tree: object) -> Tree:
    inner = tree.children_left != -1  # type: ignore[attr-defined]
    value = tree.value[:, 0, :].astype(np.float64)  # type: ignore[attr-defined]
    return Tree(
        feature=np.where(inner, tree.feature, 0).astype(np.int32),  # type: ignore[attr-defined]
        threshold=np.where(inner, tree.threshold, 0.0).astype(np.float64),  # type: ignore[attr-defined]
        left=np.where(inner, tree.children_left, LEAF).astype(np.int32),  # type: ignore[attr-defined]
        right=np.where(inner, tree.children_right, LEAF).astype(np.int32),  # type: ignore[attr-defined]
        value=value / value.sum(axis=1, keepdims=True),
    )
