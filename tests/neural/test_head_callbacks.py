"""skorch's own callbacks on the neural head, with and without rows to validate on."""

from __future__ import annotations

import copy
import io
from typing import Any

import numpy as np
import pytest
import torch
from _support.rows import three_classes
from sklearn import config_context
from sklearn.metrics import balanced_accuracy_score, make_scorer, r2_score
from skorch.callbacks import (
    BatchScoring,
    Checkpoint,
    EarlyStopping,
    EpochScoring,
    LRScheduler,
    ProgressBar,
    TrainEndCheckpoint,
)

from skfusion import EmbeddingBlocks, FusionMLPClassifier, FusionMLPRegressor, load, save

SMALL: dict[str, Any] = {
    "n_components": 4,
    "hidden_layer_sizes": (16, 8),
    "max_epochs": 3,
    "random_state": 0,
}
#: How rows are validated on: held out, all of them, none.
WAYS: dict[str, dict[str, Any]] = {
    "paper, held out": {"solver": "paper", "early_stopping": True},
    "auto, held out": {"solver": "auto", "early_stopping": True},
    "auto, all rows": {"solver": "auto", "early_stopping": False},
    "paper, none": {"solver": "paper"},
}
EVERY_WAY = pytest.mark.parametrize("way", list(WAYS))
CACHING = pytest.mark.parametrize("use_caching", [True, False])


def data() -> tuple[Any, Any]:
    X, y = three_classes()
    return EmbeddingBlocks([X]), y


def scores(head: Any, name: str) -> list[Any]:
    """Of the search for the number of epochs, or else of the training."""
    return [epoch[name] for epoch in head.search_history_ or head.net_.history if name in epoch]


def best_epoch(head: Any) -> int:
    """That of the search, or 0 where it gains nothing over the linear part."""
    return 0 if head.linear_only_ else int(np.argmin(head.validation_losses_)) + 1


def fit(way: str, callbacks: list[Any], **more: Any) -> FusionMLPClassifier:
    X, y = data()
    labels = np.array(["no", "perhaps", "yes"])[y]
    settings = {**SMALL, **WAYS[way], **more}
    return FusionMLPClassifier(callbacks=callbacks, **settings).fit(X, labels)


# --- scores -----------------------------------------------------------------------------------


@EVERY_WAY
@CACHING
def test_scores_of_each_epoch(way, use_caching):
    """By a name, a scorer, a metric and a function, on rows to train and to validate on."""

    def error(net: Any, X: Any, y: Any) -> float:
        assert len(y) == len(X) == (6 if "held out" in way else 60)
        proba = net.predict_proba(X)
        np.testing.assert_allclose(proba.sum(axis=1), 1, atol=1e-6)
        return float(np.mean(proba.argmax(axis=1) != y))

    options = {"use_caching": use_caching}
    callbacks = [
        EpochScoring("accuracy", lower_is_better=False, **options),
        EpochScoring("accuracy", lower_is_better=False, name="on_train", on_train=True, **options),
        EpochScoring("neg_log_loss", lower_is_better=False, **options),
        EpochScoring("roc_auc_ovr", lower_is_better=False, on_train=True, **options),
        EpochScoring(make_scorer(balanced_accuracy_score), name="balanced", **options),
        EpochScoring(balanced_accuracy_score, **options),
        EpochScoring(None, **options),
        EpochScoring(error, **options),
    ]
    head = fit(way, callbacks)
    assert len(scores(head, "on_train")) == 3
    assert len(scores(head, "on_train_best")) == len(scores(head, "roc_auc_ovr")) == 3
    n_validated = 0 if "none" in way else 3
    accuracy = scores(head, "accuracy")
    assert len(accuracy) == n_validated
    for name in ("accuracy_best", "neg_log_loss", "balanced", "balanced_accuracy_score"):
        assert len(scores(head, name)) == n_validated, name
    np.testing.assert_allclose(scores(head, "error"), 1 - np.array(accuracy))
    np.testing.assert_allclose(scores(head, "score"), accuracy)
    if n_validated:
        assert np.isfinite(scores(head, "neg_log_loss")).all()


