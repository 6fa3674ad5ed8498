"""One reader of y: kinds in scikit-learn's words, forms, and messages."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from sklearn.exceptions import DataConversionWarning
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.utils.multiclass import type_of_target

from skfusion import (
    EmbeddingBlocks,
    FusionMLPClassifier,
    FusionMLPRegressor,
    FusionTransformer,
    ModelSubsetSearchCV,
    OptunaSearchCV,
    layer_scores,
)
from skfusion._targets import CLASSES, LABELS, NUMBERS, is_regression, read_targets, require_y

EVERY = CLASSES | LABELS | NUMBERS
SINGLE = CLASSES | {"continuous"}


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
        ([[0, 2], [1, 1]], CLASSES | LABELS, "Unknown label type: y is 'multiclass-multioutput'"),
        ([[1, 2], [2, 1]], CLASSES | LABELS, "Unknown label type: y is 'multiclass-multioutput'"),
        ([[0.5, 1], [1, 2]], SINGLE, "Unknown label type: y is 'continuous-multioutput', but"),
        ([np.nan, 1.0], EVERY, "Input y contains NaN"),
        ([datetime(2020, 1, 1)] * 3, EVERY, "Unknown label type: y holds datetime values"),
        (np.array(["2020-01-01"], "M8[D]"), EVERY, "Unknown label type: y holds datetime64"),
        (np.array(["2020-01-01"], "M8[D]"), NUMBERS, "needs a y of numbers, got date values"),
        (np.array(["a", 1, 2.5], dtype=object), EVERY, "y holds float, int, str values"),
        (["a", "b"], NUMBERS, "regression needs a y of numbers, got str values, such as 'a'"),
        ([b"1", b"2"], NUMBERS, "regression needs a y of numbers, got bytes values"),
        ([0.0, np.inf], NUMBERS, "infinity"),
    ],
)
def test_what_is_refused(y, kinds, message):
    with pytest.raises(ValueError, match=message):
        read_targets(y, kinds, "classes are needed")


@pytest.mark.parametrize("dtype", [np.int64, np.float32, np.uint8, "Int64", object])
@pytest.mark.parametrize(
    ("n_values", "n_rows", "regression"),
    [(2, 2, False), (20, 20, False), (21, 21, True), (21, 104, True), (21, 105, False)],
)
def test_whole_numbers_of_few_values_are_classes(dtype, n_values, n_rows, regression):
    y = pd.Series(np.arange(n_rows) % n_values).astype(dtype)
    assert read_targets(y, EVERY, "").kind in (NUMBERS if regression else CLASSES)
    assert read_targets(y, CLASSES | LABELS, "").kind in CLASSES  # it knows without the rule
    assert read_targets(y, EVERY, "", task="classification").kind in CLASSES
    found = read_targets(y, EVERY, "", task="regression")
    assert found.kind == "continuous" and found.matrix.ravel().tolist() == y.tolist()
    assert read_targets(y.astype(int).astype(str), EVERY, "").kind in CLASSES
    assert read_targets(y.astype(float) + 0.5, EVERY, "").kind == "continuous"


@given(st.lists(st.integers(-30, 30), min_size=1, max_size=200), st.booleans())
def test_the_rule_by_hand(values, halves):
    y = np.array(values) / (1 + halves)
    few = len(set(values)) <= 20 or 5 * len(set(values)) <= len(values)
    assert is_regression(y) == (not few or any(value % (1 + halves) for value in values))


@pytest.mark.parametrize("make", [bool, Fraction, Decimal, np.int8, pd.array])
def test_values_that_python_keeps(make):
    values = [1, 0, 1]
    y = pd.array(values, dtype="boolean") if make is pd.array else [make(v) for v in values]
    for given_y in (y, np.array(y, dtype=object)):
        assert read_targets(given_y, EVERY, "").codes.tolist() == values
        assert read_targets(given_y, NUMBERS, "").matrix.ravel().tolist() == values
    assert read_targets([Decimal("0.5"), 1], EVERY, "").kind == "continuous"


def test_matrices_of_whole_numbers_are_numbers_and_indicators_are_labels():
    for y in ([[0, 2], [1, 1], [3, 0]], [[1, 2], [2, 1]], [[0.0, -1.0], [1.0, 0.0]]):
        assert read_targets(y, EVERY, "").matrix.tolist() == y
        assert read_targets(y, EVERY, "").kind == "continuous-multioutput"
    indicator = [[0, 1], [1, 1]]
    for y in (indicator, np.array(indicator, dtype=float), np.array(indicator, dtype=bool)):
        assert read_targets(y, EVERY, "").kind == "multilabel-indicator"
        assert read_targets(y, EVERY, "", task="regression").kind == "continuous-multioutput"
    with pytest.raises(ValueError, match="'multiclass-multioutput', but"):
        read_targets([[0, 2], [1, 1]], EVERY, "", task="classification")


def test_a_task_that_y_does_not_suit():
    with pytest.raises(ValueError, match="'continuous', but task='classification' takes classes"):
        read_targets([0.5, 1.5], EVERY, "", task="classification")
    with pytest.raises(ValueError, match="got str values, such as 'a'"):
        read_targets(["a", "b"], EVERY, "", task="regression")
    with pytest.raises(
        ValueError, match=r"'continuous', but w\. task='classification' takes whole"
    ):
        read_targets(np.arange(50), CLASSES, "w", task="auto")


def test_columns_that_do_not_vary_are_left_out():
    y = np.array([[0, 1, 1, 0], [1, 1, 0, 0], [0, 1, 0, 1]])
    found = read_targets(y, EVERY, "")
    assert found.varying().matrix.tolist() == y[:, [0, 2, 3]].tolist()
    assert found.varying().classes.tolist() == [0, 2, 3]
    weighted = found.weighted(np.array([1.0, 1.0, 0.0])).varying()  # rows that have weight
    assert weighted.classes.tolist() == [0, 2]
    numbers = read_targets([[0.1, 0.5], [0.1, 0.7]], EVERY, "").varying()
    assert numbers.matrix.tolist() == [[0.5], [0.7]]
    for constant in ([[1, 1]] * 3, [0.1] * 3, [[0.1, 2.5]] * 3):
        with pytest.raises(ValueError, match="y is the same in all 3 rows"):
            read_targets(constant, EVERY, "").varying()


# --- gaps -----------------------------------------------------------------------------------

GAPS = {
    "strings and None": lambda y: [*y[:3], None, *y[4:]],
    "strings and NaN": lambda y: [*y[:3], float("nan"), *y[4:]],
    "strings and NaN in a tuple": lambda y: (*y[:3], np.float32("nan"), *y[4:]),
    "strings and pd.NA": lambda y: np.array([*y[:3], pd.NA, *y[4:]], dtype=object),
    "numpy StringDType": lambda y: np.array(
        [*y[:3], np.nan, *y[4:]], dtype=np.dtypes.StringDType(na_object=np.nan)
    ),
    "pandas str": lambda y: pd.Series([*y[:3], None, *y[4:]]),
    "pandas values": lambda y: pd.Series([*y[:3], None, *y[4:]]).values,
    "pandas string": lambda y: pd.Series([*y[:3], None, *y[4:]], dtype="string"),
    "pandas category": lambda y: pd.Series([*y[:3], None, *y[4:]], dtype="category"),
    "polars": lambda y: pl.Series([*y[:3], None, *y[4:]]),
    "polars category": lambda y: pl.Series([*y[:3], None, *y[4:]], dtype=pl.Categorical),
    "pyarrow": lambda y: pa.array([*y[:3], None, *y[4:]]),
    "pyarrow dictionary": lambda y: pa.array([*y[:3], None, *y[4:]]).dictionary_encode(),
    "column": lambda y: pd.DataFrame({"y": [*y[:3], None, *y[4:]]}),
    "whole numbers": lambda y: [*[1, 0, 1], None, *[0] * 56],
    "floats": lambda y: np.array([*[1.5, 0, 1], np.nan, *[0] * 56]),
    "NaT": lambda y: [*[1.5, 0, 1], pd.NaT, *[0] * 56],
    "Decimal": lambda y: [*[Decimal(1)] * 3, Decimal("nan"), *[Decimal(0)] * 56],
    "nullable Int64": lambda y: pd.array([*[1, 0, 1], None, *[0] * 56], dtype="Int64"),
    "nullable boolean": lambda y: pd.array([*[True] * 3, None, *[False] * 56], dtype="boolean"),
    "polars numbers": lambda y: pl.Series([*[1, 0, 1], None, *[0] * 56]),
    "pyarrow booleans": lambda y: pa.array([*[True] * 3, None, *[False] * 56]),
    "dates": lambda y: np.array([*["2020"] * 3, "NaT", *["2021"] * 56], dtype="M8[D]"),
}
MISSES = r"Input y contains NaN: y misses 1 of 60 values, at position 3\."


@pytest.mark.parametrize("kinds", [EVERY, CLASSES | LABELS, NUMBERS])
@pytest.mark.parametrize("name", GAPS)
def test_gaps_are_named(name, kinds):
    y = GAPS[name](["a", "b"] * 30)
    with pytest.raises(ValueError, match=MISSES):
        read_targets(y, kinds, "")


def test_gaps_of_a_matrix_and_many_gaps():
    y = np.ones((5, 3))
    y[1, 2] = np.nan
    with pytest.raises(ValueError, match=r"1 of 15 values, at position \(1, 2\)\."):
        read_targets(y, EVERY, "")
    with pytest.raises(ValueError, match=r"12 of 12 values, at position 0, 1, .*, 9, \.\.\.\. "):
        read_targets([None] * 12, EVERY, "")


X = np.random.default_rng(0).normal(size=(60, 8))
BLOCKS = EmbeddingBlocks({"a": X[:, :4], "b": X[:, 4:]})
ESTIMATORS: dict[str, Callable[[], Any]] = {
    "FusionMLPClassifier": FusionMLPClassifier,
    "FusionMLPRegressor": FusionMLPRegressor,
    "weighted": lambda: FusionTransformer("weighted"),
    "supervised": lambda: FusionTransformer("sum", projection="supervised"),
    "OptunaSearchCV": lambda: OptunaSearchCV(LogisticRegression(), {"C": [1.0]}, n_trials=1),
    "OptunaSearchCV of Ridge": lambda: OptunaSearchCV(Ridge(), {"alpha": [1.0]}, n_trials=1),
    "ModelSubsetSearchCV": lambda: ModelSubsetSearchCV(LogisticRegression()),
    "ModelSubsetSearchCV of Ridge": lambda: ModelSubsetSearchCV(Ridge()),
}


@pytest.mark.parametrize("gap", ["strings and None", "strings and NaN", "pandas values", "floats"])
@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_estimator_names_gaps(name, gap):
    with pytest.raises(ValueError, match=MISSES):
        ESTIMATORS[name]().fit(BLOCKS, GAPS[gap](["a", "b"] * 30))


def test_layer_scores_names_gaps():
    for criterion in ("logme", "ridge", "h_score", "variability"):
        with pytest.raises(ValueError, match=MISSES):
            layer_scores({"X": X}, GAPS["strings and NaN"](["a", "b"] * 30), criterion=criterion)


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
