"""What any estimator must hold, of `OptunaSearchCV`."""

from __future__ import annotations

import logging
import pickle
import random
from typing import Any

import joblib
import numpy as np
import optuna
import pytest
import torch
from optuna.storages import InMemoryStorage
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.naive_bayes import GaussianNB

from skfusion import OptunaSearchCV

CS = {"C": [0.1, 1.0]}
SMOOTHINGS = {"var_smoothing": [1e-9, 1e-3]}


def test_tags_are_those_of_the_estimator_so_that_nested_folds_are_stratified():
    X, y = load_iris(return_X_y=True)
    search = OptunaSearchCV(GaussianNB(), SMOOTHINGS, n_trials=2, cv=3, random_state=0)
    assert is_classifier(search)
    assert is_regressor(OptunaSearchCV(Ridge(), {"alpha": [1.0]}))
    assert not np.diff(y).min() < 0  # sorted: plain folds would each miss a class
    assert cross_val_score(search, X, y, cv=3).mean() > 0.9


def test_clone_keeps_the_storage_and_copies_the_sampler():
    storage, sampler = InMemoryStorage(), optuna.samplers.RandomSampler(seed=0)
    search = OptunaSearchCV(
        LogisticRegression(), CS, n_trials=2, storage=storage, sampler=sampler, cv=2
    )
    twin = clone(search)
    assert twin.storage is storage and search.storage is storage
    assert twin.sampler is not sampler and twin.estimator is not search.estimator
    assert not hasattr(clone(search.fit([[0.0], [1.0]] * 4, [0, 1] * 4)), "study_")
    twin.fit([[0.0], [1.0]] * 4, [0, 1] * 4)
    assert len(storage.get_all_studies()) == 2
    assert len(search.study_.trials) == len(twin.study_.trials) == 2


def test_a_given_sampler_and_pruner_are_not_changed():
    sampler, pruner = optuna.samplers.RandomSampler(seed=0), optuna.pruners.MedianPruner()
    before = joblib.hash(pickle.dumps([sampler, pruner]))
    search = OptunaSearchCV(
        LogisticRegression(), {"C": optuna.distributions.FloatDistribution(0.1, 1.0)}, n_trials=3,
        sampler=sampler, pruner=pruner, cv=2,
    )  # fmt: skip
    X, y = [[0.0], [1.0]] * 4, [0, 1] * 4
    first, second = (search.fit(X, y).cv_results_["params"] for _ in range(2))
    assert first == second
    assert joblib.hash(pickle.dumps([sampler, pruner])) == before


def _process_state() -> tuple[Any, ...]:
    return (
        np.random.get_state()[1].tolist(),  # noqa: NPY002 - the global state is what is looked at
        torch.random.get_rng_state().tolist(),
        random.getstate(),
        optuna.logging.get_verbosity(),
        logging.getLogger("optuna.study.study").filters[:],
    )


def test_nothing_of_the_process_is_changed(capfd):
    X, y = load_iris(return_X_y=True)
    before = _process_state()
    OptunaSearchCV(GaussianNB(), SMOOTHINGS, n_trials=2, cv=2).fit(X, y)
    assert _process_state() == before
    assert capfd.readouterr() == ("", "")


def test_a_fitted_search_can_be_pickled_and_goes_into_another_search():
    X, y = load_iris(return_X_y=True)
    inner = OptunaSearchCV(GaussianNB(), SMOOTHINGS, n_trials=2, cv=2, random_state=0)
    outer = GridSearchCV(inner, {"estimator__priors": [None, [0.2, 0.3, 0.5]]}, cv=2).fit(X, y)
    loaded = pickle.loads(pickle.dumps(outer))
    np.testing.assert_array_equal(loaded.predict(X), outer.predict(X))
    assert len(loaded.best_estimator_.study_.trials) == 2


def test_without_optuna_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    with pytest.raises(ImportError, match=r"pip install skfusion\[optuna\]"):
        OptunaSearchCV(LogisticRegression(), CS).fit([[0.0], [1.0]] * 4, [0, 1] * 4)
