"""Whether one candidate is better than another, and where scores vary: honest intervals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats
from sklearn.utils import check_random_state
from sklearn.utils._optional_dependencies import check_pandas_support

from .candidates import corrected_error, search_metric, split_fraction, split_scores

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]
Metric = Callable[[NDArray[Any], NDArray[Any]], float]
_RESAMPLES = 2000
_MOST_COUNTS = 2**22  # of draws by rows that are held at once


@dataclass(frozen=True)
class Comparison:
    """What two candidates differ by, and how sure that is; `print` says it in words.

    Attributes
    ----------
    difference : float
        Score of the second candidate minus that of the first.
    low, high : float
        Confidence interval of the difference.
    p_value : float
        Two-sided p-value of "no difference".
    confidence : float
        Level of the interval.
    n : int
        Number of pairs: splits or test rows.
    unit : {"splits", "test rows"}
        What the pairs are.
    method : str
        Name of the test.

    See Also
    --------
    compare : Compare scores of splits, or of rows.
    compare_predictions : Compare predictions of one test set.

    Examples
    --------
    >>> from skfusion import compare
    >>> print(compare([0.70, 0.72, 0.71, 0.69, 0.73], [0.71, 0.71, 0.72, 0.70, 0.73]))
    The second is better by 0.004 (95 % interval -0.013 to 0.021, p = 0.54): not more than chance.
    5 splits, corrected resampled t-test. They can only tell differences above 0.017.
    """

    difference: float
    low: float
    high: float
    p_value: float
    confidence: float
    n: int
    unit: str
    method: str

    @property
    def resolution(self) -> float:
        """Half of the interval: smaller differences cannot be told from chance."""
        return (self.high - self.low) / 2

    def __str__(self) -> str:
        better = "second" if self.difference >= 0 else "first"
        level, sure = 100 * self.confidence, self.low > 0 or self.high < 0
        head = (
            f"The {better} is better by {abs(self.difference):.3f} ({level:.0f} % interval "
            f"{self.low:.3f} to {self.high:.3f}, p = {self.p_value:.2g})"
        )
        if self.difference == 0:
            head = f"No difference ({level:.0f} % interval {self.low:.3f} to {self.high:.3f})"
        verdict = "more than chance" if sure else "not more than chance"
        return (
            f"{head}: {verdict}.\n{self.n} {self.unit}, {self.method}. They can only tell "
            f"differences above {self.resolution:.3f}."
        )


# --- scores ----------------------------------------------------------------------------------


def compare(
    a: Any,
    b: Any,
    *,
    unit: Literal["splits", "rows"] = "splits",
    test_fraction: float | None = None,
    confidence: float = 0.95,
) -> Comparison:
    """Compare two candidates by their scores of the same splits, or of the same test rows.

    Scores of splits share most of their training rows, so that the usual t-test sees differences
    where there are none. The variance is corrected by the ratio of test rows to training rows
    (Nadeau and Bengio, "Inference for the Generalization Error", Machine Learning 52, 2003):
    t = mean(d) / √((1/n + n_test/n_train) var(d)), with n - 1 degrees of freedom. Scores of rows
    are independent. Where all are 0 or 1, they are right and wrong answers: McNemar's exact test,
    with the interval of Bonett and Price (British Journal of Mathematical and Statistical
    Psychology 65, 2012). Other scores of rows, such as losses, get a paired t-test.

    Parameters
    ----------
    a, b : fitted search or array-like of shape (n_pairs,)
        A search with `cv_results_` stands for its best candidate. Both must be of the same
        splits, or rows, in the same order; pairs with NaN (a fit that failed) are left out.
    unit : {"splits", "rows"}, default="splits"
        What a score is of.
    test_fraction : float or None, default=None
        The share of rows that each split tests on. None asks a search for its `cv`, and takes
        arrays as those of one k-fold cross-validation, 1 / n_pairs. Not used for rows.
    confidence : float, default=0.95
        Level of the interval.

    Returns
    -------
    Comparison
        The difference, b minus a, its interval and its p-value.

    Raises
    ------
    ValueError
        If both are not of as many splits, if fewer than two pairs are left, or if the share of
        test rows is unknown.

    See Also
    --------
    compare_all : Several candidates, with Holm's correction.
    compare_predictions : For metrics that are no means over rows, such as macro-F1.

    Examples
    --------
    >>> from skfusion import compare
    >>> right = [1, 1, 0, 1, 0, 1, 1, 0, 1, 1]
    >>> compare(right, [1] * 10, unit="rows").p_value
    0.25
    """
    if unit not in ("splits", "rows"):
        raise ValueError(f"unit={unit!r} is not known. Use 'splits' or 'rows'.")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence={confidence} must be above 0 and below 1.")
    first, second = _pairs(_scores(a), _scores(b))
    if unit == "splits":
        fraction = _test_fraction(a, b, len(_scores(a)), test_fraction)
        return _corrected_t(second - first, fraction, confidence)
    if np.isin(first, (0, 1)).all() and np.isin(second, (0, 1)).all():
        return _mcnemar(first, second, confidence)
    error = float(stats.sem(second - first))
    return _t(second - first, error, confidence, "test rows", "paired t-test")


def compare_all(
    candidates: Mapping[str, Any],
    *,
    reference: str | None = None,
    unit: Literal["splits", "rows"] = "splits",
    test_fraction: float | None = None,
    confidence: float = 0.95,
) -> pd.DataFrame:
    """Compare several candidates, each with each or with one of them.

    Parameters
    ----------
    candidates : mapping of str to fitted search or array-like of shape (n_pairs,)
        What `compare` takes, by name.
    reference : str or None, default=None
        The candidate that all others are compared with. None compares each with each.
    unit : {"splits", "rows"}, default="splits"
        As in `compare`.
    test_fraction : float or None, default=None
        As in `compare`.
    confidence : float, default=0.95
        Level of the intervals, of each by itself.

    Returns
    -------
    pandas.DataFrame
        One row per pair: columns `first`, `second`, `difference`, `low`, `high`, `p_value`, and
        `p_holm`, the p-value corrected for all pairs (Holm, Scandinavian Journal of Statistics 6,
        1979).

    Raises
    ------
    ValueError
        If there are fewer than two candidates, or `reference` is none of them.

    See Also
    --------
    compare : Two candidates, in words.

    Examples
    --------
    >>> from skfusion import compare_all
    >>> scores = {"mean": [0.7, 0.8, 0.7], "last": [0.5, 0.6, 0.4], "max": [0.6, 0.8, 0.7]}
    >>> table = compare_all(scores, reference="mean")
    >>> table[["second", "p_value", "p_holm"]].round(3)
      second  p_value  p_holm
    0   last    0.047   0.095
    1    max    0.592   0.592
    """
    pd = check_pandas_support("compare_all")
    names = list(candidates)
    if len(names) < 2:
        raise ValueError(f"There is nothing to compare among {names}. Give two candidates.")
    if reference is not None and reference not in candidates:
        raise ValueError(f"reference={reference!r} is not a candidate: {', '.join(names)}.")
    pairs = (
        list(combinations(names, 2))
        if reference is None
        else [(reference, name) for name in names if name != reference]
    )
    found = [
        compare(
            candidates[a],
            candidates[b],
            unit=unit,
            test_fraction=test_fraction,
            confidence=confidence,
        )
        for a, b in pairs
    ]
    return pd.DataFrame(
        {
            "first": [a for a, _ in pairs],
            "second": [b for _, b in pairs],
            "difference": [one.difference for one in found],
            "low": [one.low for one in found],
            "high": [one.high for one in found],
            "p_value": [one.p_value for one in found],
            "p_holm": holm([one.p_value for one in found]),
        }
    )


def holm(p_values: ArrayLike) -> Floats:
    """Return p-values that are corrected for their number by Holm's step-down method.

    >>> holm([0.01, 0.04, 0.03])
    array([0.03, 0.06, 0.06])
    """
    values = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    stepped = np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1))
    corrected = np.empty_like(values)
    corrected[order] = np.minimum(stepped, 1)
    return corrected


def _scores(candidate: Any) -> Floats:
    """Return the scores of an array, or those of a search's best candidate."""
    if not hasattr(candidate, "cv_results_"):
        values = np.asarray(candidate, dtype=np.float64)
        if values.ndim != 1:
            raise ValueError(
                f"Expected a fitted search or a 1-D array of scores, got an array of shape "
                f"{values.shape}."
            )
        return values
    if not hasattr(candidate, "best_index_"):
        raise ValueError(
            f"{type(candidate).__name__} has chosen no candidate, as it has several metrics and "
            f"refit=False. Give its split scores as an array."
        )
    results, metric = candidate.cv_results_, search_metric(candidate)
    chosen: Floats = split_scores(results, candidate.n_splits_, metric)[candidate.best_index_]
    return chosen


