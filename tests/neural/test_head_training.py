"""How the neural head trains: how long, with which rows, numbers, callbacks and interruptions."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from _support.rows import three_classes
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import softmax
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.metrics import f1_score, pairwise_distances
from skorch.callbacks import Callback, EarlyStopping
from skorch.utils import params_for

from skfusion import EmbeddingBlocks, FusionMLPClassifier, FusionMLPRegressor
from skfusion.neural.data import Rows, balance, merge_rows
from skfusion.neural.modules import LOSSES
from skfusion.neural.penalised import (
    _minimise,
    _predict,
    solve_regression,
    stratified_folds,
    to_basis,
)
from skfusion.neural.training import StopRule

SMALL: dict[str, Any] = {
    "n_components": 16,
    "hidden_layer_sizes": (32, 16),
    "block_sizes": "single",
    "random_state": 0,
}
BRIEF: dict[str, Any] = {**SMALL, "max_epochs": 4}
BOTH = pytest.mark.parametrize("solver", ["auto", "paper"])
EITHER_SHAPE = pytest.mark.parametrize("width", [4, 100])  # both ways of stopping


def as_rows(X: Any, y: Any, weights: Any = None) -> Rows:
    counts = np.ones(len(y)) if weights is None else weights
    shares = balance(counts, y, np.ones(len(y)))
    arrays = [X, np.eye(y.max() + 1)[y], counts / counts.mean(), shares, y, np.ones(len(y))]
    return Rows(*[torch.from_numpy(np.ascontiguousarray(array)) for array in arrays])


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def crossed(n: int, width: int = 2, seed: int = 0) -> tuple[Any, Any]:
    """Two classes that no line separates, by the signs of the first two columns."""
    X = np.random.default_rng(seed).uniform(-1, 1, size=(n, width))
    return X, (X[:, 0] * X[:, 1] > 0).astype(int)


def losses(head: Any, name: str = "train_loss") -> list[float]:
    return list(head.net_.history[:, name])


# --- how closely rows should be fitted --------------------------------------------------------


@pytest.mark.parametrize("width", [5, 70])
@pytest.mark.parametrize("decay", [0.03, 1.0])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_regression_is_that_of_scikit_learn(width, decay, weighted):
    X, y = three_classes(50, width)
    weights = np.random.default_rng(1).integers(1, 4, size=50) if weighted else np.ones(50)
    rows = as_rows(X, y, weights.astype(float))
    basis = to_basis(rows.X, rows.weights)
    V, c = _minimise(
        basis,
        rows.target,
        rows.weights[:, None],
        LOSSES["multiclass"],
        torch.tensor([decay], dtype=torch.float64),
        steps=5000,
    )
    found = softmax(_predict(basis.rows, V, c)[:, 0].numpy(), axis=1)
    known = LogisticRegression(C=1 / (weights.sum() * decay), tol=1e-10, max_iter=5000)
    known.fit(X, y, sample_weight=weights)
    np.testing.assert_allclose(found, known.predict_proba(X), atol=1e-4)


@EITHER_SHAPE
def test_a_basis_is_the_rows_turned(width):
    X, _ = three_classes(40, width)
    weights = torch.from_numpy(np.random.default_rng(1).uniform(0.5, 1.5, size=40))
    weights = weights / weights.mean()
    basis = to_basis(torch.from_numpy(X), weights)
    np.testing.assert_allclose(weights @ basis.rows, 0, atol=1e-6)
    distances = torch.cdist(basis.rows, basis.rows)
    np.testing.assert_allclose(distances, pairwise_distances(X), atol=1e-6)
    gram = basis.rows.T @ (basis.rows * weights[:, None]) / 40
    np.testing.assert_allclose(gram, np.diag(basis.variances), atol=1e-6)


def test_noise_is_to_be_fitted_less_closely_than_signal(rng):
    X, y = three_classes(60, 100)
    X[:, :3] *= 20
    signal, noise = (
        solve_regression(as_rows(X, labels), LOSSES["multiclass"], [], generator()).level
        for labels in (y, rng.permutation(y))
    )
    assert 0 < signal < 0.7 < noise < np.log(3) + 1e-3


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=60), st.integers(1, 6), st.integers(0, 9))
def test_folds_are_stratified_and_of_one_size(codes, n_folds, seed):
    groups = torch.tensor(codes)
    folds = stratified_folds(groups, n_folds, generator(seed))
    assert folds.min() >= 0 and folds.max() < n_folds
    assert np.ptp(np.bincount(folds, minlength=n_folds)) <= 1
    for code in set(codes):
        shares = np.bincount(folds[groups == code], minlength=n_folds)
        assert np.ptp(shares) <= 1


# --- rows -------------------------------------------------------------------------------------

ROWS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 3)), min_size=1, max_size=30
)


@settings(max_examples=60, deadline=None)
@given(ROWS, st.randoms(use_true_random=False))
def test_merged_rows(entries, random):
    """No row twice, none of weight 0, weights add up, and the order given does not matter."""

    def merged(listed: Any) -> tuple[Any, Any, Any]:
        a, b, weights = (np.array(column, dtype=float) for column in zip(*listed, strict=True))
        chosen, sums = merge_rows([a[:, None], b[:, None]], weights)
        return a[chosen], b[chosen], sums

    a, b, sums = merged(entries)
    expected: dict[tuple[int, int], float] = {}
    for x, y, weight in entries:
        expected[x, y] = expected.get((x, y), 0) + weight
    found = list(zip(a, b, strict=True))
    assert len(set(found)) == len(found)
    assert dict(zip(found, sums, strict=True)) == {k: w for k, w in expected.items() if w}
    shuffled = list(entries)
    random.shuffle(shuffled)
    for one, other in zip((a, b, sums), merged(shuffled), strict=True):
        np.testing.assert_array_equal(one, other)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9)), min_size=1, max_size=30))
def test_balanced_rows_make_classes_count_the_same(entries):
    codes, counts = (np.array(column) for column in zip(*entries, strict=True))
    weights = balance(counts.astype(float), codes, np.ones(len(codes)))
    sums = np.bincount(codes, weights=weights)[np.unique(codes)]
    np.testing.assert_allclose(sums, 1 / len(sums))
    for code in np.unique(codes):  # and rows of one class by their number
        share = weights[codes == code] / counts[codes == code]
        np.testing.assert_allclose(share, share[0])


@BOTH
def test_a_row_of_weight_zero_might_as_well_not_be_there(solver):
    X, y = three_classes()
    weights = np.repeat([1.0, 0.0], [40, 20])
    head = FusionMLPClassifier(solver=solver, scale=None, **BRIEF)
    weighted = head.fit(X, y, sample_weight=weights).predict_proba(X)
    np.testing.assert_array_equal(weighted, head.fit(X[:40], y[:40]).predict_proba(X))


@EITHER_SHAPE
@pytest.mark.parametrize("estimator", [FusionMLPClassifier, FusionMLPRegressor])
def test_the_order_of_rows_does_not_matter(width, estimator, rng):
    X, y = three_classes(width=width)
    order = rng.permutation(len(y))
    head = estimator("sum", **BRIEF)
    np.testing.assert_array_equal(
        head.fit(X, y).predict(X), head.fit(X[order], y[order]).predict(X)
    )
    found = head.validation_losses_
    np.testing.assert_allclose(found, head.fit(X, y).validation_losses_, atol=1e-5)


# --- when to stop -----------------------------------------------------------------------------


def stop_rule(patience: int, target: float | None, values: list[float]) -> StopRule:
    made = StopRule(patience, target_loss=target)
    for value in values:
        made.add(value)
    return made


def test_the_stop_rule_waits_for_a_gain():
    assert not stop_rule(2, None, []).is_over
    assert not stop_rule(2, None, [3.0, 2.0, 2.5]).is_over
    over = stop_rule(2, None, [3.0, 2.0, 2.5, 2.0])  # no less: no gain
    assert over.is_over and over.best_epoch == 2


def test_the_stop_rule_ends_at_a_target():
    assert not stop_rule(9, 0.5, [3.0, 0.6, 4.0, 5.0, 6.0]).is_over
    assert stop_rule(9, 0.5, [3.0, 0.5]).is_over


def test_the_loss_that_says_when_to_stop_is_of_all_rows_and_balanced_where_that_is_asked_for():
    X, y = three_classes(60, 100)
    y[y == 1] = 0  # one class of 40, one of 20
    settings = {**BRIEF, "max_epochs": 3, "early_stopping": False}
    head = FusionMLPClassifier(class_weight="balanced", **settings).fit(X, y)
    row_losses = -np.log(head.predict_proba(X)[np.arange(60), y // 2])
    by_class = [row_losses[y == k].mean() for k in (0, 2)]
    assert head.validation_losses_[-1] == pytest.approx(np.mean(by_class), rel=1e-4)


def test_with_no_row_held_out_training_ends_at_a_level():
    X, y = three_classes(40, 60)
    settings = {**SMALL, "lr": 5e-4, "dropout": 0.0, "early_stopping": False}
    head = FusionMLPClassifier(**settings).fit(X, y)
    assert not head.linear_only_ and np.isnan(head.gain_)
    assert len(head.validation_losses_) == head.n_iter_ == len(head.net_.history)
    assert head.validation_losses_[-1] < min(head.validation_losses_[:-1])


def test_with_more_rows_the_best_number_of_epochs_is_used_on_all():
    X, y = crossed(200)
    head = FusionMLPClassifier(**{**SMALL, "lr": 1e-3}).fit(X, y)
    assert not head.linear_only_
    assert head.n_iter_ == np.argmin(head.validation_losses_) + 1 < len(head.validation_losses_)
    assert len(head.net_.history) == head.n_iter_
    assert "valid_loss" not in head.net_.history[-1]


def test_early_stopping_that_holds_out_no_row_says_so():
    X, _ = three_classes(6)
    with pytest.raises(ValueError, match=r"early_stopping=True.*validation_fraction=0.1"):
        FusionMLPClassifier(early_stopping=True, **SMALL).fit(X, np.arange(6) % 3)


# --- random numbers ---------------------------------------------------------------------------


@BOTH
@EITHER_SHAPE
def test_equal_seeds_give_equal_results_and_others_do_not(solver, width):
    X, y = three_classes(width=width)
    settings = {**BRIEF, "solver": solver, "early_stopping": False, "lr": 1e-3}
    one, same, other = (
        FusionMLPClassifier(**{**settings, "random_state": seed}).fit(X, y) for seed in (3, 3, 4)
    )
    np.testing.assert_array_equal(one.predict_proba(X), same.predict_proba(X))
    assert losses(one) == losses(same)
    assert not np.allclose(one.predict_proba(X), other.predict_proba(X), atol=1e-4)
    drawn = np.random.RandomState(3)
    first, second = (
        FusionMLPClassifier(**{**settings, "random_state": drawn}).fit(X, y) for _ in range(2)
    )
    np.testing.assert_array_equal(one.predict_proba(X), first.predict_proba(X))
    assert not np.allclose(one.predict_proba(X), second.predict_proba(X), atol=1e-4)


@BOTH
@pytest.mark.parametrize("estimator", [FusionMLPClassifier, FusionMLPRegressor])
def test_global_generators_are_not_touched(solver, estimator):
    X, y = three_classes()
    np.random.seed(5)  # noqa: NPY002 - the global generator is what is looked at
    torch.manual_seed(5)
    before = np.random.get_state()[1].copy(), torch.get_rng_state()  # noqa: NPY002
    position = np.random.get_state()[2]  # noqa: NPY002
    head = estimator("gated", solver=solver, block_dropout=0.2, **BRIEF).fit(X, y)
    head.predict(X)
    head.partial_fit(X, y)
    after = np.random.get_state()  # noqa: NPY002
    np.testing.assert_array_equal(after[1], before[0])
    assert after[2] == position
    assert torch.equal(torch.get_rng_state(), before[1])


def test_each_pass_of_partial_fit_drops_other_units():
    """With a step size of nearly nothing only dropout tells the passes apart."""
    X, y = three_classes()
    head = FusionMLPClassifier(lr=1e-12, **SMALL)
    for _ in range(3):
        head.partial_fit(X, y, classes=[0, 1, 2])
    assert len(set(losses(head))) == 3


# --- what goes wrong --------------------------------------------------------------------------


class InterruptAt(Callback):  # type: ignore[misc]
    """Ctrl-C at the end of an epoch, or of its first batch."""

    def __init__(self, epoch: int, *, in_batch: bool = False) -> None:
        self.epoch, self.in_batch = epoch, in_batch

    def on_batch_end(self, net: Any, training: bool = True, **_: Any) -> None:
        if self.in_batch and len(net.history) == self.epoch:
            raise KeyboardInterrupt

    def on_epoch_end(self, net: Any, **_: Any) -> None:
        if len(net.history) == self.epoch:
            raise KeyboardInterrupt


class KeepWeights(Callback):  # type: ignore[misc]
    """Keeps the weights after each epoch in a list of the test."""

    kept: list[dict[str, Any]] = []  # noqa: RUF012 - copies of the callback share it

    def on_epoch_end(self, net: Any, **_: Any) -> None:
        self.kept.append(copy.deepcopy(net.module_.state_dict()))


@pytest.mark.parametrize("estimator", [FusionMLPClassifier, FusionMLPRegressor])
def test_a_loss_that_is_not_finite_is_an_error(estimator):
    X, y = three_classes()
    X[7, 2] = -1234.5
    head = estimator(solver="paper", **{**SMALL, "lr": 1e30})
    message = r"loss became (nan|inf) in epoch [12], with learning rate 1e\+30.* is 1234.5\. Use"
    with pytest.raises(FloatingPointError, match=message):
        head.fit(X, y)


@BOTH
@pytest.mark.parametrize("in_batch", [False, True])
@pytest.mark.parametrize("early_stopping", [False, True])
def test_an_interruption_leaves_a_network(solver, early_stopping, in_batch):
    X, y = three_classes(90)
    head = FusionMLPClassifier(
        solver=solver,
        early_stopping=early_stopping,
        callbacks=[InterruptAt(3, in_batch=in_batch)],
        **SMALL,
    ).fit(X, y)
    assert head.n_iter_ == len(head.net_.history) == 3
    assert all(w.isfinite().all() for w in head.net_.module_.state_dict().values())
    assert head.predict(X).shape == (90,)


def test_an_interrupted_search_leaves_the_best_weights():
    X, y = crossed(200)
    KeepWeights.kept.clear()
    head = FusionMLPClassifier(
        class_weight="balanced",  # no odds to take back at the end
        early_stopping=True,
        callbacks=[KeepWeights(), InterruptAt(12)],
        **{**SMALL, "lr": 0.05},
    ).fit(X, y)  # the steps are so large that the last epoch is not the best
    best = int(np.argmin(head.validation_losses_))
    assert len(head.validation_losses_) == len(KeepWeights.kept) > best + 1
    for name, weight in head.net_.module_.state_dict().items():
        assert torch.equal(weight, KeepWeights.kept[best][name]), name


# --- callbacks, history, bars -----------------------------------------------------------------


def test_callbacks_are_copied_and_never_written_on():
    X, y = three_classes(90)
    stop, keep = EarlyStopping(monitor="train_loss", patience=2), KeepWeights()
    before = [copy.deepcopy(vars(callback)) for callback in (stop, keep)]
    given = [stop, ("keep", keep)]
    head = FusionMLPClassifier(callbacks=given, **BRIEF).fit(X, y)
    assert head.callbacks is given and given[0] is stop
    assert [vars(callback) for callback in (stop, keep)] == before
    found = [callback for _, callback in head.net_.callbacks_]
    assert any(isinstance(callback, KeepWeights) for callback in found)
    assert not any(callback is keep or callback is stop for callback in found)


@BOTH
def test_an_early_stopping_of_skorch_ends_the_search(solver, rng):
    X, y = three_classes(90)
    y = rng.permutation(y)
    stop = EarlyStopping(monitor="valid_loss", patience=2, sink=str)
    settings = {**SMALL, "lr": 1e-2, "early_stopping": True, "solver": solver, "max_epochs": 60}
    head = FusionMLPClassifier(callbacks=[stop], **settings).fit(X, y)
    assert head.validation_losses_
    assert len(head.validation_losses_) == np.argmin(head.validation_losses_) + 1 + 2
    # What was found is used on all rows, as without the callback.
    best = 0 if head.linear_only_ else np.argmin(head.validation_losses_) + 1
    assert head.n_iter_ == len(head.net_.history) == best
    assert not any("valid_loss" in epoch for epoch in head.net_.history)


def test_callbacks_on_a_validation_loss_do_not_run_without_one():
    X, y = three_classes()
    stop = EarlyStopping(monitor="valid_loss", patience=1, sink=str)
    settings = {**BRIEF, "solver": "paper"}
    plain = FusionMLPClassifier(**settings).fit(X, y)
    head = FusionMLPClassifier(callbacks=[stop], **settings).fit(X, y)
    np.testing.assert_array_equal(plain.predict_proba(X), head.predict_proba(X))


@BOTH
def test_the_history_tells_each_epoch(solver):
    X, y = three_classes(60, 100)
    head = FusionMLPClassifier(solver=solver, early_stopping=False, **BRIEF).fit(X, y)
    assert list(head.net_.history[:, "epoch"]) == list(range(1, head.n_iter_ + 1))
    assert np.isfinite(losses(head)).all()
    assert head.loss_curve_ == losses(head)
    assert (np.array(head.net_.history[:, "dur"]) > 0).all()
    if solver == "auto":
        assert losses(head, "valid_loss") == head.validation_losses_


def test_verbose_shows_a_bar_and_silence_is_the_default(capsys):
    X, y = three_classes()
    FusionMLPClassifier(**BRIEF).fit(X, y)
    silent = capsys.readouterr()
    assert silent.out == silent.err == ""
    FusionMLPClassifier(verbose=1, early_stopping=False, **BRIEF).fit(X, y)
    shown = capsys.readouterr()
    assert shown.out == "" and "fit" in shown.err and "epoch" in shown.err
    FusionMLPClassifier(verbose=1, early_stopping=True, **BRIEF).fit(X, y)
    assert "find epochs" in capsys.readouterr().err


def test_skorch_sees_its_own_parameters():
    X, y = three_classes()
    head = FusionMLPClassifier(weight_decay=0.25, solver="paper", **BRIEF).fit(X, y)
    assert params_for("optimizer", head.net_.get_params(deep=False)) == {"weight_decay": 0.25}
    assert head.net_.optimizer_.param_groups[0]["weight_decay"] == 0.25


# --- going on ---------------------------------------------------------------------------------


def train_loss(head: Any, X: Any, y: Any) -> float:
    return -float(np.log(head.predict_proba(X)[np.arange(len(y)), y]).mean())


@BOTH
@EITHER_SHAPE
def test_warm_start_goes_on(solver, width):
    X, y = three_classes(width=width)
    settings = {**SMALL, "solver": solver, "warm_start": True, "early_stopping": False}
    head = FusionMLPClassifier(**settings, dropout=0.0, lr=1e-3, max_epochs=10).fit(X, y)
    before = train_loss(head, X, y)
    assert train_loss(head.fit(X, y), X, y) < before


@BOTH
def test_warm_start_refuses_another_shape(solver):
    X, y = three_classes()
    head = FusionMLPClassifier(solver=solver, warm_start=True, **BRIEF).fit(X, y)
    with pytest.raises(ValueError, match=r"warm_start=True.*shape.*warm_start=False"):
        head.set_params(hidden_layer_sizes=(8, 8)).fit(X, y)
    head.set_params(hidden_layer_sizes=(32, 16))
    with pytest.raises(ValueError, match="features"):
        head.fit(X[:, :3], y)
    with pytest.raises(ValueError, match="classes"):
        head.fit(X, np.where(y == 2, 1, y) + 5)


def test_warm_start_may_see_fewer_classes():
    X, y = three_classes()
    head = FusionMLPClassifier(warm_start=True, **BRIEF).fit(X, y)
    head.fit(X[y != 2], y[y != 2])
    np.testing.assert_array_equal(head.classes_, [0, 1, 2])
    assert head.predict_proba(X).shape == (60, 3)


# --- inputs -----------------------------------------------------------------------------------


@BOTH
def test_double_precision(solver):
    X, y = three_classes()
    single, double = (
        FusionMLPClassifier(solver=solver, dtype=dtype, **BRIEF).fit(X, y)
        for dtype in ("float32", "float64")
    )
    assert {w.dtype for w in single.net_.module_.state_dict().values()} == {torch.float32}
    assert {w.dtype for w in double.net_.module_.state_dict().values()} == {torch.float64}
    assert double.predict_proba(X).dtype == single.predict_proba(X).dtype == np.float64


@pytest.mark.parametrize("operator", ["concat", "sum"])
def test_a_frame_with_block_names_is_blocks(operator):
    X, y = three_classes()
    names = ["a__0", "a__1", "b__0", "b__1", "b__2", "b__3"]
    frame, blocks = pd.DataFrame(X, columns=names), EmbeddingBlocks({"a": X[:, :2], "b": X[:, 2:]})
    settings = {**BRIEF, "block_sizes": None}
    framed = FusionMLPClassifier(operator, **settings).fit(frame, y)
    assert framed.block_indices_ == {"a": slice(0, 2), "b": slice(2, 6)}
    assert list(framed.feature_names_in_) == names
    blocked = FusionMLPClassifier(operator, **settings).fit(blocks, y)
    np.testing.assert_array_equal(framed.predict_proba(frame), blocked.predict_proba(blocks))


def test_a_frame_with_plain_columns_is_one_block_where_that_is_said():
    X, y = three_classes()
    frame = pd.DataFrame(X, columns=list("uvwxyz"))
    head = FusionMLPClassifier("sum", **BRIEF).fit(frame, y)
    assert list(head.block_indices_.values()) == [slice(0, 6)]
    assert list(head.feature_names_in_) == list("uvwxyz") and head.n_features_in_ == 6
    plain = FusionMLPClassifier("sum", **BRIEF).fit(X, y)
    np.testing.assert_array_equal(head.predict_proba(frame), plain.predict_proba(X))
    with pytest.raises(ValueError, match="feature names"):
        head.predict(frame.rename(columns={"u": "a"}))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_an_input_that_is_not_finite_is_an_error(bad):
    X, y = three_classes()
    head = FusionMLPClassifier(**BRIEF).fit(X, y)
    X[3, 3] = bad
    for call in (lambda: head.predict(X), lambda: FusionMLPClassifier(**BRIEF).fit(X, y)):
        with pytest.raises(ValueError, match=r"NaN|infinity"):
            call()


# --- few rows and many columns ----------------------------------------------------------------


def crowded(n: int, seed: int = 0) -> tuple[Any, Any]:
    """Unit-norm vectors of three classes that share most of their direction, as embeddings do."""
    rng = np.random.default_rng(seed)
    shared, centres = 4 * rng.normal(size=1024), 0.5 * rng.normal(size=(3, 1024))
    y = rng.integers(0, 3, size=n)
    X = shared + centres[y] + rng.normal(size=(n, 1024))
    return X / np.linalg.norm(X, axis=1, keepdims=True), y


@pytest.mark.slow
def test_where_the_papers_recipe_fails_auto_does_not():
    X, y = crowded(800)
    train, test = slice(200), slice(200, None)

    def macro_f1(classifier: Any, X: Any) -> float:
        return float(
            f1_score(y[test], classifier.fit(X[train], y[train]).predict(X[test]), average="macro")
        )

    assert macro_f1(RidgeClassifier(), X) >= 0.995
    blocks = EmbeddingBlocks([X])
    assert macro_f1(FusionMLPClassifier(solver="paper", random_state=0), blocks) < 0.85
    once = macro_f1(FusionMLPClassifier(random_state=0), blocks)
    twice = macro_f1(FusionMLPClassifier(random_state=0), EmbeddingBlocks([X, X]))
    assert once >= 0.99
    assert abs(once - twice) < 0.01
