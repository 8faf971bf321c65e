"""A forest of decision trees as JSON, evaluated in numpy. Pure; nothing in a model is ever executed.

Decides what a model file must be: everything in it is checked before it is believed, so that a spoiled or
hostile one is refused with a reason and rules go on.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from gpuloom.errors import InvalidRequestError
from gpuloom.model.optimization import WorkloadClass
from services.optimizer.core.features import FEATURES

VERSION = 1
MAX_BYTES = 8 * 1024 * 1024
MAX_TREES = 500
MAX_NODES = 4096
LEAF = -1
_LEAST_PROBABILITY = 1e-6

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Tree:
    """Node 0 is the root. `left` and `right` are behind their parent, LEAF at a leaf."""

    feature: NDArray[np.int32]
    threshold: Floats
    left: NDArray[np.int32]
    right: NDArray[np.int32]
    value: Floats


@dataclass(frozen=True, slots=True)
class Forest:
    """`temperature` makes probabilities honest: it was fitted on runs that the trees had not seen."""

    classes: tuple[WorkloadClass, ...]
    temperature: float
    trees: tuple[Tree, ...]
    trained_on: int = 0
    macro_f1: float = 0.0


def load_forest(text: bytes) -> Forest:
    """Raise InvalidRequestError, with the reason, for anything but a model of this version."""
    if len(text) > MAX_BYTES:
        raise InvalidRequestError("the model is too large")
    try:
        document = orjson.loads(text)
        if document["version"] != VERSION or tuple(document["features"]) != FEATURES:
            raise InvalidRequestError("the model is of another version")
        classes = tuple(WorkloadClass(name) for name in document["classes"])
        if len(set(classes)) != len(classes) or not 2 <= len(classes) <= len(WorkloadClass):
            raise InvalidRequestError("the model's classes are no set of ours")
        if not 1 <= len(document["trees"]) <= MAX_TREES:
            raise InvalidRequestError(f"a model has 1 to {MAX_TREES} trees")
        trees = tuple(_tree(tree, len(classes)) for tree in document["trees"])
        temperature = float(document["temperature"])
        trained_on, macro_f1 = int(document["trainedOn"]), float(document["macroF1"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise InvalidRequestError(f"the model can't be read: {type(error).__name__}") from None
    if not 0.05 <= temperature <= 20:
        raise InvalidRequestError("the model's temperature is none")
    return Forest(classes, temperature, trees, trained_on, macro_f1)


def forest_to_json(forest: Forest) -> bytes:
    return orjson.dumps(
        {
            "version": VERSION,
            "features": FEATURES,
            "classes": forest.classes,
            "temperature": forest.temperature,
            "trainedOn": forest.trained_on,
            "macroF1": forest.macro_f1,
            "trees": [
                {
                    "feature": tree.feature.tolist(),
                    "threshold": tree.threshold.tolist(),
                    "left": tree.left.tolist(),
                    "right": tree.right.tolist(),
                    "value": tree.value.tolist(),
                }
                for tree in forest.trees
            ],
        }
    )


def probabilities(forest: Forest, rows: NDArray[np.float32]) -> Floats:
    """One row of probabilities, in the order of `forest.classes`, for each row of features."""
    total = np.zeros((len(rows), len(forest.classes)))
    for tree in forest.trees:
        total += tree.value[_leaves(tree, rows)]
    return tempered(total / len(forest.trees), forest.temperature)


def tempered(raw: Floats, temperature: float) -> Floats:
    scaled = np.log(np.maximum(raw, _LEAST_PROBABILITY)) / temperature
    powers = np.exp(scaled - scaled.max(axis=1, keepdims=True))
    result: Floats = powers / powers.sum(axis=1, keepdims=True)
    return result


def _leaves(tree: Tree, rows: NDArray[np.float32]) -> NDArray[np.intp]:
    at = np.zeros(len(rows), dtype=np.intp)
    while True:
        inner = tree.left[at] != LEAF
        if not inner.any():
            return at
        going = at[inner]
        goes_left = rows[inner, tree.feature[going]] <= tree.threshold[going]
        at[inner] = np.where(goes_left, tree.left[going], tree.right[going])


def _tree(document: Any, classes: int) -> Tree:
    tree = Tree(
        feature=np.array(document["feature"], dtype=np.int32),
        threshold=np.array(document["threshold"], dtype=np.float64),
        left=np.array(document["left"], dtype=np.int32),
        right=np.array(document["right"], dtype=np.int32),
        value=np.array(document["value"], dtype=np.float64),
    )
    count = len(tree.feature)
    columns = (tree.feature, tree.threshold, tree.left, tree.right)
    if not 1 <= count <= MAX_NODES or any(column.shape != (count,) for column in columns):
        raise InvalidRequestError("a tree of the model has no shape")
    if tree.value.shape != (count, classes) or not np.isfinite(tree.value).all() or (tree.value < 0).any():
        raise InvalidRequestError("a tree of the model has leaves that are no probabilities")
    inner, numbers = tree.left != LEAF, np.arange(count)
    if ((tree.right != LEAF) != inner).any() or not np.isfinite(tree.threshold[inner]).all():
        raise InvalidRequestError("a tree of the model has half a branch")
    for child in (tree.left, tree.right):
        # Children behind their parents: an evaluation always comes to an end.
        if ((child[inner] <= numbers[inner]) | (child[inner] >= count)).any():
            raise InvalidRequestError("a tree of the model leads nowhere")
    if ((tree.feature[inner] < 0) | (tree.feature[inner] >= len(FEATURES))).any():
        raise InvalidRequestError("a tree of the model asks for an unknown feature")
    return tree