@CACHING
def test_scores_are_those_of_the_estimator(use_caching):
    """Where all rows are validated on, the last epoch's are those of the fitted head."""
    X, y = data()
    settings = {**SMALL, "early_stopping": False}
    acc = EpochScoring("accuracy", lower_is_better=False, use_caching=use_caching)
    head = FusionMLPClassifier(callbacks=[acc], **settings).fit(X, y)
    assert head.net_.history[-1, "accuracy"] == head.score(X, y)
    labels = np.column_stack([y == 0, y > 0]).astype(int)
    head = FusionMLPClassifier(callbacks=[acc], **settings).fit(X, labels)
    assert head.net_.history[-1, "accuracy"] == head.score(X, labels)
    r2 = EpochScoring("r2", lower_is_better=False, use_caching=use_caching)
    for numbers in (X[:, 0] * 5 + 40, X[:, :2] * np.array([1, 3]) + 7):
        reg = FusionMLPRegressor(callbacks=[r2, EpochScoring(r2_score)], **settings)
        reg.fit(X, numbers)
        assert reg.net_.history[-1, "r2"] == pytest.approx(reg.score(X, numbers), abs=1e-4)
        assert reg.net_.history[-1, "r2_score"] == reg.net_.history[-1, "r2"]


@pytest.mark.parametrize("way", ["paper, held out", "auto, held out"])
def test_an_early_stopping_by_a_score_ends_the_search(way):
    """And is left out where there is no such score."""
    callbacks = [
        EpochScoring(lambda net, X, y: -len(net.history), lower_is_better=False, name="worse"),
        EarlyStopping(monitor="worse", lower_is_better=False, patience=2, sink=str),
    ]
    head = fit(way, callbacks, max_epochs=20)
    assert scores(head, "worse") == [-1, -2, -3]
    assert scores(head, "worse_best") == [True, False, False]
    assert len(head.validation_losses_) == len(scores(head, "valid_loss")) == 3
    assert head.n_iter_ == len(head.net_.history) == best_epoch(head)


def test_an_early_stopping_by_a_score_runs_only_where_there_is_one():
    callbacks = [
        ("acc", EpochScoring("accuracy", lower_is_better=False, name="acc")),
        ("stop", EarlyStopping(monitor="acc", lower_is_better=False, patience=1, sink=str)),
    ]
    assert fit("paper, none", callbacks).n_iter_ == 3
    X, y = data()
    head = FusionMLPClassifier(callbacks=callbacks, **SMALL)
    assert head.partial_fit(X, y, classes=[0, 1, 2]).partial_fit(X, y).n_iter_ == 2


def test_the_history_knows_the_best_loss(tmp_path):
    head = fit("auto, held out", [])
    assert scores(head, "valid_loss") == head.validation_losses_
    best = np.minimum.accumulate(head.validation_losses_)
    assert scores(head, "valid_loss_best") == [
        bool(i == 0 or best[i] < best[i - 1]) for i in range(3)
    ]
    save(head, tmp_path / "head")
    assert load(tmp_path / "head").search_history_ == head.search_history_
    assert fit("paper, none", []).search_history_ == []


# --- checkpoints ------------------------------------------------------------------------------


