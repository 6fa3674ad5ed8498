"""Labels, weights and rare classes of the neural head."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sklearn
from sklearn.metrics import recall_score
from sklearn.utils.fixes import parse_version

from skfusion import FusionMLPClassifier, FusionMLPRegressor

SMALL: dict[str, Any] = {
    "n_components": 16,
    "hidden_layer_sizes": (32, 16),
    "block_sizes": "single",
    "random_state": 0,
}


def clusters(counts: list[int], width: int = 12, seed: int = 0) -> tuple[Any, Any]:
    """Rows around one centre a class, well apart."""
    rng = np.random.default_rng(seed)
    codes = np.repeat(np.arange(len(counts)), counts)
    centres = 4 * rng.normal(size=(len(counts), width))
    return centres[codes] + rng.normal(size=(len(codes), width)), codes


@pytest.mark.parametrize("solver", ["auto", "paper"])
@pytest.mark.parametrize(
    "labels",
    [
        np.array(["no", "yes"]),
        np.array([False, True]),
        np.array([-7, 40]),
        np.array([-128, 127], dtype=np.int8),
        np.array(["a", "b", "c"], dtype=object),
        np.array([1.0, 2.0, 5.0]),
    ],
    ids=str,
)
def test_labels_of_every_kind_come_back_as_they_are(labels, solver):
    X, codes = clusters([12] * len(labels))
    clf = FusionMLPClassifier(solver=solver, lr=1e-2, **SMALL).fit(X, labels[codes])
    assert clf.classes_.dtype == labels.dtype
    np.testing.assert_array_equal(clf.classes_, labels)
    np.testing.assert_array_equal(clf.predict(X), labels[codes])
    proba = clf.predict_proba(X)
    np.testing.assert_allclose(proba.sum(axis=1), 1)
    np.testing.assert_array_equal(labels[proba.argmax(axis=1)], clf.predict(X))
    scores = clf.decision_function(X)
    if len(labels) == 2:
        assert scores.shape == (len(X),)
        np.testing.assert_allclose(1 / (1 + np.exp(-scores)), proba[:, 1], atol=1e-12)
    else:
        assert scores.shape == (len(X), len(labels))


@pytest.mark.parametrize("operator", [pytest.param("concat", marks=pytest.mark.slow), "sum"])
def test_multilabel_indicators(operator):
    X, codes = clusters([15, 15, 15, 15])
    labels = np.column_stack([codes % 2, codes // 2, np.zeros_like(codes)])
    clf = FusionMLPClassifier(operator, **SMALL).fit(X, labels)
    np.testing.assert_array_equal(clf.predict(X), labels)
    assert clf.predict_proba(X).shape == labels.shape
    assert clf.score(X, labels) == 1


@pytest.mark.parametrize(
    "counts", [[30, 30, 1], [2, 2, 2], [1, 1], pytest.param([200, 3, 1], marks=pytest.mark.slow)]
)
def test_rare_classes(counts):
    X, y = clusters(counts)
    clf = FusionMLPClassifier(
        hidden_layer_sizes=(256, 64), block_sizes="single", random_state=0
    ).fit(X, y)
    np.testing.assert_array_equal(clf.classes_, np.arange(len(counts)))
    assert clf.score(X, y) == 1


def test_one_class_only_says_so():
    with pytest.raises(ValueError, match=r"two classes at least.*got 1 class: 'only'"):
        FusionMLPClassifier(**SMALL).fit(np.ones((4, 3)), ["only"] * 4)


@pytest.mark.slow
def test_as_many_classes_as_r52_and_as_unequal():
    counts = np.maximum(1, (2840 / 4 * np.arange(1, 53) ** -1.6).astype(int)).tolist()
    X, y = clusters(counts, width=40)
    clf = FusionMLPClassifier(**{**SMALL, "hidden_layer_sizes": (256, 64)}).fit(X, y)
    assert len(clf.classes_) == 52
    assert min(counts) == 1 and recall_score(y, clf.predict(X), average="macro") > 0.95


def test_a_class_of_no_weight_is_never_predicted():
    X, y = clusters([20, 20, 20])
    clf = FusionMLPClassifier(**SMALL).fit(X, y, sample_weight=(y != 1).astype(float))
    np.testing.assert_array_equal(clf.classes_, [0, 1, 2])
    assert not (clf.predict(X) == 1).any()
    assert (clf.predict_proba(X)[:, 1] == 0).all()
    again = FusionMLPClassifier(class_weight={0: 1, 1: 0, 2: 1}, **SMALL).fit(X, y)
    np.testing.assert_array_equal(again.predict_proba(X), clf.predict_proba(X))


def test_all_weights_zero_says_so():
    X, y = clusters([3, 3])
    # Before 1.8 scikit-learn does not look.
    theirs = parse_version(sklearn.__version__) >= parse_version("1.8")
    words = "at least one non-zero" if theirs else "All rows have weight 0"
    with pytest.raises(ValueError, match=words):
        FusionMLPClassifier(**SMALL).fit(X, y, sample_weight=np.zeros(6))
    with pytest.raises(ValueError, match="All rows have weight 0"):
        FusionMLPClassifier(class_weight={0: 0, 1: 0}, **SMALL).fit(X, y)


def test_balanced_weights_do_not_lower_the_recall_of_a_rare_class(rng):
    y = np.repeat([0, 1], [180, 20])
    X = rng.normal(size=(200, 10)) + 0.9 * y[:, None] * (np.arange(10) < 3)
    plain, balanced = (
        FusionMLPClassifier(class_weight=weight, **SMALL).fit(X[::2], y[::2]).predict(X[1::2])
        for weight in (None, "balanced")
    )
    assert recall_score(y[1::2], balanced) >= recall_score(y[1::2], plain)
    assert recall_score(y[1::2], balanced) > 0.3


@pytest.mark.slow
@pytest.mark.parametrize("estimator", [FusionMLPClassifier, FusionMLPRegressor])
@pytest.mark.parametrize("n_rows", [8, 60])
def test_a_weight_is_a_number_of_rows_and_order_does_not_matter(estimator, n_rows, rng):
    """Below and above the number of columns: both ways of stopping."""
    X = rng.normal(size=(n_rows, 20 if n_rows == 8 else 5))
    y = (X[:, 0] > 0).astype(int)
    weights = rng.integers(0, 4, size=n_rows)
    order = rng.permutation(np.repeat(np.arange(n_rows), weights))
    weighted = estimator(**SMALL).fit(X, y, sample_weight=weights).predict(X)
    repeated = estimator(**SMALL).fit(X[order], y[order]).predict(X)
    np.testing.assert_array_equal(weighted, repeated)


@pytest.mark.slow
def test_regression_of_one_and_of_several_columns(rng):
    X = rng.normal(size=(300, 6))
    y = np.column_stack([X[:, 0] * 100 + 7, np.abs(X[:, 1])])
    reg = FusionMLPRegressor(**{**SMALL, "hidden_layer_sizes": (128, 32)}).fit(X[:250], y[:250])
    assert reg.predict(X).shape == (300, 2)
    assert reg.score(X[250:], y[250:]) > 0.8  # the second column is no linear function
    flat = FusionMLPRegressor(**{**SMALL, "hidden_layer_sizes": (128, 32)}).fit(X, y[:, 0])
    assert flat.predict(X).shape == (300,)
    assert flat.score(X, y[:, 0], sample_weight=np.ones(300)) > 0.95


def test_what_no_line_separates(rng):
    X = rng.uniform(-1, 1, size=(400, 2))
    y = (X[:, 0] * X[:, 1] > 0).astype(int)
    clf = FusionMLPClassifier(**{**SMALL, "hidden_layer_sizes": (128, 32)}).fit(X[:300], y[:300])
    assert clf.score(X[300:], y[300:]) > 0.9


def test_label_smoothing_makes_less_certain():
    X, y = clusters([20, 20])
    plain, smooth = (
        FusionMLPClassifier(label_smoothing=share, **SMALL).fit(X, y).predict_proba(X).max()
        for share in (0, 0.3)
    )
    assert smooth < plain


def test_partial_fit_learns_and_keeps_all_classes():
    X, y = clusters([40, 40, 40])
    order = np.random.default_rng(0).permutation(len(y))
    clf = FusionMLPClassifier(lr=1e-3, **SMALL)
    clf.partial_fit(X[:40], y[:40], classes=[0, 1, 2])  # one class in the first batch
    for _ in range(20):
        for batch in np.array_split(order, 3):
            clf.partial_fit(X[batch], y[batch])
    assert clf.score(X, y) > 0.95
    with pytest.raises(ValueError, match="not in classes"):
        clf.partial_fit(X, y + 5)
    with pytest.raises(ValueError, match="first call"):
        FusionMLPClassifier().partial_fit(X, y)
    with pytest.raises(ValueError, match="are not those of the first call"):
        clf.partial_fit(X, y, classes=[0, 1])


def test_the_regressor_learns_by_partial_fit(rng):
    X = rng.normal(size=(120, 5))
    reg = FusionMLPRegressor(lr=1e-3, **SMALL)
    for _ in range(60):
        reg.partial_fit(X, 10 * X[:, 0])
    assert reg.score(X, 10 * X[:, 0]) > 0.8
