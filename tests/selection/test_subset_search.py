"""`ModelSubsetSearchCV` on blocks: what it tries, reports and chooses."""

from __future__ import annotations

import copy
import pickle
from itertools import combinations

import numpy as np
import pandas as pd
import pytest
from joblib import parallel_config
from sklearn.base import clone
from sklearn.dummy import DummyClassifier
from sklearn.exceptions import FitFailedWarning
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import (
    GridSearchCV,
    StratifiedKFold,
    StratifiedShuffleSplit,
    cross_val_score,
)
from sklearn.pipeline import make_pipeline

from skfusion import EmbeddingBlocks, FusionTransformer, ModelSubsetSearchCV

MODELS = ("first", "second", "noise")


@pytest.fixture
def data(rng) -> tuple[EmbeddingBlocks, np.ndarray]:
    """Two blocks that each see half of what the label is made of, and one that sees nothing."""
    n = 90
    halves = rng.normal(size=(2, n))
    y = (halves.sum(axis=0) > 0).astype(int)
    blocks = {name: rng.normal(size=(n, 3)) for name in MODELS}
    blocks["first"][:, 0] = halves[0]
    blocks["second"][:, 1] = halves[1]
    return EmbeddingBlocks(blocks), y


def test_scores_are_those_of_cross_validation_on_the_same_folds(data):
    X, y = data
    cv = StratifiedKFold(4, shuffle=True, random_state=0)
    head = make_pipeline(FusionTransformer("weighted"), LogisticRegression())
    search = ModelSubsetSearchCV(head, cv=cv, scoring="f1_macro").fit(X, y)
    found = search.cv_results_
    expected = [subset for k in (1, 2, 3) for subset in combinations(MODELS, k)]
    assert found["param_blocks"].tolist() == expected
    assert found["params"][3] == {"blocks": ("first", "second")}
    for row in (1, 3, 6):
        scores = cross_val_score(head, X.select(expected[row]), y, cv=cv, scoring="f1_macro")
        np.testing.assert_allclose([found[f"split{i}_test_score"][row] for i in range(4)], scores)
        assert found["mean_test_score"][row] == pytest.approx(scores.mean())
        assert found["std_test_score"][row] == pytest.approx(scores.std())
    assert (found["rank_test_score"] == 1).any()


def test_the_choice_is_the_cheapest_that_is_good(data):
    X, y = data
    search = ModelSubsetSearchCV(LogisticRegression()).fit(X, y)
    assert search.best_subset_ == ("first", "second")
    assert search.best_params_ == {"blocks": ("first", "second")}
    assert search.best_score_ == search.cv_results_["mean_test_score"][search.best_index_]
    assert search.costs_.tolist() == [1, 1, 1, 2, 2, 2, 3]
    expensive = ModelSubsetSearchCV(LogisticRegression(), sizes=[1, 3]).fit(X, y)
    assert expensive.best_subset_ == MODELS
    # All three are as good as the two, and cheaper by this callable.
    odd = ModelSubsetSearchCV(LogisticRegression(), cost=lambda names: -len(names)).fit(X, y)
    assert odd.best_subset_ == MODELS


def test_predictions_are_those_of_the_chosen_models(data):
    X, y = data
    search = ModelSubsetSearchCV(LogisticRegression()).fit(X, y)
    alone = LogisticRegression().fit(X.select(["first", "second"]), y)
    for taken in (X, X.select(["second", "first"])):  # in whatever order, and without the others
        np.testing.assert_array_equal(search.predict(taken), alone.predict(search_order(taken)))
        np.testing.assert_allclose(
            search.predict_proba(taken), alone.predict_proba(search_order(taken))
        )
    assert search.score(X, y) == alone.score(search_order(X), y)
    assert search.classes_.tolist() == [0, 1] and search.n_features_in_ == 9
    again = pickle.loads(pickle.dumps(search))
    np.testing.assert_array_equal(again.predict(X), search.predict(X))
    with pytest.raises(ValueError, match="does not say where its blocks are"):
        search.predict(np.asarray(X))


def search_order(X: EmbeddingBlocks) -> EmbeddingBlocks:
    return X.select(["first", "second"])


def test_a_frame_is_read_by_its_columns(data):
    X, y = data
    frame = pd.DataFrame(
        np.asarray(X), columns=[f"{name}__{i}" for name in MODELS for i in range(3)]
    )
    on_frame = ModelSubsetSearchCV(LogisticRegression()).fit(frame, y)
    on_blocks = ModelSubsetSearchCV(LogisticRegression()).fit(X, y)
    assert on_frame.best_subset_ == on_blocks.best_subset_
    np.testing.assert_array_equal(on_frame.predict(frame), on_blocks.predict(X))
    assert on_frame.feature_names_in_.tolist() == list(frame.columns)


