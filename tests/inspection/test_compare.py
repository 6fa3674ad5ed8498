"""Comparisons against formulas by hand, scipy, statsmodels and simulations."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.model_selection import (
    GridSearchCV,
    PredefinedSplit,
    RepeatedStratifiedKFold,
    ShuffleSplit,
)
from statsmodels.regression.mixed_linear_model import MixedLM
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.multitest import multipletests

from skfusion import compare, compare_all, compare_predictions, variance_components
from skfusion.inspection.candidates import read_candidates
from skfusion.inspection.compare import _macro_f1, holm, minque


def search(cv: Any, **settings: Any) -> GridSearchCV:
    """A search over the strength of a logistic regression on 60 rows."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 4)), np.arange(60) % 2
    X[:, 0] += y
    settings = {"scoring": "accuracy", **settings}
    return GridSearchCV(LogisticRegression(), {"C": [1e-6, 1.0]}, cv=cv, **settings).fit(X, y)


# --- scores of splits --------------------------------------------------------------------------


def test_the_corrected_t_test_is_that_of_the_paper(rng: np.random.Generator) -> None:
    a, b = rng.normal(size=10), rng.normal(size=10)
    d = b - a
    error = np.sqrt((1 / 10 + 0.2 / 0.8) * d.var(ddof=1))
    found = compare(a, b, test_fraction=0.2)
    low, high = stats.t.interval(0.95, 9, d.mean(), error)
    assert found.difference == pytest.approx(d.mean())
    assert (found.low, found.high) == pytest.approx((low, high))
    assert found.p_value == pytest.approx(2 * stats.t.sf(abs(d.mean() / error), 9))
    assert found.unit == "splits"


def test_scores_of_independent_rows_have_the_usual_t_test(rng: np.random.Generator) -> None:
    a, b = rng.normal(size=30), rng.normal(size=30)
    expected = stats.ttest_rel(b, a)
    found = compare(a, b, unit="rows")
    assert found.p_value == pytest.approx(expected.pvalue)
    assert (found.low, found.high) == pytest.approx(tuple(expected.confidence_interval()))


@pytest.mark.parametrize(
    ("cv", "fraction"),
    [
        (4, 1 / 4),
        (RepeatedStratifiedKFold(n_splits=2, n_repeats=3, random_state=0), 1 / 2),
        (ShuffleSplit(4, test_size=0.25, random_state=0), 1 / 4),
        (ShuffleSplit(4, random_state=0), 1 / 10),
    ],
)
def test_searches_say_themselves_what_share_they_test_on(cv: Any, fraction: float) -> None:
    one, other = search(cv), search(cv, scoring="balanced_accuracy")
    scores = [read_candidates(s).scores[s.best_index_] for s in (one, other)]
    assert compare(one, other) == compare(*scores, test_fraction=fraction)
    # An array beside a search is one of its splits.
    assert compare(scores[0], other) == compare(one, other)


def test_a_search_over_splits_of_unknown_size_is_refused() -> None:
    one = search(PredefinedSplit(np.arange(60) % 3))
    assert compare(one, one, test_fraction=1 / 3).difference == 0
    one = search([(np.arange(40), np.arange(40, 60)), (np.arange(20, 60), np.arange(20))])
    with pytest.raises(ValueError, match="test_fraction="):
        compare(one, one)


def test_of_several_metrics_the_one_that_chose_counts() -> None:
    several = search(3, scoring=["accuracy", "f1"], refit="f1")
    chosen = read_candidates(several).scores[several.best_index_]
    expected = [several.cv_results_[f"split{i}_test_f1"][several.best_index_] for i in range(3)]
    assert chosen.tolist() == expected
    undecided = search(3, scoring=["accuracy", "f1"], refit=False)
    with pytest.raises(ValueError, match="refit=False"):
        compare(undecided, undecided)


