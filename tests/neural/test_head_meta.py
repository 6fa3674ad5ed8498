"""The neural head inside scikit-learn's own meta-estimators, pipelines and searches."""

from __future__ import annotations

import io
import pickle
from typing import Any

import joblib
import numpy as np
import pytest
from sklearn import config_context
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import StackingClassifier, VotingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer

from skfusion import PAPER_OPERATORS, EmbeddingBlocks, FusionMLPClassifier, FusionMLPRegressor

SMALL: dict[str, Any] = {"n_components": 16, "hidden_layer_sizes": (32, 16), "random_state": 0}
#: Enough for classes that lie well apart.
BRIEF: dict[str, Any] = {**SMALL, "solver": "paper", "lr": 0.01, "max_epochs": 30}
HEAD = FusionMLPClassifier(**BRIEF)


@pytest.fixture(scope="module")
def blocks() -> EmbeddingBlocks:
    rng = np.random.default_rng(0)
    codes = np.arange(60) % 3
    return EmbeddingBlocks(
        {
            name: 2 * rng.normal(size=(3, width))[codes] + rng.normal(size=(60, width))
            for name, width in (("a", 8), ("b", 6))
        }
    )


@pytest.fixture(scope="module")
def labels() -> Any:
    return np.array(["no", "perhaps", "yes"])[np.arange(60) % 3]


#: Some of scikit-learn's make a plain array of the blocks.
CUT_HEAD = clone(HEAD).set_params(block_sizes=[8, 6])


@pytest.mark.parametrize(
    "meta",
    [
        CalibratedClassifierCV(CUT_HEAD, cv=3),
        VotingClassifier([("net", CUT_HEAD), ("line", LogisticRegression())], voting="soft"),
        StackingClassifier([("net", CUT_HEAD), ("line", LogisticRegression())], cv=3),
        OneVsRestClassifier(CUT_HEAD),
    ],
    ids=lambda meta: type(meta).__name__,
)
def test_meta_estimators_over_the_head(meta, blocks, labels):
    X = np.asarray(blocks)
    fitted = clone(meta).fit(X, labels)
    proba = fitted.predict_proba(X)
    assert proba.shape == (60, 3)
    np.testing.assert_allclose(proba.sum(axis=1), 1)
    assert fitted.score(X, labels) > 0.9


def test_probabilities_by_cross_validation(blocks, labels):
    proba = cross_val_predict(HEAD, blocks, labels, cv=3, method="predict_proba")
    assert proba.shape == (60, 3)
    assert (np.unique(labels)[proba.argmax(axis=1)] == labels).mean() > 0.85


def test_two_jobs_give_what_one_gives(blocks, labels):
    head = clone(HEAD).set_params(solver="auto", operator="hadamard", max_epochs=2)
    one, two = (
        cross_val_score(head, blocks, labels, cv=3, n_jobs=n, scoring="neg_log_loss")
        for n in (1, 2)
    )
    np.testing.assert_array_equal(one, two)


def test_sample_weight_is_routed_through_a_pipeline(blocks, labels):
    weights = (labels != "perhaps").astype(float)
    with config_context(enable_metadata_routing=True):
        head = clone(HEAD).set_fit_request(sample_weight=True)
        pipe = make_pipeline(FunctionTransformer(), head)
        pipe.fit(blocks, labels, sample_weight=weights)
        assert "perhaps" not in pipe.predict(blocks)
        ignored = clone(pipe)
        ignored[-1].set_fit_request(sample_weight=False)
        ignored.fit(blocks, labels)
        assert "perhaps" in ignored.predict(blocks)
    direct = clone(HEAD).fit(blocks, labels, sample_weight=weights)
    np.testing.assert_array_equal(pipe.predict_proba(blocks), direct.predict_proba(blocks))


def test_score_takes_weights(blocks, labels):
    head = clone(HEAD).fit(blocks, labels)
    wrong = np.where(np.arange(60) < 30, labels, "no")
    weights = np.repeat([1.0, 0.0], 30)
    assert head.score(blocks, wrong, sample_weight=weights) == head.score(blocks[:30], labels[:30])


@pytest.mark.parametrize("estimator", [FusionMLPClassifier, FusionMLPRegressor])
def test_a_clone_has_the_parameters_and_nothing_else(estimator, blocks, labels):
    head = estimator("gated", block_dropout=0.1, callbacks=[], **BRIEF)
    before = head.get_params()
    head.fit(blocks, np.unique(labels, return_inverse=True)[1])
    assert head.get_params() == before
    again = clone(head)
    assert again.get_params() == before
    assert not [name for name in vars(again) if name.endswith("_")]


def through_joblib(head: Any) -> Any:
    file = io.BytesIO()
    joblib.dump(head, file)
    file.seek(0)
    return joblib.load(file)


@pytest.mark.parametrize("trip", [through_joblib, lambda head: pickle.loads(pickle.dumps(head))])
@pytest.mark.parametrize("estimator", [FusionMLPClassifier, FusionMLPRegressor])
def test_pickles_predict_the_same_and_can_go_on(trip, estimator, blocks, labels):
    y = np.unique(labels, return_inverse=True)[1]
    head = estimator("gated", callbacks=[], **BRIEF).fit(blocks, y)
    again = trip(head)
    np.testing.assert_array_equal(again.predict(blocks), head.predict(blocks))
    if hasattr(head, "predict_proba"):
        np.testing.assert_array_equal(again.predict_proba(blocks), head.predict_proba(blocks))
    assert list(again.net_.history) == list(head.net_.history)
    for one in (head, again):
        one.partial_fit(blocks, y)
    np.testing.assert_array_equal(again.predict(blocks), head.predict(blocks))


@pytest.mark.slow
def test_a_search_over_the_papers_operators(blocks, labels):
    pipe = Pipeline([("keep", FunctionTransformer()), ("head", clone(HEAD))])
    grid = [{f"head__{k}": [v] for k, v in setting.items()} for setting in PAPER_OPERATORS]
    search = GridSearchCV(pipe, grid, cv=2, error_score="raise").fit(blocks, labels)
    scores = search.cv_results_["mean_test_score"]
    assert len(scores) == 9 and np.isfinite(scores).all()
    assert search.best_score_ > 0.8
    head = search.best_estimator_["head"]
    assert {"operator": head.operator, "residual": head.residual} in PAPER_OPERATORS
    assert list(head.block_indices_) == ["a", "b"]  # blocks get through folds and steps
    assert search.predict(blocks).shape == (60,)