def test_shapley_values_share_out_what_is_above_the_dummy(data):
    X, y = data
    search = ModelSubsetSearchCV(LogisticRegression()).fit(X, y)
    means = dict(
        zip(
            search.cv_results_["param_blocks"],
            search.cv_results_["mean_test_score"],
            strict=True,
        )
    )
    dummy = cross_val_score(DummyClassifier(), X, y).mean()
    assert search.baseline_score_ == pytest.approx(dummy)
    assert sum(search.shapley_.values()) == pytest.approx(means[MODELS] - dummy)
    a, b, c = MODELS
    by_hand = (
        (means[c,] - dummy) / 3
        + (means[a, c] - means[a,] + means[b, c] - means[b,]) / 6
        + (means[MODELS] - means[a, b]) / 3
    )
    assert search.shapley_["noise"] == pytest.approx(by_hand)
    assert search.shapley_["noise"] < min(search.shapley_["first"], search.shapley_["second"])


def test_the_report_has_a_line_for_each_size(data):
    X, y = data
    search = ModelSubsetSearchCV(LogisticRegression()).fit(X, y)
    report, means = search.size_report_, search.cv_results_["mean_test_score"]
    assert report["size"].tolist() == [1, 2, 3] and report["n_subsets"].tolist() == [3, 3, 1]
    assert report["median"].tolist() == [np.median(means[:3]), np.median(means[3:6]), means[6]]
    # As many of each size as there are of the rarer: 3 of 3 pairs, 1 of 3 single models.
    assert report["expected_min"][1] == pytest.approx(means[3:6].min())
    assert report["expected_min_single"][2] == pytest.approx(means[:3].mean())
    a, b, c, ab, ac, bc, _ = means
    gains = [ab - max(a, b), ac - max(a, c), bc - max(b, c)]
    assert report["over_best_member"][1] == pytest.approx(np.mean(gains))
    assert report["harm_best"][1] == pytest.approx(np.mean(np.array(gains) < 0))
    assert report["over_best_member"][0] == report["harm_mean"][0] == 0


def test_the_front_goes_from_the_cheapest_to_the_best(data):
    X, y = data
    costs = {"first": 1.0, "second": 2.0, "noise": 0.5}
    search = ModelSubsetSearchCV(LogisticRegression(), cost=costs).fit(X, y)
    assert search.costs_.tolist() == [1, 2, 0.5, 3, 1.5, 2.5, 3.5]
    front, means = search.pareto_, search.cv_results_["mean_test_score"]
    assert means[front[-1]] == means.max()
    assert (np.diff(search.costs_[front]) > 0).all() and (np.diff(means[front]) > 0).all()


def test_greedy_tries_what_forward_selection_tries(data):
    X, y = data
    full = ModelSubsetSearchCV(LogisticRegression()).fit(X, y)
    greedy = ModelSubsetSearchCV(LogisticRegression(), strategy="greedy").fit(X, y)
    tried = greedy.cv_results_["param_blocks"].tolist()
    single = MODELS[int(np.argmax(full.cv_results_["mean_test_score"][:3]))]
    pairs = [subset for subset in tried if len(subset) == 2]
    assert len(tried) == 6 and all(single in pair for pair in pairs)
    assert greedy.best_subset_ == full.best_subset_
    assert not hasattr(greedy, "shapley_")


def test_all_steps_of_a_greedy_search_see_the_same_folds(data):
    X, y = data
    random = StratifiedShuffleSplit(3, random_state=np.random.RandomState(0))  # new ones each time
    splits = list(copy.deepcopy(random).split(X, y))
    greedy = ModelSubsetSearchCV(LogisticRegression(), strategy="greedy", cv=random).fit(X, y)
    for subset, score in zip(
        greedy.cv_results_["param_blocks"], greedy.cv_results_["mean_test_score"], strict=True
    ):
        alone = cross_val_score(LogisticRegression(), X.select(subset), y, cv=splits)
        assert score == pytest.approx(alone.mean())


@pytest.mark.filterwarnings("ignore:One or more of the test scores:UserWarning")
def test_greedy_ends_where_every_subset_fails(data):
    X, y = data
    wide = EmbeddingBlocks(
        {name: block[:, :k] for k, (name, block) in enumerate(X.blocks.items(), 1)}
    )
    head = make_pipeline(FusionTransformer("sum", projection=None), LogisticRegression())
    search = ModelSubsetSearchCV(head, strategy="greedy")
    with pytest.warns(FitFailedWarning, match="All the 10 fits failed"):
        search.fit(wide, y)
    assert search.size_report_["size"].tolist() == [1] and len(search.best_subset_) == 1


def test_parameters_of_fit_reach_a_head_on_blocks(data, rng):
    X, y = data
    weights = rng.uniform(size=len(y))
    seen = []

    class Recorder(LogisticRegression):
        def fit(self, X, y, sample_weight=None):
            seen.append(sample_weight)
            return super().fit(X, y, sample_weight)

        def score(self, X, y, sample_weight=None):
            seen.append(sample_weight)
            return super().score(X, y, sample_weight)

    folds = [(np.arange(60), np.arange(60, 90))]
    search = ModelSubsetSearchCV(Recorder(), sizes=[1], cv=folds).fit(X, y, sample_weight=weights)
    for given, rows in zip(
        seen, [*3 * [np.arange(60), np.arange(60, 90)], np.arange(90)], strict=True
    ):
        np.testing.assert_array_equal(given, weights[rows])
    alone = LogisticRegression().fit(X.select(search.best_subset_), y, weights)
    np.testing.assert_allclose(
        search.predict_proba(X), alone.predict_proba(X.select(search.best_subset_))
    )


