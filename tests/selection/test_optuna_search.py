"""`OptunaSearchCV` against `GridSearchCV`, by-hand scores, and broken candidates."""

from __future__ import annotations

import time
import warnings

import joblib
import numpy as np
import optuna
import pytest
from optuna.distributions import FloatDistribution, IntDistribution
from optuna.trial import TrialState
from sklearn import config_context
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.datasets import make_classification
from sklearn.dummy import DummyClassifier
from sklearn.exceptions import FitFailedWarning
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import accuracy_score, make_scorer
from sklearn.model_selection import GridSearchCV, GroupKFold, StratifiedKFold
from sklearn.neighbors import KernelDensity
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler

from skfusion import OptunaSearchCV
from skfusion.inspection.candidates import split_scores
from skfusion.selection.choice import cheapest_within_one_error

FOLDS = StratifiedKFold(3, shuffle=True, random_state=0)


@pytest.fixture
def data():
    return make_classification(60, n_features=5, flip_y=0.2, random_state=0)


class Constant(ClassifierMixin, BaseEstimator):
    """Predicts one class right, and refuses to be fitted where `broken` says so."""

    def __init__(self, k: int = 0, broken: tuple[int, ...] = (), pause: float = 0.0) -> None:
        self.k, self.broken, self.pause = k, broken, pause

    def fit(self, X, y, sample_weight=None):
        if self.k in self.broken:
            raise ValueError(f"k={self.k} is broken")
        time.sleep(self.pause)
        self.classes_ = np.unique(y)
        self.weights_ = sample_weight
        return self

    def predict(self, X):
        return np.full(len(X), self.classes_[self.k % len(self.classes_)])

    def score(self, X, y, sample_weight=None):
        return float(self.k)


def grid_sampler(**values):
    """Try every combination once, in any order."""
    return optuna.samplers.GridSampler(values, seed=0)


@pytest.mark.parametrize("scoring", [None, ["accuracy", "f1"]])
def test_results_equal_those_of_a_grid_search(data, scoring):
    space = {"C": [0.01, 1.0, 100.0], "fit_intercept": [True, False]}
    options = {
        "scoring": scoring,
        "refit": "f1" if scoring else True,
        "cv": FOLDS,
        "return_train_score": True,
    }
    grid = GridSearchCV(LogisticRegression(), space, **options).fit(*data)
    search = OptunaSearchCV(
        LogisticRegression(), space, sampler=grid_sampler(**space), **options
    ).fit(*data)
    assert search.n_trials_ == 6  # the sampler stops the study, whatever n_trials is
    mine, theirs = search.cv_results_, grid.cv_results_
    assert set(mine) == {*theirs, "trial_number"}
    order = [mine["params"].index(params) for params in theirs["params"]]
    for key in theirs:
        assert type(mine[key]) is type(theirs[key])
        if "time" not in key and key != "params":
            np.testing.assert_array_equal(mine[key][order], theirs[key])
            assert mine[key].dtype == theirs[key].dtype
    assert search.best_params_ == grid.best_params_ and search.best_score_ == grid.best_score_
    assert search.multimetric_ is grid.multimetric_ and search.n_splits_ == 3
    np.testing.assert_array_equal(search.predict(data[0]), grid.predict(data[0]))
    assert search.score(*data) == grid.score(*data)
    assert search.study_.best_value == grid.best_score_


def test_equal_seeds_give_equal_trials(data):
    def drawn(seed):
        search = OptunaSearchCV(
            Constant(),
            {"k": FloatDistribution(1e-3, 1e3, log=True)},
            n_trials=14,  # more than the sampler draws at random
            cv=2,
            random_state=seed,
            refit=False,
        )
        return [trial.params["k"] for trial in search.fit(*data).study_.trials]

    assert drawn(0) == drawn(0)
    assert drawn(0) != drawn(1)
    assert len(set(drawn(0))) == 14
    assert drawn(np.random.RandomState(3)) == drawn(np.random.RandomState(3))