def _pairs(first: Floats, second: Floats) -> tuple[Floats, Floats]:
    if len(first) != len(second):
        raise ValueError(
            f"{len(first)} and {len(second)} scores are not pairs. Both must be of the same "
            f"splits, or of the same test rows."
        )
    known = np.isfinite(first) & np.isfinite(second)
    if known.sum() < 2:
        raise ValueError(
            f"{int(known.sum())} of {len(first)} pairs have two finite scores. A comparison needs "
            f"two at least."
        )
    return first[known], second[known]


def _test_fraction(a: Any, b: Any, n_splits: int, asked: float | None) -> float:
    """Return the share of rows in a test split."""
    if asked is not None:
        if not 0 < asked < 1:
            raise ValueError(f"test_fraction={asked} must be above 0 and below 1.")
        return asked
    searches = [one for one in (a, b) if hasattr(one, "cv_results_")]
    if not searches:
        return 1 / n_splits
    return split_fraction(searches[0])


def _corrected_t(differences: Floats, test_fraction: float, confidence: float) -> Comparison:
    error = float(corrected_error(differences, test_fraction))
    return _t(differences, error, confidence, "splits", "corrected resampled t-test")


def _t(differences: Floats, error: float, confidence: float, unit: str, method: str) -> Comparison:
    """Test that the mean is 0, whose standard error is given."""
    mean, freedom = float(differences.mean()), len(differences) - 1
    half = float(stats.t.ppf((1 + confidence) / 2, freedom)) * error
    # Where all differences are equal, they are 0 or not.
    p_value = 2 * stats.t.sf(abs(mean) / error, freedom) if error > 0 else mean == 0
    return Comparison(
        difference=mean,
        low=mean - half,
        high=mean + half,
        p_value=float(p_value),
        confidence=confidence,
        n=len(differences),
        unit=unit,
        method=method,
    )


