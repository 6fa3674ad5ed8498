"""One reader of y: kinds in scikit-learn's words, forms, and messages."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.exceptions import DataConversionWarning
from sklearn.utils.multiclass import type_of_target

from skfusion._targets import CLASSES, LABELS, NUMBERS, read_targets, require_y

EVERY = CLASSES | LABELS | NUMBERS


@pytest.mark.parametrize(
    ("y", "matrix", "codes", "classes"),
    [
        (["b", "a", "b"], [[0, 1], [1, 0], [0, 1]], [1, 0, 1], ["a", "b"]),
        ([2, 0, 1], [[0, 0, 1], [1, 0, 0], [0, 1, 0]], [2, 0, 1], [0, 1, 2]),
        ([[0, 1], [1, 1], [0, 1]], [[0, 1], [1, 1], [0, 1]], [0, 1, 0], [0, 1]),
        ([0.5, 1.5, 0.25], [[0.5], [1.5], [0.25]], [0, 0, 0], None),
        ([[0.5, 2.0], [1.5, 3.0]], [[0.5, 2.0], [1.5, 3.0]], [0, 0], None),
    ],
)
def test_forms_of_each_kind(y, matrix, codes, classes):
    found = read_targets(y, EVERY, "")
    assert found.kind == type_of_target(y) and len(found) == len(y)
    np.testing.assert_array_equal(found.matrix, matrix)
    np.testing.assert_array_equal(found.codes, codes)
    assert (found.classes is None) if classes is None else found.classes.tolist() == classes
    assert found.weights.tolist() == [1.0] * len(y)


@pytest.mark.parametrize("make", [np.array, pd.Series, list, tuple])
def test_whole_numbers_are_classes_unless_only_numbers_are_taken(make):
    y = make([3, 1, 3, 2])
    assert read_targets(y, EVERY, "").kind == "multiclass"
    found = read_targets(y, NUMBERS, "")
    assert found.kind == "continuous" and found.matrix.ravel().tolist() == [3, 1, 3, 2]


def test_a_sparse_indicator_and_a_column():
    assert read_targets(sparse.csr_array([[0, 1], [1, 0]]), EVERY, "").kind == (
        "multilabel-indicator"
    )
    with pytest.warns(DataConversionWarning, match="column-vector"):
        found = read_targets(np.array([["a"], ["b"]]), EVERY, "")
    assert found.kind == "binary"


def test_weights_follow_the_rows_and_balance_classes():
    found = read_targets(["a", "a", "a", "b"], EVERY, "").weighted(np.array([1.0, 2.0, 0.0, 3.0]))
    taken = found.take(np.array([1, 3]))
    assert taken.shares.tolist() == [0.4, 0.6] and taken.codes.tolist() == [0, 1]
    counts = np.array([1.0, 2.0, 0.0, 6.0])
    weighed = found.balance(counts) * counts
    assert weighed[:3].sum() == pytest.approx(weighed[3]) == pytest.approx(counts.sum() / 2)


@pytest.mark.parametrize(
    ("y", "kinds", "message"),
    [
        (
            ["a"] * 3,
            EVERY,
            r"two classes at least to learn from, got 1 class: 'a' \(n_samples=3\)",
        ),
        ([0.5, 1.5], CLASSES, "Unknown label type: y is 'continuous', but classes are needed"),
        ([[0, 2], [1, 1]], EVERY, "Unknown label type: y is 'multiclass-multioutput', but"),
        ([np.nan, 1.0], EVERY, "Input y contains NaN"),
        ([0.0, np.inf], NUMBERS, "infinity"),
    ],
)
def test_what_is_refused(y, kinds, message):
    with pytest.raises(ValueError, match=message):
        read_targets(y, kinds, "classes are needed")


def test_known_classes_and_lengths():
    found = read_targets(["b"], CLASSES, "", classes=np.array(["a", "b", "c"]))
    assert found.matrix.tolist() == [[0, 1, 0]]
    with pytest.raises(ValueError, match=r"classes \['d'\] that are not in classes=\['a', 'b'\]"):
        read_targets(["d"], CLASSES, "", classes=np.array(["a", "b"]))
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        read_targets(["a", "b"], CLASSES, "", n_rows=3)


def test_a_missing_y_names_the_estimator_and_why():
    with pytest.raises(ValueError, match=r"This dict estimator requires y .* is None\.$"):
        require_y(None, {})
    with pytest.raises(ValueError, match=r"is None: it learns\.$"):
        require_y(None, {}, "it learns")
