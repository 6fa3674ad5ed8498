"""Rows of the neural head: rounding moves nothing; who is held out; how many epochs there are."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from _support.rows import three_classes
from hypothesis import given, settings
from hypothesis import strategies as st

from skfusion import EmbeddingBlocks, FusionMLPClassifier, FusionMLPRegressor
from skfusion.neural import solvers
from skfusion.neural.data import Rows, merge_rows, stable_order, to_dtype
from skfusion.neural.modules import Architecture

SMALL: dict[str, Any] = {"n_components": 8, "hidden_layer_sizes": (16, 8), "random_state": 0}
BOTH_SOLVERS = pytest.mark.parametrize("solver", ["auto", "paper"])
EITHER_SHAPE = pytest.mark.parametrize("width", [6, 100])  # both ways of stopping


def blocks(X: Any) -> EmbeddingBlocks:
    half = X.shape[1] // 2
    return EmbeddingBlocks([X[:, :half], X[:, half:]])


# --- rounding ---------------------------------------------------------------------------------


def changes(X: Any) -> dict[str, Any]:
    """The same rows but for rounding."""
    return {"single": X.astype(np.float32), "shifted": X + 1e-9, "scaled": X * (1 + 1e-9)}


@EITHER_SHAPE
@pytest.mark.parametrize("operator", ["concat", "hadamard"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rounding_moves_no_probability(width, operator, dtype):
    X, y = three_classes(width=width)
    X = np.round(X, 2)  # some are equal after rounding, in decimals that are no binary fractions
    X[30:], y[30:] = X[:30], y[:30]
    head = FusionMLPClassifier(operator, dtype=dtype, **{**SMALL, "max_epochs": 30})
    expected = head.fit(blocks(X), y).predict_proba(blocks(X))
    for name, other in changes(X).items():
        found = head.fit(blocks(other), y).predict_proba(blocks(X))
        np.testing.assert_allclose(found, expected, atol=1e-5, err_msg=name)


@EITHER_SHAPE
def test_rounding_moves_no_number(width):
    X, y = three_classes(width=width)
    head = FusionMLPRegressor(**{**SMALL, "max_epochs": 30})
    target = X[:, 0] * 3 + y
    expected = head.fit(blocks(X), target).predict(blocks(X))
    for name, other in changes(X).items():
        found = head.fit(blocks(other), target + 1e-9).predict(blocks(X))
        np.testing.assert_allclose(found, expected, atol=1e-5, err_msg=name)


POINTS = st.tuples(st.integers(-3, 3), st.integers(-3, 3))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(POINTS, min_size=1, max_size=40, unique=True),
    st.sampled_from([1.0, 0.1, 1e-3, 1 / 3]),
    st.integers(0, 99),
)
def test_an_order_that_neither_rounding_nor_the_order_given_moves(points, unit, seed):
    """On a lattice, where all distances are equal but for rounding, it is hardest."""
    X = np.array(points, dtype=float) * unit
    ordered = X[stable_order([X])]
    for other in changes(X).values():
        np.testing.assert_array_equal(X[stable_order([other])], ordered)
    shuffled = X[np.random.default_rng(seed).permutation(len(X))]
    np.testing.assert_array_equal(shuffled[stable_order([shuffled])], ordered)
    one, other = (rows[stable_order([rows[:, :1], rows[:, 1:]])] for rows in (X, shuffled))
    np.testing.assert_array_equal(one, other)


def test_an_order_of_many_rows(rng):
    """Sorted by one number, a few of these rows would be closer to each other than rounding."""
    X = rng.normal(size=(20_000, 20)) + 5
    order = stable_order([X])
    np.testing.assert_array_equal(np.sort(order), np.arange(len(X)))
    np.testing.assert_array_equal(stable_order([X.astype(np.float32)]), order)
    mixed = rng.permutation(len(X))
    np.testing.assert_array_equal(mixed[stable_order([X[mixed]])], order)


def test_rows_are_merged_where_the_network_sees_no_difference():
    X = np.array([[1.0, 2.0], [1.0 + 1e-12, 2.0], [0.0, 1.0], [-0.0, 1.0]])
    for rows, n in [(to_dtype(X, "float32"), 2), (to_dtype(X, "float64"), 3)]:
        positions, weights = merge_rows([rows], np.ones(4))
        assert len(positions) == n and weights.sum() == 4


def test_what_single_precision_cannot_tell_apart_stays_double(rng):
    seconds = 1.7e9 + rng.uniform(0, 60, size=(20, 1))  # rounded to 128 s in single precision
    assert to_dtype(seconds, "float32").dtype == np.float64
    assert to_dtype(np.full((3, 1), 1e100), "float32").dtype == np.float64
    assert to_dtype(rng.normal(size=(20, 3)), "float32").dtype == np.float32
    y = (seconds[:, 0] > 1.7e9 + 30).astype(int)
    head = FusionMLPClassifier(block_sizes="single", lr=3e-3, max_epochs=60, **SMALL)
    head.fit(seconds, y)
    assert head.score(seconds, y) > 0.9


# --- who is held out --------------------------------------------------------------------------


def held_out(codes: Any, fraction: float, early_stopping: bool | str = True) -> Any:
    n = len(codes)
    rows = Rows(
        torch.zeros(n, 1), torch.zeros(n, 2), *[torch.ones(n)] * 2, torch.tensor(codes),
        torch.ones(n),
    )  # fmt: skip
    training = solvers.Training(
        architecture=Architecture(widths=(1,), n_outputs=2), kind="multiclass", rows=rows, seed=0,
        start=None, solver="auto", lr=1e-3, weight_decay=0.0, batch_size=10, max_epochs=1,
        early_stopping=early_stopping, validation_fraction=fraction, callbacks=[], verbose=0,
    )  # fmt: skip
    return training._hold_out()


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=60),
    st.floats(0.01, 0.99),
    st.sampled_from([True, "auto"]),
)
def test_one_row_of_each_class_at_least_is_trained_on(codes, fraction, early_stopping):
    try:
        held = held_out(codes, fraction, early_stopping)
    except ValueError as error:
        assert "early_stopping=True" in str(error)
        return
    if held is None:
        return
    trained = Counter(np.array(codes)[~held.numpy()].tolist())
    total = Counter(codes)
    assert set(trained) == set(total)
    for code, n in total.items():
        assert n - trained[code] <= round(n * fraction)


@BOTH_SOLVERS
@pytest.mark.parametrize("estimator", [FusionMLPClassifier, FusionMLPRegressor])
def test_a_fraction_of_nearly_all_rows_leaves_some(estimator, solver):
    """Classes of one row, of two, and of two that are equal."""
    X, y = three_classes(24)
    y[:] = 0
    y[:9], y[9:11], y[11], y[12:14] = 1, 2, 3, 4
    X[13] = X[12]
    settings = {**SMALL, "solver": solver, "early_stopping": True, "validation_fraction": 0.95}
    head = estimator(max_epochs=30, lr=1e-2, **settings).fit(blocks(X), y)
    assert head.validation_losses_ and np.isfinite(head.validation_losses_).all()
    assert np.isfinite(head.predict(blocks(X))).all()


def test_the_only_positives_of_a_label_are_trained_on():
    """Each set of labels stays, so every label has a positive and a negative."""
    X, _ = three_classes(40)
    labels = np.zeros((40, 3), dtype=int)
    labels[:20, 0] = 1
    labels[3, 1] = labels[5:7, 2] = 1
    seen: list[Any] = []

    def spy(start: Any, rows: Rows, *args: Any, **more: Any) -> Any:
        seen.append(rows.target.numpy())
        return trained(start, rows, *args, **more)

    trained = solvers.train
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(solvers, "train", spy)
        settings = {**SMALL, "early_stopping": True, "validation_fraction": 0.9}
        FusionMLPClassifier(max_epochs=2, **settings).fit(blocks(X), labels)
    search, *again = seen  # on all rows, where the search has found a gain
    assert len(search) < 40 and all(len(rows) == 40 for rows in again)
    assert (search.min(axis=0) == 0).all() and (search.max(axis=0) == 1).all()


# --- epochs -----------------------------------------------------------------------------------


@BOTH_SOLVERS
@EITHER_SHAPE
@pytest.mark.parametrize("early_stopping", ["auto", True, False])
@pytest.mark.parametrize("max_epochs", [0, 1, 2, 7])
def test_max_epochs_is_the_most_there_are(solver, width, early_stopping, max_epochs):
    X, y = three_classes(width=width)
    head = FusionMLPClassifier(
        solver=solver, early_stopping=early_stopping, max_epochs=max_epochs, **SMALL
    ).fit(blocks(X), y)
    assert head.n_iter_ == len(head.net_.history) <= max_epochs
    assert len(head.validation_losses_) <= max_epochs
    assert head.predict_proba(blocks(X)).shape == (60, 3)


def test_without_a_number_few_rows_get_more_epochs():
    """As the paper's 120 where it is the paper's recipe, and else steps count."""
    X, y = three_classes(20)
    settings = {**SMALL, "hidden_layer_sizes": (2,), "early_stopping": False}
    paper = FusionMLPClassifier(solver="paper", **settings).fit(blocks(X), y)
    assert paper.n_iter_ == 120
    auto = FusionMLPClassifier(lr=3e-6, **settings).fit(blocks(X), y)  # it hardly learns
    assert 120 < auto.n_iter_ <= 960


# --- dropout ----------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(), (32,), (16, 8), (16, 8, 8), [9]])
@pytest.mark.parametrize("estimator", [FusionMLPClassifier, FusionMLPRegressor])
def test_there_is_a_dropout_for_every_number_of_layers(estimator, sizes):
    X, y = three_classes()
    settings = {**SMALL, "hidden_layer_sizes": sizes, "max_epochs": 2}
    head = estimator(**settings).fit(blocks(X), y)
    expected = (0.5, 0.3, 0.3)[: len(sizes)]
    assert head.net_.module_.architecture.dropout == expected
    told = estimator(dropout=0.2, **settings).fit(blocks(X), y)
    assert told.net_.module_.architecture.dropout == (0.2,) * len(sizes)