def _mcnemar(first: Floats, second: Floats, confidence: float) -> Comparison:
    n, gained, lost = len(first), int((second > first).sum()), int((second < first).sum())
    p_value = stats.binomtest(gained, gained + lost).pvalue if gained + lost else 1.0
    gain, loss = (gained + 1) / (n + 2), (lost + 1) / (n + 2)
    middle = gain - loss
    error = np.sqrt((gain + loss - middle**2) / (n + 2))
    half = float(stats.norm.ppf((1 + confidence) / 2) * error)
    return Comparison(
        difference=(gained - lost) / n,
        low=max(middle - half, -1.0),
        high=min(middle + half, 1.0),
        p_value=float(p_value),
        confidence=confidence,
        n=n,
        unit="test rows",
        method="McNemar's exact test",
    )


# --- predictions -----------------------------------------------------------------------------


def compare_predictions(
    y_true: ArrayLike,
    a: ArrayLike,
    b: ArrayLike,
    *,
    metric: Metric | None = None,
    n_resamples: int = _RESAMPLES,
    confidence: float = 0.95,
    random_state: int | np.random.RandomState | None = None,
) -> Comparison:
    """Compare two candidates by their predictions of one test set.

    Rows are drawn with replacement, both candidates on the same rows (paired bootstrap). The
    interval is the bias-corrected percentile interval (Efron and Tibshirani, "An Introduction to
    the Bootstrap", 1993, section 14.3, with an acceleration of 0), and the p-value is the level
    at which that interval ends at 0. Only the chance in the test rows counts, not that in the
    training rows.

    Parameters
    ----------
    y_true : array-like of shape (n_rows,)
        The true labels or numbers.
    a, b : array-like of shape (n_rows,)
        What the candidates predict.
    metric : callable or None, default=None
        ``metric(y_true, y_pred)``, higher is better. None is macro-F1.
    n_resamples : int, default=2000
        How often rows are drawn.
    confidence : float, default=0.95
        Level of the interval.
    random_state : int, RandomState instance or None, default=None
        Draws the rows.

    Returns
    -------
    Comparison
        The difference, b minus a, its interval and its p-value.

    Raises
    ------
    ValueError
        If the arrays are not of the same length, or have fewer than two rows.

    See Also
    --------
    compare : Scores of splits, or right and wrong answers.

    Examples
    --------
    >>> from skfusion import compare_predictions
    >>> y_true = ["yes", "no"] * 20
    >>> always = ["yes"] * 40
    >>> found = compare_predictions(y_true, always, y_true, random_state=0)
    >>> round(found.difference, 3), found.low > 0.5
    (0.667, True)
    """
    truth, first, second = (np.asarray(values) for values in (y_true, a, b))
    if not truth.shape == first.shape == second.shape or truth.ndim != 1 or len(truth) < 2:
        raise ValueError(
            f"y_true, a and b have the shapes {truth.shape}, {first.shape} and {second.shape}. "
            f"Give 1-D arrays of the same rows, two at least."
        )
    if not 0 < confidence < 1:
        raise ValueError(f"confidence={confidence} must be above 0 and below 1.")
    rng = check_random_state(random_state)
    resample = _MacroF1(truth) if metric is None else _Metric(metric, truth)
    difference, drawn = resample.differences(first, second, n_resamples, rng)
    low, high, p_value = _bias_corrected(np.sort(drawn), difference, confidence)
    return Comparison(
        difference, low, high, p_value, confidence, len(truth), "test rows", "paired bootstrap"
    )