@EVERY_WAY
@pytest.mark.parametrize("load_best", [False, True])
def test_a_checkpoint_keeps_the_best_epoch(way, load_best, tmp_path):
    """Its files are those of the epoch with the least loss, and later epochs do not count."""
    rising = EpochScoring(
        lambda net, X, y: abs(len(net.history) - 3), name="third", lower_is_better=True
    )
    keep = Checkpoint(monitor="third_best", dirname=str(tmp_path / "kept"), load_best=load_best)
    # Balanced: no odds of classes to take back behind the last epoch.
    head = fit(way, [rising, keep], max_epochs=5, class_weight="balanced")
    if "none" in way:
        assert not list((tmp_path).rglob("*.pt"))
        return
    names = {path.name for path in (tmp_path / "kept").iterdir()}
    assert names == {"params.pt", "optimizer.pt", "criterion.pt", "history.json"}
    kept = torch.load(tmp_path / "kept" / "params.pt", weights_only=True)
    same = all(torch.equal(kept[k], w) for k, w in head.net_.module_.state_dict().items())
    if "held out" in way:  # what was found is used on all rows
        assert [epoch["event_cp"] for epoch in head.search_history_[:3]] == [True] * 3
        assert not same and head.n_iter_ == best_epoch(head)
    else:
        assert same == load_best
        assert head.n_iter_ == len(head.net_.history) == (3 if load_best else 5)


def test_a_checkpoint_by_the_default_monitor(tmp_path):
    keep = Checkpoint(dirname=str(tmp_path))
    before = copy.deepcopy(vars(keep))
    head = fit("auto, held out", [keep])
    assert scores(head, "event_cp") == scores(head, "valid_loss_best")
    assert (tmp_path / "params.pt").exists() and vars(keep) == before


@EVERY_WAY
def test_a_checkpoint_by_a_function(way, tmp_path):
    def best(net: Any) -> bool:
        name = "train_loss_best" if "none" in way else "valid_loss_best"
        return bool(net.history[-1, name])

    fit(way, [Checkpoint(monitor=best, dirname=str(tmp_path), load_best=True)])
    assert (tmp_path / "params.pt").exists()


def test_a_checkpoint_writes_to_the_file_that_it_was_given():
    file = io.BytesIO()
    keep = Checkpoint(None, f_params=file, f_optimizer=None, f_criterion=None, f_history=None)
    head = fit("paper, none", [keep], max_epochs=1)
    file.seek(0)
    kept = torch.load(file, weights_only=True)
    assert all(torch.equal(kept[k], w) for k, w in head.net_.module_.state_dict().items())


# --- others -----------------------------------------------------------------------------------


@EVERY_WAY
@pytest.mark.filterwarnings("ignore:.*lr_scheduler.step.*:UserWarning")
def test_other_callbacks_of_skorch(way, tmp_path, capsys):
    callbacks = [
        LRScheduler("StepLR", step_size=1, gamma=0.5),
        LRScheduler("ReduceLROnPlateau", monitor="valid_loss"),
        BatchScoring("accuracy", lower_is_better=False, name="by_batch"),
        TrainEndCheckpoint(dirname=str(tmp_path)),
        ProgressBar(detect_notebook=False),
    ]
    head = fit(way, callbacks)
    assert (tmp_path / "train_end_params.pt").exists()
    rates = scores(head, "event_lr")
    np.testing.assert_allclose(rates, rates[0] * 0.5 ** np.arange(len(rates)))
    assert len(scores(head, "by_batch")) == (0 if "none" in way else 3)
    assert capsys.readouterr().err


def test_scores_where_metadata_is_routed():
    with config_context(enable_metadata_routing=True):
        head = fit("auto, held out", [EpochScoring("accuracy", lower_is_better=False)])
    assert len(scores(head, "accuracy")) == 3


@EVERY_WAY
def test_the_callbacks_given_stay_as_they_are(way, tmp_path):
    callbacks = [
        EpochScoring("accuracy", lower_is_better=False),
        EarlyStopping(monitor="accuracy", patience=1, sink=str, load_best=True),
        Checkpoint(monitor="accuracy_best", dirname=str(tmp_path), load_best=True),
    ]
    before = [copy.deepcopy(vars(callback)) for callback in callbacks]
    head = fit(way, callbacks)
    assert [vars(callback) for callback in callbacks] == before
    assert not any(c is one for _, c in head.net_.callbacks_ for one in callbacks)
    # Nothing of the rows stays behind.
    assert head.net_.train_split is None