def test_workers_measure_trials_that_are_told_in_order(data):
    search = OptunaSearchCV(
        LogisticRegression(), {"C": [0.1, 1.0, 10.0]}, n_trials=5, n_jobs=2, cv=FOLDS,
        random_state=0,
    )  # fmt: skip
    with joblib.parallel_config("threading"):
        search.fit(*data)
    assert [trial.number for trial in search.study_.trials] == [0, 1, 2, 3, 4]
    for params, score in zip(
        search.cv_results_["params"], search.cv_results_["mean_test_score"], strict=True
    ):
        alone = GridSearchCV(LogisticRegression(), {"C": [params["C"]]}, cv=FOLDS).fit(*data)
        assert alone.best_score_ == score


def test_values_of_any_kind_and_parameters_that_not_every_trial_has(data):
    scalers = [StandardScaler(), MinMaxScaler(), "passthrough"]

    def space(trial):
        params = {"scale": scalers[trial.suggest_int("scale", 0, 2)]}
        if params["scale"] is scalers[1]:
            params["scale__clip"] = trial.suggest_categorical("clip", [True, False])
        return params

    pipe = Pipeline([("scale", "passthrough"), ("clf", LogisticRegression())])
    search = OptunaSearchCV(pipe, {"scale": scalers}, n_trials=8, cv=2, random_state=0).fit(*data)
    drawn = search.cv_results_["param_scale"]
    assert {id(value) for value in drawn} <= {id(value) for value in scalers}
    assert not hasattr(scalers[0], "mean_")
    search = OptunaSearchCV(pipe, space, n_trials=8, cv=2, random_state=0).fit(*data)
    clip = search.cv_results_["param_scale__clip"]
    assert isinstance(clip, np.ma.MaskedArray)
    for params, masked in zip(search.cv_results_["params"], clip.mask, strict=True):
        assert masked == ("scale__clip" not in params)


def test_the_pruner_saves_folds_and_pruned_trials_are_in_the_study_only(data):
    fits = []

    class Noted(Constant):
        def fit(self, X, y):
            fits.append(self.k)
            return super().fit(X, y)

    search = OptunaSearchCV(
        Noted(),
        {"k": [0, 1, 2, 3]},
        n_trials=4,
        sampler=grid_sampler(k=[3, 2, 1, 0]),
        pruner=optuna.pruners.ThresholdPruner(lower=1.5),
        cv=FOLDS,
        refit=False,
    ).fit(*data)
    states = {trial.params["k"]: trial.state for trial in search.study_.trials}
    assert states == {
        0: TrialState.PRUNED, 1: TrialState.PRUNED, 2: TrialState.COMPLETE, 3: TrialState.COMPLETE
    }  # fmt: skip
    assert {k: fits.count(k) for k in range(4)} == {0: 1, 1: 1, 2: 3, 3: 3}
    assert search.n_trials_ == 4
    assert sorted(p["k"] for p in search.cv_results_["params"]) == [2, 3]
    for trial in search.study_.trials:
        assert set(trial.intermediate_values.values()) == {float(trial.params["k"])}
    kept = search.cv_results_["trial_number"]
    assert all(states[search.study_.trials[i].params["k"]] is TrialState.COMPLETE for i in kept)


def test_what_was_drawn_before_is_not_measured_again(data):
    fits = []

    class Noted(Constant):
        def fit(self, X, y):
            fits.append(self.k)
            return super().fit(X, y)

    search = OptunaSearchCV(Noted(), {"k": [0, 1]}, n_trials=12, cv=FOLDS, refit=False)
    results = search.fit(*data).cv_results_
    assert search.n_trials_ == len(results["params"]) == 12
    assert fits.count(0) == fits.count(1) == 3
    np.testing.assert_array_equal(results["mean_test_score"], results["param_k"])