@dataclass(frozen=True)
class _Metric:
    """Any metric, one call per draw."""

    metric: Metric
    truth: NDArray[Any]

    def differences(
        self, first: NDArray[Any], second: NDArray[Any], n: int, rng: np.random.RandomState
    ) -> tuple[float, Floats]:
        """Return the difference on all rows, and on n draws of rows."""

        def differ(rows: NDArray[np.intp] | slice) -> float:
            truth = self.truth[rows]
            return float(self.metric(truth, second[rows]) - self.metric(truth, first[rows]))

        n_rows = len(self.truth)
        drawn = [differ(rng.randint(n_rows, size=n_rows)) for _ in range(n)]
        return differ(slice(None)), np.array(drawn)


@dataclass(frozen=True)
class _MacroF1:
    """Macro-F1 of many draws at once, from how often each row is in each."""

    truth: NDArray[Any]

    def differences(
        self, first: NDArray[Any], second: NDArray[Any], n: int, rng: np.random.RandomState
    ) -> tuple[float, Floats]:
        """Return the difference on all rows, and on n draws of rows."""
        n_rows = len(self.truth)
        stacked = np.concatenate([self.truth, first, second])
        codes = np.unique(stacked, return_inverse=True)[1].reshape(3, n_rows)
        truth, *predicted = np.eye(codes.max() + 1)[codes]

        def differ(counts: Floats) -> Floats:
            a, b = (_macro_f1(counts, truth, one) for one in predicted)
            difference: Floats = b - a
            return difference

        step = max(1, _MOST_COUNTS // n_rows)
        drawn = [
            differ(rng.multinomial(n_rows, np.full(n_rows, 1 / n_rows), size=size).astype(float))
            for size in np.diff([*range(0, n, step), n])
        ]
        return float(differ(np.ones((1, n_rows)))[0]), np.concatenate(drawn)


def _macro_f1(counts: Floats, truth: Floats, predicted: Floats) -> Floats:
    """Return macro-F1 of each row of counts (n_draws, n_rows), over the classes that it has."""
    hits = counts @ (truth * predicted)
    sizes = counts @ (truth + predicted)
    present = sizes > 0
    scores = np.divide(2 * hits, sizes, out=np.zeros_like(hits), where=present)
    means: Floats = scores.sum(axis=1) / present.sum(axis=1)
    return means


def _bias_corrected(drawn: Floats, found: float, confidence: float) -> tuple[float, float, float]:
    """Return the interval and the p-value of 0, from sorted draws of a statistic."""
    n = len(drawn)
    below = (np.sum(drawn < found) + np.sum(drawn <= found)) / 2
    bias = float(stats.norm.ppf(np.clip(below, 0.5, n - 0.5) / n))
    z = float(stats.norm.ppf((1 + confidence) / 2))
    low, high = np.quantile(drawn, stats.norm.cdf([2 * bias - z, 2 * bias + z]))
    under = np.clip((np.sum(drawn < 0) + np.sum(drawn <= 0)) / 2, 0.5, n - 0.5) / n
    p_value = 2 * stats.norm.sf(abs(float(stats.norm.ppf(under)) - 2 * bias))
    return float(low), float(high), float(min(p_value, 1.0))


# --- where scores vary -------------------------------------------------------------------------


def variance_components(
    scores: pd.DataFrame, factors: Sequence[str], *, score: str = "score", order: int = 2
) -> pd.DataFrame:
    """Return how much of the variance of scores each factor and interaction makes.

    Each measured score is taken as a sum of random effects: one for the level of each factor, one
    for each combination of levels of up to `order` factors, and a residual. Their variances solve
    the equations that equate the sums of squares between groups with what is expected of them
    (MINQUE(0), Rao, Journal of Multivariate Analysis 1, 1971; in balanced tables the classical
    analysis of variance). They are not biased by the number of levels, as shares of sums of
    squares are. An estimate below 0 counts as 0.

    Parameters
    ----------
    scores : pandas.DataFrame
        One row per measured score.
    factors : sequence of str
        The columns that say where a score was measured, such as model, data set, layer, pooling.
        A layer is a factor of its own only where it means the same in all models, as a depth.
    score : str, default="score"
        The column of the scores.
    order : int, default=2
        The most factors of an interaction. One with as many groups as there are scores is the
        residual.

    Returns
    -------
    pandas.DataFrame
        Rows named by factor, by ``"a:b"`` and ``"residual"``; columns `variance` and `share`, the
        part of the sum of all.

    Raises
    ------
    ValueError
        If a column is missing, a score is not finite, or a factor has one level only.

    Examples
    --------
    >>> import pandas as pd
    >>> from skfusion import variance_components
    >>> rows = [(m, d, s) for m, a in zip("xyz", [0, 1, 2]) for d, s in (("r", a), ("q", a + 0.5))]
    >>> table = pd.DataFrame(rows, columns=["model", "data", "score"])
    >>> variance_components(table, ["model", "data"]).round(3)
              variance  share
    model        1.000  0.889
    data         0.125  0.111
    residual     0.000  0.000
    """
    pd = check_pandas_support("variance_components")
    missing = [column for column in (*factors, score) if column not in scores]
    if missing or not factors:
        raise ValueError(
            f"The table has no column {', '.join(map(repr, missing)) or 'of a factor'}; it has "
            f"{', '.join(map(str, scores.columns))}."
        )
    values = scores[score].to_numpy(dtype=np.float64)
    if not np.isfinite(values).all():
        raise ValueError("Scores must be finite. Leave out the rows of fits that failed.")
    codes = {}
    for size in range(1, max(1, order) + 1):
        for chosen in combinations(factors, size):
            groups = scores.groupby(list(chosen), observed=True, dropna=False).ngroup().to_numpy()
            n_groups = int(groups.max()) + 1
            if size == 1 and n_groups < 2:
                raise ValueError(f"The factor {chosen[0]!r} has one level only. Leave it out.")
            if n_groups < len(values):
                codes[":".join(map(str, chosen))] = groups
    codes["residual"] = np.arange(len(values))
    variances = np.maximum(minque(values, list(codes.values())), 0)
    total = variances.sum()
    shares = variances / total if total > 0 else np.zeros(len(variances))
    return pd.DataFrame({"variance": variances, "share": shares}, index=list(codes))


def minque(values: Floats, effects: Sequence[NDArray[np.intp]]) -> Floats:
    """Solve E[y' M Z_i Z_i' M y] = Σ_j σ²_j ‖Z_i' M Z_j‖² with M the centring; Z_i say the groups.

    Z_i' M Z_j = counts of both groups together - n_i n_j' / n.
    """
    n, centred = len(values), values - values.mean()
    counts = [np.bincount(codes).astype(np.float64) for codes in effects]
    found = np.array([np.square(np.bincount(codes, centred)).sum() for codes in effects])
    expected = np.empty((len(effects), len(effects)))
    for i, j in np.ndindex(expected.shape):
        together = np.unique(np.stack([effects[i], effects[j]]), axis=1, return_counts=True)
        (first, second), both = together
        chance = counts[i][first] * counts[j][second] / n
        # ‖C - n n'/n‖² over all pairs of groups, most of which have no row in common.
        everywhere = np.square(counts[i]).sum() * np.square(counts[j]).sum() / n**2
        expected[i, j] = (np.square(both - chance) - np.square(chance)).sum() + everywhere
    solved: Floats = np.linalg.lstsq(expected, found, rcond=None)[0]
    return solved
