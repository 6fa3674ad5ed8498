"""`FusionHead`: penalties, kinds and decisions from held-out rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from _support.rows import three_classes
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.metrics import balanced_accuracy_score, log_loss

from skfusion import FusionHead
from skfusion.selection import head as module
from skfusion.selection.head import clearly_better


def unbalanced(n: int = 200, seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    y = (rng.uniform(size=n) < 0.1) + 0
    return rng.normal(size=(n, 5)) + 1.2 * y[:, None] * [1, 1, 0, 0, 0], y


@pytest.mark.parametrize("kind", ["logistic", "ridge"])
def test_probabilities_are_those_of_the_rows(kind):
    X, y = unbalanced()
    X_test, y_test = unbalanced(4000, seed=1)
    head = FusionHead(kind, random_state=0).fit(X, y)
    assert head.kind_ == kind
    chances = head.predict_proba(X_test)
    assert chances[:, 1].mean() == pytest.approx(y_test.mean(), abs=0.06)
    plain = LogisticRegression().fit(X, y).predict_proba(X_test)
    assert log_loss(y_test, chances) < log_loss(y_test, plain) + 0.03


def test_decisions_suit_the_score():
    X, y = unbalanced()
    X_test, y_test = unbalanced(4000, seed=1)
    macro = FusionHead(scoring="balanced_accuracy", random_state=0).fit(X, y)
    plain = FusionHead(scoring="accuracy", random_state=0).fit(X, y)
    assert macro.strength_ > 0 and plain.strength_ == 0
    assert np.array_equal(macro.predict_proba(X_test), plain.predict_proba(X_test))
    scores = [balanced_accuracy_score(y_test, one.predict(X_test)) for one in (macro, plain)]
    assert scores[0] > scores[1] + 0.1


def test_balanced_offsets_are_the_log_shares():
    X, y = unbalanced()
    head = FusionHead(class_weight="balanced", random_state=0).fit(X, y)
    shares = np.bincount(y) / len(y)
    assert np.diff(head.offsets_) == pytest.approx(np.log(shares[0] / shares[1]))
    given = FusionHead(class_weight={1: 3.0}, random_state=0).fit(X, y)
    assert np.diff(given.offsets_) == pytest.approx(np.log(3.0))


def test_ridge_is_ridge_regression():
    X, y = three_classes(120)
    head = FusionHead("ridge", class_weight=None, random_state=0).fit(X, y)
    centred = X - X.mean(axis=0)
    alpha = head.penalty_ * (centred**2).sum(axis=1).mean()
    plain = RidgeClassifier(alpha=alpha).fit(X, y)
    coef = plain.coef_ / 2  # its targets are -1 and 1
    assert np.allclose(head.coef_ * coef[0, 0] / head.coef_[0, 0], coef, rtol=1e-5)


def test_the_scale_of_rows_does_not_matter():
    X, y = three_classes(90)
    small, large = (
        FusionHead(random_state=0).fit(X * c, y).predict_proba(X * c) for c in (1, 1e4)
    )
    assert np.allclose(small, large, atol=1e-3)


def test_rows_that_do_not_vary_give_the_shares():
    y = np.repeat([0, 1], [30, 10])
    chances = FusionHead(random_state=0).fit(np.ones((40, 3)), y).predict_proba(np.ones((1, 3)))
    assert chances[0] == pytest.approx([0.75, 0.25], abs=0.01)


def test_a_class_without_weight_is_none():
    X, y = three_classes(60)
    head = FusionHead(random_state=0).fit(X, y, sample_weight=(y < 2) + 0.0)
    assert list(head.classes_) == [0, 1]


def test_a_network_is_taken_where_it_is_better(monkeypatch):
    monkeypatch.setattr(module, "_LEAST_NETWORK_ROWS", 100)
    forest = RandomForestClassifier(30, min_samples_leaf=3, random_state=0)
    monkeypatch.setattr(module, "FusionMLPClassifier", lambda **_: forest)  # is faster
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 2))
    y = (X[:, 0] * X[:, 1] > 0) + 0  # no line separates them
    head = FusionHead(random_state=0).fit(X, y)
    assert head.kind_ == "network" and head.score(X, y) > 0.85
    assert not hasattr(head, "coef_")
    line = FusionHead(random_state=0).fit(X, (X[:, 0] + rng.normal(size=300) > 0) + 0)
    assert line.kind_ != "network"


def test_another_strength_must_be_clearly_better():
    codes = np.zeros(100, dtype=int)
    noise = np.random.default_rng(0).normal(size=100)

    def score(value: float, rows: Any) -> float:
        gain = {0.0: 0.5 + noise, 1.0: 0 * noise, 2.0: 0.01 + noise - noise.mean()}[value]
        return float(gain[rows].mean())

    assert clearly_better(score, 1.0, (1.0, 2.0), codes) == 1.0
    assert clearly_better(score, 1.0, (0.0, 1.0, 2.0), codes) == 0.0