def test_failed_fits_are_left_out() -> None:
    found = compare([0.5, np.nan, 0.6, 0.7], [0.6, 0.9, 0.8, 0.7])
    assert found.n == 3
    assert found.difference == pytest.approx(0.1)
    with pytest.raises(ValueError, match="1 of 2 pairs"):
        compare([0.5, np.nan], [0.5, 0.5])


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        ({"a": [1.0, 2.0, 3.0]}, "3 and 2 scores"),
        ({"a": [[1.0, 2.0]]}, "1-D array of scores"),
        ({"unit": "folds"}, "'splits' or 'rows'"),
        ({"test_fraction": 1.5}, "above 0 and below 1"),
        ({"confidence": 95}, "confidence=95"),
    ],
)
def test_what_is_wrong_is_said(problem: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compare(**{"a": [1.0, 2.0], "b": [2.0, 3.0], **problem})


def test_words_tell_noise_from_differences() -> None:
    noise = str(compare([0.5, 0.7, 0.6], [0.6, 0.6, 0.65]))
    assert "not more than chance" in noise
    assert "3 splits" in noise
    sure = str(compare([0.5, 0.7, 0.6], [0.4, 0.6, 0.5001]))
    assert sure.startswith("The first is better by 0.100")
    assert "more than chance" in sure
    assert "not" not in sure
    assert str(compare([0.5, 0.7], [0.5, 0.7])).startswith("No difference")


def test_equal_differences_are_certain() -> None:
    found = compare([0.0, 1.0, 2.0], [1.0, 2.0, 3.0])
    assert (found.difference, found.low, found.high, found.p_value) == (1, 1, 1, 0)


# --- right and wrong answers --------------------------------------------------------------------


def test_mcnemar_is_exact_and_its_interval_that_of_bonett_and_price() -> None:
    a = np.repeat([1, 1, 0, 0], [30, 3, 10, 7])
    b = np.repeat([1, 0, 1, 0], [30, 3, 10, 7])
    found = compare(a, b, unit="rows")
    assert found.difference == pytest.approx(7 / 50)
    assert found.p_value == pytest.approx(stats.binomtest(10, 13).pvalue)
    gain, loss = 11 / 52, 4 / 52
    half = stats.norm.ppf(0.975) * np.sqrt((gain + loss - (gain - loss) ** 2) / 52)
    assert (found.low, found.high) == pytest.approx((gain - loss - half, gain - loss + half))
    assert found.method == "McNemar's exact test"
    assert found.p_value == pytest.approx(mcnemar([[30, 3], [10, 7]], exact=True).pvalue)


def test_fifty_rows_are_said_to_be_too_few() -> None:
    """Of two classifiers that disagree in a third of 50 rows only large differences are seen."""
    a = np.repeat([1, 1, 0], [33, 9, 8])
    b = np.repeat([1, 0, 1], [33, 9, 8])
    found = compare(a, b, unit="rows")
    assert 0.12 < found.resolution < 0.17
    assert "50 test rows" in str(found)
    assert "above 0.1" in str(found)


# --- predictions ---------------------------------------------------------------------------------


def accuracy(y_true: Any, y_pred: Any) -> float:
    return float(np.mean(y_true == y_pred))


def test_the_bootstrap_of_accuracy_is_near_its_formula(rng: np.random.Generator) -> None:
    y = rng.integers(2, size=400)
    a, b = (np.where(rng.uniform(size=400) < share, y, 1 - y) for share in (0.7, 0.8))
    found = compare_predictions(y, a, b, metric=accuracy, random_state=0)
    formula = compare(a == y, b == y, unit="rows")
    assert found.difference == pytest.approx(formula.difference)
    assert (found.low, found.high) == pytest.approx((formula.low, formula.high), abs=0.01)
    assert found == compare_predictions(y, a, b, metric=accuracy, random_state=0)


@pytest.mark.parametrize("n_classes", [2, 5])
def test_macro_f1_of_draws_is_that_of_scikit_learn(
    rng: np.random.Generator, n_classes: int
) -> None:
    """Classes that a draw has not are left out of its mean."""
    y, a, b = rng.integers(n_classes, size=(3, 12))
    found = compare_predictions(y, a, b, n_resamples=20, random_state=0)
    scores = [f1_score(y, one, average="macro") for one in (a, b)]
    assert found.difference == pytest.approx(scores[1] - scores[0])
    counts = rng.multinomial(12, np.full(12, 1 / 12), size=5).astype(float)
    eye = np.eye(n_classes)
    expected = [
        f1_score(*(np.repeat(one, row.astype(int)) for one in (y, a)), average="macro")
        for row in counts
    ]
    assert _macro_f1(counts, eye[y], eye[a]) == pytest.approx(expected)


def test_equal_predictions_do_not_differ(rng: np.random.Generator) -> None:
    y, a = rng.integers(3, size=(2, 30))
    found = compare_predictions(y, a, a, n_resamples=50, random_state=0)
    assert (found.difference, found.low, found.high, found.p_value) == (0, 0, 0, 1)


def test_other_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="same rows"):
        compare_predictions([0, 1], [0, 1], [0, 1, 1])


# --- several -------------------------------------------------------------------------------------


def test_holm_by_hand() -> None:
    assert holm([0.02, 0.01, 0.5, 0.012]).tolist() == pytest.approx([0.04, 0.04, 0.5, 0.04])
    assert holm([0.9, 0.8]).tolist() == [1, 1]


@settings(max_examples=10)  # statsmodels takes a tenth of a second for each
@given(hnp.arrays(np.float64, st.integers(1, 12), elements=st.floats(0, 1)))
def test_holm_is_that_of_statsmodels(p_values: np.ndarray) -> None:
    np.testing.assert_allclose(holm(p_values), multipletests(p_values, method="holm")[1])


def test_several_are_compared_in_pairs_or_with_one() -> None:
    scores = {"a": [0.1, 0.2, 0.3], "b": [0.2, 0.2, 0.4], "c": [0.6, 0.8, 0.7]}
    each = compare_all(scores)
    pairs = list(zip(each["first"], each["second"], strict=True))
    assert pairs == [("a", "b"), ("a", "c"), ("b", "c")]
    with_b = compare_all(scores, reference="b")
    assert list(with_b["second"]) == ["a", "c"]
    assert with_b["difference"].tolist() == pytest.approx([-0.2 / 3, 1.3 / 3])
    assert with_b["p_holm"].tolist() == holm(with_b["p_value"]).tolist()
    with pytest.raises(ValueError, match="reference='d'"):
        compare_all(scores, reference="d")
    with pytest.raises(ValueError, match="nothing to compare"):
        compare_all({"a": [1.0, 2.0]})