def test_all_trials_pruned_is_an_error(data):
    pruner = optuna.pruners.ThresholdPruner(lower=9)
    with pytest.raises(ValueError, match="None of the 2 trials was measured on all 5 folds"):
        OptunaSearchCV(Constant(), {"k": [0, 1]}, n_trials=2, pruner=pruner).fit(*data)


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_a_failed_fit_fails_its_trial_and_not_the_search(data, n_jobs):
    search = OptunaSearchCV(
        Constant(broken=(1,)), {"k": [0, 1, 2]}, sampler=grid_sampler(k=[0, 1, 2]), cv=2,
        n_jobs=n_jobs,
    )  # fmt: skip
    with (
        joblib.parallel_config("threading"),
        pytest.warns(FitFailedWarning, match="(?s)2 fits failed out of a total.*k=1 is broken"),
        pytest.warns(UserWarning, match="scores are non-finite"),
    ):
        search.fit(*data)
    states = {trial.params["k"]: trial.state for trial in search.study_.trials}
    assert states[1] is TrialState.FAIL and states[2] is TrialState.COMPLETE
    assert search.best_params_ == {"k": 2}
    row = [p["k"] for p in search.cv_results_["params"]].index(1)
    assert np.isnan(search.cv_results_["mean_test_score"][row])
    search.set_params(n_jobs=None)
    with pytest.warns(FitFailedWarning):
        search.set_params(error_score=-1.0).fit(*data)
    assert {t.params["k"]: t.value for t in search.study_.trials} == {0: 0, 1: -1, 2: 2}
    with pytest.raises(ValueError, match="k=1 is broken"):
        search.set_params(error_score="raise").fit(*data)


def test_all_fits_failed_is_an_error(data):
    search = OptunaSearchCV(Constant(broken=(1,)), {"k": [1]}, n_trials=2, cv=2)
    with pytest.raises(ValueError, match="All the 4 fits failed"):
        search.fit(*data)


