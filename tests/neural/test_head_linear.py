"""The linear part of the neural head: where it is alone, where it is not, and the paper's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import expit
from sklearn.linear_model import Ridge
from sklearn.metrics import balanced_accuracy_score

from skfusion import EmbeddingBlocks, FusionMLPClassifier, FusionMLPRegressor
from skfusion.neural import solvers
from skfusion.neural.modules import LOSSES
from skfusion.neural.penalised import PATH, solve_regression

SMALL: dict[str, Any] = {
    "n_components": 8,
    "hidden_layer_sizes": (32, 16),
    "block_sizes": "single",
    "random_state": 0,
}


def crossed(n: int, width: int = 2, seed: int = 0) -> tuple[Any, Any]:
    """Two classes that no line separates, by the signs of the first two columns."""
    X = np.random.default_rng(seed).uniform(-1, 1, size=(n, width))
    return X, (X[:, 0] * X[:, 1] > 0).astype(int)


def line(n: int, width: int, seed: int = 0, noise: float = 0.5) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, width))
    return X, X[:, :3] @ [2.0, -1.0, 1.0] + noise * rng.normal(size=n)


# --- alone ------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [6, 90])  # both ways of holding rows out
def test_on_a_linear_truth_it_is_ridge_regression(width):
    X, y = line(80, width)
    head = FusionMLPRegressor(dtype="float64", **SMALL).fit(X, y)
    assert head.linear_only_ and head.n_iter_ == 0 and head.loss_curve_ == []
    standard = (X - X.mean(axis=0)) / X.std(axis=0)
    ridges = [Ridge(alpha=len(y) * decay).fit(standard, y).predict(standard) for decay in PATH]
    nearest = min(np.abs(head.predict(X) - predicted).max() for predicted in ridges)
    assert nearest < 1e-3 * y.std()


def test_logits_are_linear_in_the_input():
    X, y = line(60, 100)
    head = FusionMLPClassifier(dtype="float64", **SMALL).fit(X, (y > 0).astype(int))
    assert head.linear_only_
    one, other = X[:30], X[30:]
    middle = head.decision_function((one + other) / 2)
    expected = (head.decision_function(one) + head.decision_function(other)) / 2
    np.testing.assert_allclose(middle, expected, atol=1e-9)


@pytest.mark.parametrize("operator", ["concat", "hadamard", "gated"])
def test_before_the_first_step_it_is_the_regression(operator, monkeypatch):
    """Whatever the operator, and whatever the blocks."""
    starts: list[Any] = []

    def spy(start: Any, rows: Any, *args: Any, **more: Any) -> Any:
        with torch.no_grad():
            starts.append((start(rows.X), rows))
        return trained(start, rows, *args, **more)

    trained = solvers.train
    monkeypatch.setattr(solvers, "train", spy)
    X, y = line(50, 12)
    blocks = EmbeddingBlocks([X[:, :5], X[:, 5:]])
    settings = {**SMALL, "block_sizes": None, "early_stopping": False, "max_epochs": 1}
    FusionMLPRegressor(operator, **settings).fit(blocks, y)
    ((logits, rows),) = starts
    generator = torch.Generator().manual_seed(0)
    regression = solve_regression(rows, LOSSES["continuous"], [], generator).full
    expected = rows.X @ regression.weight.T + regression.bias
    np.testing.assert_allclose(logits, expected, atol=0.05)  # by other folds, so nearly the same λ
    assert np.corrcoef(logits[:, 0], expected[:, 0])[0, 1] > 0.999


@pytest.mark.parametrize("n_rows", [60, 300])
def test_shuffled_labels_give_chance(n_rows, rng):
    X = rng.normal(size=(n_rows + 500, 80))
    y = (rng.random(n_rows + 500) < 0.2).astype(int)
    head = FusionMLPClassifier(**SMALL).fit(X[:n_rows], y[:n_rows])
    proba = head.predict_proba(X[n_rows:])
    assert balanced_accuracy_score(y[n_rows:], proba.argmax(axis=1)) == pytest.approx(0.5, abs=0.1)
    # The odds of the rare class are its own, though it weighs more in training.
    assert proba[:, 1].mean() == pytest.approx(y[:n_rows].mean(), abs=0.1)


def test_few_rows_and_many_columns_cost_nothing():
    """Never below the regression that it starts at."""
    X, y = line(400, 300, noise=2.0)
    y = (y > 0).astype(int)
    head = FusionMLPClassifier(**SMALL).fit(X[:60], y[:60])
    alone = FusionMLPClassifier(max_epochs=0, **SMALL).fit(X[:60], y[:60])
    assert alone.linear_only_
    assert head.score(X[60:], y[60:]) >= alone.score(X[60:], y[60:]) - 0.005


def test_rare_classes_are_found_at_no_cost_in_probability(rng):
    y = (rng.random(900) < expit(-3)).astype(int)
    X = rng.normal(size=(900, 20)) + 1.5 * y[:, None] * (np.arange(20) < 3)
    head = FusionMLPClassifier(max_epochs=0, **SMALL).fit(X[:400], y[:400])
    proba = head.predict_proba(X[400:])[:, 1]
    loss = -np.log(np.where(y[400:], proba, 1 - proba)).mean()
    share = y[:400].mean()
    known = -np.log(np.where(y[400:], share, 1 - share)).mean()
    assert loss < known
    assert balanced_accuracy_score(y[400:], proba > 0.5) > 0.6


# --- not alone --------------------------------------------------------------------------------


def test_what_no_line_separates_is_learned_beside_it():
    X, y = crossed(350)
    head = FusionMLPClassifier(lr=5e-4, **SMALL).fit(X[:250], y[:250])
    assert not head.linear_only_ and head.gain_ > 0.1 and head.n_iter_ > 0
    assert head.score(X[250:], y[250:]) > 0.85
    alone = FusionMLPClassifier(max_epochs=0, **SMALL).fit(X[:250], y[:250])
    assert alone.linear_only_ and alone.score(X[250:], y[250:]) < 0.65


def test_with_few_rows_all_are_held_out_in_turn(rng):
    X, y = crossed(90)
    X = X @ rng.normal(size=(2, 120))
    head = FusionMLPClassifier(lr=5e-4, **SMALL).fit(X, y)
    assert not head.linear_only_ and head.gain_ > 0
    n_epochs = [epoch["epoch"] for epoch in head.search_history_]
    assert n_epochs.count(1) == 3  # folds
    assert head.n_iter_ == np.argmin(head.validation_losses_) + 1


def test_a_linear_head_can_go_on():
    X, y = crossed(60)
    head = FusionMLPClassifier(lr=1e-2, early_stopping=False, max_epochs=0, **SMALL).fit(X, y)
    assert head.linear_only_
    for _ in range(60):
        head.partial_fit(X, y)
    assert head.score(X, y) > 0.8


def test_missing_blocks_are_zeros_to_it(rng):
    X, y = line(90, 12)
    blocks = EmbeddingBlocks({"a": X[:, :2], "b": X[:, 2:]})
    settings = {**SMALL, "block_sizes": None, "max_epochs": 0, "dtype": "float64"}
    head = FusionMLPRegressor(block_dropout=0.2, **settings).fit(blocks, y)
    mean = EmbeddingBlocks({"a": np.tile(X[:, :2].mean(axis=0), (90, 1)), "b": X[:, 2:]})
    without = head.predict(EmbeddingBlocks({"b": X[:, 2:]}))
    np.testing.assert_allclose(without, head.predict(mean), atol=1e-9)


# --- the paper's ------------------------------------------------------------------------------


def test_the_papers_network_has_no_linear_part():
    X, y = crossed(40)
    head = FusionMLPClassifier(solver="paper", max_epochs=1, **SMALL).fit(X, y)
    assert not head.linear_only_ and np.isnan(head.gain_)
    assert head.net_.module_.linear is None
    assert not any("linear" in name for name in head.net_.module_.state_dict())