# --- variance components -----------------------------------------------------------------------


def balanced(rng: np.random.Generator, n_a: int, n_b: int, n: int) -> pd.DataFrame:
    """Scores with standard deviations of 1 by a, 2 by b, 0.5 by both, and 0.1."""
    a, b = rng.normal(size=n_a), 2 * rng.normal(size=n_b)
    both = 0.5 * rng.normal(size=(n_a, n_b))
    rows = [
        (i, j, a[i] + b[j] + both[i, j] + 0.1 * rng.normal())
        for i, j, _ in product(range(n_a), range(n_b), range(n))
    ]
    return pd.DataFrame(rows, columns=["a", "b", "score"])


def test_balanced_tables_give_the_classical_estimates(rng: np.random.Generator) -> None:
    n_a, n_b, n = 4, 5, 3
    table = balanced(rng, n_a, n_b, n)
    cube = table["score"].to_numpy().reshape(n_a, n_b, n)
    mean, of_a, of_b, of_both = cube.mean(), cube.mean((1, 2)), cube.mean((0, 2)), cube.mean(2)
    square_a = n_b * n * np.square(of_a - mean).sum() / (n_a - 1)
    square_b = n_a * n * np.square(of_b - mean).sum() / (n_b - 1)
    interaction = of_both - of_a[:, None] - of_b + mean
    square_both = n * np.square(interaction).sum() / ((n_a - 1) * (n_b - 1))
    error = np.square(cube - of_both[..., None]).sum() / (n_a * n_b * (n - 1))
    expected = {
        "a": (square_a - square_both) / (n_b * n),
        "b": (square_b - square_both) / (n_a * n),
        "a:b": (square_both - error) / n,
        "residual": error,
    }
    found = variance_components(table, ["a", "b"])
    assert found["variance"].to_dict() == pytest.approx(expected)
    assert found["share"].sum() == pytest.approx(1)


def test_the_share_of_groups_is_that_of_a_mixed_model_of_statsmodels(
    rng: np.random.Generator,
) -> None:
    groups = np.repeat(np.arange(12), 8)
    scores = rng.normal(size=12)[groups] + rng.normal(size=96)
    table = pd.DataFrame({"model": groups, "score": scores})
    found = variance_components(table, ["model"])["variance"]
    fitted = MixedLM(scores, np.ones(96), groups).fit(reml=True)
    assert found["model"] == pytest.approx(float(np.asarray(fitted.cov_re)[0, 0]), rel=1e-4)
    assert found["residual"] == pytest.approx(fitted.scale, rel=1e-4)


def test_unbalanced_tables_give_the_true_variances_on_average(rng: np.random.Generator) -> None:
    runs = []
    for _ in range(300):
        table = balanced(rng, 6, 7, 2).sample(frac=0.6, random_state=int(rng.integers(1000)))
        codes = [table["a"], table["b"], 7 * table["a"] + table["b"]]
        groups = [np.unique(code, return_inverse=True)[1] for code in codes]
        runs.append(minque(table["score"].to_numpy(), [*groups, np.arange(len(table))]))
    errors = np.std(runs, axis=0) / np.sqrt(len(runs))
    away = np.mean(runs, axis=0) - [1, 4, 0.25, 0.01]
    assert (np.abs(away) < 3 * errors).all()


def test_many_levels_of_noise_are_no_variance(rng: np.random.Generator) -> None:
    """The share of the sums of squares of such a factor would be 0.5."""
    shares = [
        variance_components(
            pd.DataFrame({"a": np.repeat(np.arange(50), 2), "score": rng.normal(size=100)}), ["a"]
        )["share"]["a"]
        for _ in range(40)
    ]
    assert np.mean(shares) < 0.12


def test_a_table_without_what_is_asked_for_is_refused(rng: np.random.Generator) -> None:
    table = balanced(rng, 2, 2, 2)
    with pytest.raises(ValueError, match="no column 'layer'"):
        variance_components(table, ["a", "layer"])
    with pytest.raises(ValueError, match="one level only"):
        variance_components(table[table["a"] == 0], ["a", "b"])
    with pytest.raises(ValueError, match="finite"):
        variance_components(table.assign(score=np.nan), ["a"])


def test_a_dummy_is_told_from_a_classifier(rng: np.random.Generator) -> None:
    X, y = rng.normal(size=(100, 2)), np.arange(100) % 2
    X[:, 0] += 3 * y
    dummy, logistic = (
        GridSearchCV(model, {}, cv=5, scoring="accuracy").fit(X, y)
        for model in (DummyClassifier(strategy="most_frequent"), LogisticRegression())
    )
    found = compare(dummy, logistic)
    assert found.low > 0.2
    assert found.p_value < 0.01