def test_random_orders_estimate_the_worth_of_many_models(rng):
    y = np.repeat([0, 1], 20)
    blocks = {f"m{i}": rng.normal(size=(40, 1)) for i in range(14)}
    blocks["m3"] += 3 * y[:, None]
    X = EmbeddingBlocks(blocks)
    options = {"strategy": "shapley", "n_permutations": 2, "cv": 2, "random_state": 3}
    search = ModelSubsetSearchCV(LogisticRegression(), **options).fit(X, y)
    whole = search.cv_results_["mean_test_score"][search.cv_results_["n_blocks"] == 14]
    assert sum(search.shapley_.values()) == pytest.approx(whole[0] - search.baseline_score_)
    assert max(search.shapley_, key=search.shapley_.get) == "m3"
    again = clone(search).fit(X, y)
    assert again.shapley_ == search.shapley_


def test_too_many_subsets_are_refused_before_any_is_tried(rng):
    X = EmbeddingBlocks({f"m{i}": rng.normal(size=(8, 1)) for i in range(13)})
    y = np.arange(8) % 2
    with pytest.raises(ValueError, match=r"8191 subsets of 13 models.*'greedy'"):
        ModelSubsetSearchCV(LogisticRegression()).fit(X, y)
    few = ModelSubsetSearchCV(LogisticRegression(), sizes=[1], cv=2).fit(X, y)
    assert len(few.costs_) == 13 and not hasattr(few, "shapley_")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sizes": [0, 1]}, "from 1 to 3"),
        ({"sizes": [4]}, "from 1 to 3"),
        ({"sizes": []}, "from 1 to 3"),
        ({"cost": {"first": 1}}, "cost says nothing of 'second', 'noise'"),
        ({"cost": lambda names: np.nan}, "finite number"),
        ({"scoring": lambda *_: {"a": 1.0, "b": 2.0}}, "several metrics: a, b"),
    ],
)
def test_what_does_not_fit_is_refused(data, options, message):
    with pytest.raises(ValueError, match=message):
        ModelSubsetSearchCV(LogisticRegression(), **options).fit(*data)


def test_only_what_can_be_scored_against_a_dummy():
    with pytest.raises(ValueError, match="neither a classifier nor a regressor"):
        ModelSubsetSearchCV(FusionTransformer()).fit([[0.0], [1.0]], [0, 1])


@pytest.mark.filterwarnings("ignore:One or more of the test scores:UserWarning")
def test_a_failing_subset_is_not_chosen(data):
    X, y = data
    broken = EmbeddingBlocks({**X.blocks, "noise": np.full((90, 3), np.nan)})
    search = ModelSubsetSearchCV(LogisticRegression())
    with pytest.warns(FitFailedWarning, match="20 fits failed out of a total of 35"):
        search.fit(broken, y)
    assert search.best_subset_ == ("first", "second")
    report = search.size_report_
    assert report["n_subsets"].tolist()[:2] == [2, 1] and np.isnan(report["max"][2])
    with pytest.raises(ValueError, match="NaN"):
        ModelSubsetSearchCV(LogisticRegression(), error_score="raise").fit(broken, y)


def test_weights_of_rows_reach_estimator_and_scorer(data, rng):
    X, y = data
    weights = rng.uniform(size=len(y))
    search = ModelSubsetSearchCV(LogisticRegression()).fit(X, y, sample_weight=weights)
    best = X.select(search.best_subset_)
    plain = GridSearchCV(LogisticRegression(), {"C": [1.0]}).fit(best, y, sample_weight=weights)
    assert search.best_score_ == pytest.approx(plain.best_score_)
    np.testing.assert_allclose(search.predict_proba(X), plain.predict_proba(best))


def test_a_regressor_and_two_workers(data, rng):
    X, y = data
    target = np.asarray(X)[:, [0, 4]].sum(axis=1) + 0.1 * rng.normal(size=len(y))
    one = ModelSubsetSearchCV(Ridge()).fit(X, target)
    with parallel_config("threading"):
        two = ModelSubsetSearchCV(Ridge(), n_jobs=2).fit(X, target)
    assert one.best_subset_ == two.best_subset_ == ("first", "second")
    assert one.score(X, target) > 0.9 and one.baseline_score_ < 0.1
    np.testing.assert_array_equal(
        one.cv_results_["mean_test_score"], two.cv_results_["mean_test_score"]
    )


@pytest.mark.slow
def test_labels_without_meaning_give_nothing(rng):
    """The search inside of another cross-validation finds no score above chance."""
    y = rng.permutation(np.repeat([0, 1], 60))
    X = EmbeddingBlocks({f"m{i}": rng.normal(size=(120, 4)) for i in range(4)})
    scores = cross_val_score(ModelSubsetSearchCV(LogisticRegression(), cv=3), X, y, cv=4)
    assert scores.mean() < 0.5 + 2 * 0.5 / np.sqrt(120)