def test_a_callable_scorer_of_several_metrics_and_a_failed_fit(data):
    def scoring(estimator, X, y):
        return {"k": estimator.k, "minus": -estimator.k}

    search = OptunaSearchCV(
        Constant(broken=(1,)), {"k": [0, 1, 2]}, sampler=grid_sampler(k=[0, 1, 2]), cv=2,
        scoring=scoring, refit="minus",
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        search.fit(*data)
    assert search.best_params_ == {"k": 0} and search.study_.best_value == 0
    by_k = dict(zip(search.cv_results_["param_k"], search.cv_results_["mean_test_k"], strict=True))
    assert by_k[0] == 0 and by_k[2] == 2 and np.isnan(by_k[1])
    for refit in (True, "nonsense"):
        with warnings.catch_warnings(), pytest.raises(ValueError, match="multi-metric scoring"):
            warnings.simplefilter("ignore")
            search.set_params(refit=refit).fit(*data)


def test_the_cost_is_minimised_beside_the_score(data):
    def cost(estimator, X, y):
        assert len(X) == len(y) == 20  # held-out rows
        return estimator.C

    search = OptunaSearchCV(
        LogisticRegression(),
        {"C": [0.01, 1.0, 100.0]},
        sampler=grid_sampler(C=[0.01, 1.0, 100.0]),
        cost=cost,
        cv=FOLDS,
    ).fit(*data)
    results = search.cv_results_
    assert [d.name for d in search.study_.directions] == ["MAXIMIZE", "MINIMIZE"]
    np.testing.assert_allclose(results["mean_cost"], [p["C"] for p in results["params"]])
    values = [trial.values for trial in search.study_.trials]
    assert values == np.c_[results["mean_test_score"], results["mean_cost"]].tolist()
    best = results["mean_test_score"].argmax()
    scores = np.stack([results[f"split{i}_test_score"] for i in range(3)], axis=1)
    behind = scores[best] - scores  # fold by fold
    near = behind.mean(axis=1) <= behind.std(axis=1, ddof=1) / np.sqrt(3)
    assert search.best_params_["C"] == results["mean_cost"][near].min()
    assert search.best_score_ == results["mean_test_score"][search.best_index_]
    front = {trial.number for trial in search.study_.best_trials}
    assert results["trial_number"][search.best_index_] in front
    dearest = search.set_params(refit=lambda results: int(results["mean_cost"].argmax()))
    assert dearest.fit(*data).best_params_ == {"C": 100.0}


def test_of_equally_cheap_candidates_the_best_is_chosen():
    """Those of means 0.88 and 0.89 are behind the best, 0.9, by at most one standard error."""
    scores = np.array([[np.nan, 0.9], [0.6, 0.6], [0.83, 0.93], [0.84, 0.94], [0.93, 0.87]])
    assert cheapest_within_one_error(scores, np.array([0.0, 0.0, 1.0, 1.0, 2.0])) == 3
    assert cheapest_within_one_error(scores, np.array([0.0, 0.0, np.nan, 3.0, 2.0])) == 4
    results = {"split0_test_f1": scores[:, 0], "split1_test_f1": scores[:, 1]}
    np.testing.assert_array_equal(split_scores(results, 2, "f1"), scores)


def test_without_any_finite_score_the_choice_is_that_of_a_grid_search(data):
    def scoring(estimator, X, y):
        return np.nan

    search = OptunaSearchCV(
        Constant(), {"k": [0, 1]}, n_trials=2, scoring=scoring, cost=lambda *args: 1.0, cv=2
    )
    with pytest.warns(UserWarning, match="non-finite"):
        assert search.fit(*data).best_index_ == 0


def test_a_pruner_and_a_cost_exclude_each_other(data):
    search = OptunaSearchCV(
        Constant(), {"k": [1]}, pruner=optuna.pruners.MedianPruner(), cost=lambda *args: 1.0
    )
    with pytest.raises(ValueError, match=r"pruner=.* two objectives"):
        search.fit(*data)


def test_groups_and_weights_go_where_they_go_in_a_grid_search(data):
    X, y = data
    groups, weights = np.arange(60) % 6, np.linspace(0.1, 2, 60)
    space = {"C": [0.01, 1.0]}
    options = {"cv": GroupKFold(3)}
    metadata = {"groups": groups, "sample_weight": weights}
    grid = GridSearchCV(LogisticRegression(), space, **options).fit(X, y, **metadata)
    sampler = grid_sampler(**space)
    search = OptunaSearchCV(LogisticRegression(), space, sampler=sampler, **options)
    search.fit(X, y, **metadata)
    assert search.best_score_ == grid.best_score_
    np.testing.assert_allclose(search.best_estimator_.coef_, grid.best_estimator_.coef_)
    with config_context(enable_metadata_routing=True):
        routed = Constant().set_fit_request(sample_weight=True)
        scorer = make_scorer(accuracy_score).set_score_request(sample_weight=True)
        search = OptunaSearchCV(routed, {"k": [0, 1]}, scoring=scorer, n_trials=1, **options)
        search.fit(X, y, **metadata)
        np.testing.assert_array_equal(search.best_estimator_.weights_, weights)
        with pytest.raises(TypeError, match="unexpected argument"):
            search.fit(X, y, nonsense=1)


def test_time_and_callbacks_end_the_search(data):
    begun = time.monotonic()
    search = OptunaSearchCV(
        Constant(pause=0.05), {"k": IntDistribution(0, 9)}, n_trials=None, timeout=0.3, cv=2
    ).fit(*data)
    assert 1 <= search.n_trials_ < 20 and time.monotonic() - begun < 10
    seen = []

    def stop(study, trial):
        seen.append(trial.value)
        if len(seen) == 3:
            study.stop()

    search = OptunaSearchCV(Constant(), {"k": IntDistribution(0, 9)}, cv=2, callbacks=[stop])
    assert search.fit(*data).n_trials_ == 3
    assert seen == [trial.value for trial in search.study_.trials]
    with pytest.raises(ValueError, match="would never end"):
        OptunaSearchCV(Constant(), {"k": [1]}, n_trials=None).fit(*data)


def test_without_refit_and_without_y(data):
    search = OptunaSearchCV(Ridge(), {"alpha": [1.0]}, n_trials=1, refit=False).fit(*data)
    assert not hasattr(search, "best_estimator_") and search.best_params_ == {"alpha": 1.0}
    search = OptunaSearchCV(
        DummyClassifier(), {"strategy": ["prior"]}, n_trials=1, scoring=["accuracy", "f1_macro"],
        refit=False,
    ).fit(*data)  # fmt: skip
    assert not hasattr(search, "best_params_") and search.multimetric_
    search = OptunaSearchCV(KernelDensity(), {"bandwidth": [0.5, 1.0]}, n_trials=2, cv=2)
    assert search.fit(data[0]).best_estimator_.n_features_in_ == 5


def test_a_bar_counts_the_trials(data, capfd):
    OptunaSearchCV(Constant(), {"k": [0, 1]}, n_trials=2, cv=2, verbose=1).fit(*data)
    assert "2/2" in capfd.readouterr().err
