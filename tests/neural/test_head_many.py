"""`fit_many` gives what fitting one by one gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from skorch.callbacks import EarlyStopping

from skfusion import (
    PAPER_OPERATORS,
    EmbeddingBlocks,
    FusionMLPClassifier,
    FusionMLPRegressor,
    fit_many,
    register_operator,
)

SMALL: dict[str, Any] = {
    "n_components": 16,
    "hidden_layer_sizes": (16, 8),
    "max_epochs": 2,
    "validation_fraction": 0.3,
    "lr": 1e-3,
    "random_state": 0,
}
SETTINGS: list[dict[str, Any]] = [
    *PAPER_OPERATORS,
    {"operator": "gated"},
    {"operator": "gated", "view_dropout": 0.3},
    {"operator": "sum", "view_dropout": 0.3},
]


def data(n: int, widths: tuple[int, int]) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, size=n)
    blocks = {
        name: rng.normal(size=(3, width))[y] + rng.normal(size=(n, width))
        for name, width in zip("ab", widths, strict=True)
    }
    return EmbeddingBlocks(blocks), y


#: Few columns: rows are held out. Many: training ends at a level.
SHAPES = pytest.mark.parametrize("widths", [(5, 4), (40, 30)], ids=["held_out", "level"])
FOLDS = [np.arange(0, 52), np.arange(16, 60), np.delete(np.arange(60), np.arange(0, 60, 3))]


def outputs(head: Any, X: Any) -> Any:
    return head.predict_proba(X) if hasattr(head, "predict_proba") else head.predict(X)


def check(heads: list[Any], X: Any, y: Any, folds: list[Any], atol: float, **more: Any) -> None:
    weights = more.get("sample_weight")
    fitted = fit_many(heads, X, y, folds, **more)
    assert [len(row) for row in fitted] == [len(folds)] * len(heads)
    for head, row in zip(heads, fitted, strict=True):
        assert not hasattr(head, "net_")
        for fold, made in zip(folds, row, strict=True):
            given = {} if weights is None else {"sample_weight": weights[fold]}
            alone = clone(head).fit(X[fold], y[fold], **given)
            assert made.get_params() == alone.get_params()
            np.testing.assert_allclose(outputs(made, X), outputs(alone, X), atol=atol)
            assert made.n_epochs_ == alone.n_epochs_
            np.testing.assert_allclose(made.stopping_losses_, alone.stopping_losses_, atol=atol)
            for name in ("train_loss", "epoch") if made.n_epochs_ else ():
                found, wanted = (net.history[:, name] for net in (made.net_, alone.net_))
                np.testing.assert_allclose(found, wanted, atol=atol)


@SHAPES
@pytest.mark.parametrize(
    "estimator", [FusionMLPClassifier, pytest.param(FusionMLPRegressor, marks=pytest.mark.slow)]
)
def test_together_is_one_by_one(estimator, widths):
    X, y = data(60, widths)
    heads = [estimator(dtype="float64", **SMALL, **setting) for setting in SETTINGS]
    check(heads, X, y, FOLDS[:2], atol=1e-5)


@SHAPES
def test_single_precision_predicts_the_same(widths):
    X, y = data(60, widths)
    heads = [FusionMLPClassifier(**SMALL, **setting) for setting in SETTINGS[:2]]
    for head, row in zip(heads, fit_many(heads, X, y, FOLDS), strict=True):
        for fold, made in zip(FOLDS, row, strict=True):
            alone = clone(head).fit(X[fold], y[fold])
            np.testing.assert_allclose(outputs(made, X), outputs(alone, X), atol=1e-3)
            np.testing.assert_array_equal(made.predict(X), alone.predict(X))


def test_the_papers_recipe_and_batches_of_unequal_size():
    X, y = data(60, (5, 4))
    more = {"solver": "paper", "batch_size": 16, "dtype": "float64"}
    heads = [FusionMLPClassifier("sum", **SMALL, **more)]
    heads.append(FusionMLPClassifier("sum", early_stopping=True, **SMALL, **more))
    check(heads, X, y, [np.arange(36), np.arange(20, 58), np.arange(14)], atol=1e-5)


@SHAPES
def test_weights_are_those_of_the_rows(widths):
    X, y = data(60, widths)
    weights = np.random.default_rng(1).integers(0, 3, size=60).astype(float)
    heads = [
        FusionMLPClassifier(operator, dtype="float64", **SMALL) for operator in ("sum", "concat")
    ]
    check(heads, X, y, FOLDS, atol=1e-5, sample_weight=weights)


def test_candidates_that_differ_in_training_only():
    """They share a shape, but neither step size nor seed nor classes."""
    X, y = data(60, (5, 4))
    changes: list[dict[str, Any]] = [
        {},
        {"lr": 1e-2},
        {"random_state": 1},
        {"weight_decay": 0.1},
        {"class_weight": "balanced"},
        {"label_smoothing": 0.2},
        {"scale": "l2"},
        {"max_epochs": 0},
        {"dropout": 0.0},
    ]
    heads = [FusionMLPClassifier("sum", dtype="float64", **{**SMALL, **more}) for more in changes]
    check(heads, X, y, FOLDS[:2], atol=1e-5)


def test_folds_may_be_masks_and_arrays_plain():
    X, y = data(60, (5, 4))
    masks = [np.isin(np.arange(60), fold) for fold in FOLDS]
    head = FusionMLPClassifier(dtype="float64", **SMALL)
    check([head], np.asarray(X), y, masks, atol=1e-5)


def test_callbacks_and_warm_start_are_heard():
    X, y = data(60, (5, 4))
    stop = EarlyStopping(monitor="train_loss", patience=1, threshold=10.0, threshold_mode="abs")
    stop.sink = str
    heads = [
        FusionMLPClassifier(**SMALL),
        FusionMLPClassifier(callbacks=[stop], early_stopping=False, **SMALL),
        FusionMLPClassifier(warm_start=True, **SMALL),
    ]
    fitted = fit_many(heads, X, y, FOLDS[:2])
    assert all(made.n_epochs_ == 2 for made in fitted[1])
    for head, row in zip(heads, fitted, strict=True):
        for fold, made in zip(FOLDS, row, strict=False):
            alone = clone(head).fit(X[fold], y[fold])
            np.testing.assert_allclose(outputs(made, X), outputs(alone, X), atol=1e-3)


def test_operators_of_ones_own_are_trained_too():
    register_operator("head_many_gap", lambda blocks: abs(blocks[0] - blocks[1]))
    X, y = data(60, (5, 4))
    check([FusionMLPClassifier("head_many_gap", dtype="float64", **SMALL)], X, y, FOLDS, atol=1e-5)


def test_what_was_trained_together_can_go_on():
    X, y = data(60, (5, 4))
    head = FusionMLPClassifier("sum", dtype="float64", **SMALL)
    ((made,),), alone = fit_many([head], X, y, [FOLDS[0]]), clone(head).fit(X[:52], y[:52])
    assert made.partial_fit(X, y).n_epochs_ == alone.n_epochs_ + 1


def test_other_estimators_are_a_type_error():
    X, y = data(60, (5, 4))
    with pytest.raises(TypeError, match=r"FusionMLPRegressor, got LogisticRegression\(\).*joblib"):
        fit_many([LogisticRegression()], X, y, FOLDS)


def test_wrong_parameters_are_the_errors_of_fit():
    X, y = data(60, (5, 4))
    with pytest.raises(ValueError, match="'lr' parameter"):
        fit_many([FusionMLPClassifier(lr=-1)], X, y, FOLDS)
    with pytest.raises(ValueError, match="no operator 'tensor'"):
        fit_many([FusionMLPClassifier("tensor")], X, y, FOLDS)


def test_a_loss_that_is_not_finite_is_an_error():
    X, y = data(60, (5, 4))
    heads = [FusionMLPClassifier(solver="paper", **{**SMALL, "lr": 1e30})]
    with pytest.raises(FloatingPointError, match=r"in epoch [12], with learning rate 1e\+30"):
        fit_many(heads, X, y, FOLDS)
