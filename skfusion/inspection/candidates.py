"""What a search has tried, as displays and comparisons read it."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from sklearn.model_selection import BaseShuffleSplit
from sklearn.pipeline import Pipeline

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Candidates:
    """Candidates that have a finite score in every split, in the order of the search."""

    params: list[dict[str, Any]]
    scores: Floats  # (n_candidates, n_splits)
    rows: list[int]  # of ``cv_results_``
    test_fraction: float | None  # None where it is unknown
    metric: str
    n_left_out: int

    def parameter(self, kind: str, given: str | None = None) -> str:
        """Return the name of the one parameter that is called so, or the one that is given."""
        names = list(dict.fromkeys(name for params in self.params for name in params))
        if given is not None:
            if given not in names:
                raise ValueError(f"The search has no parameter {given!r}: {', '.join(names)}.")
            return given
        found = [name for name in names if name.split("__")[-1] == kind]
        if len(found) != 1:
            raise ValueError(
                f"Of {len(found)} parameters called {kind!r} ({', '.join(found) or 'none'}) one "
                f"must be named: {kind}=. The search has {', '.join(names)}."
            )
        return found[0]

    def labels(self, parameter: str, estimator: Any) -> list[str]:
        """Return each candidate's value of a parameter; where it sets none, the estimator's."""
        own = estimator.get_params(deep=True).get(parameter)
        return [label(params.get(parameter, own)) for params in self.params]

    def best_of(self, keys: Sequence[Hashable | None]) -> dict[Any, int]:
        """Return the position of the best candidate of each key, in the order of keys.

        Candidates whose key is None are left out.
        """
        means, best = self.scores.mean(axis=1), dict[Any, int]()
        for i, key in enumerate(keys):
            if key is not None and (key not in best or means[i] > means[best[key]]):
                best[key] = i
        return best


def split_scores(results: Mapping[str, Any], n_splits: int, metric: str = "score") -> Floats:
    """Return the scores in ``cv_results_``, one row per candidate and one column per split."""
    return np.stack([results[f"split{i}_test_{metric}"] for i in range(n_splits)], axis=1)


def search_metric(search: Any) -> str:
    """Return the name under which ``cv_results_`` has the metric that the search chose by."""
    if not getattr(search, "multimetric_", False):
        return "score"
    if not isinstance(search.refit, str):
        raise ValueError(
            f"{type(search).__name__} has several metrics and refit={search.refit!r}, so it is "
            f"unknown which of them counts. Use refit='NAME'."
        )
    return search.refit


def read_candidates(search: Any) -> Candidates:
    """Read the candidates of a fitted search; those that failed or were pruned are left out."""
    if not hasattr(search, "cv_results_"):
        raise ValueError(
            f"{type(search).__name__} has no cv_results_. Give a search that has been fitted."
        )
    metric = search_metric(search)
    scores = split_scores(search.cv_results_, search.n_splits_, metric)
    kept = np.flatnonzero(np.isfinite(scores).all(axis=1)).tolist()
    if not kept:
        raise ValueError(
            "No candidate has finite scores in all splits. Use error_score='raise' to see why."
        )
    try:
        test_fraction = split_fraction(search)
    except ValueError:
        test_fraction = None
    scoring = search.scoring if isinstance(getattr(search, "scoring", None), str) else "score"
    params = search.cv_results_["params"]
    return Candidates(
        params=[dict(params[i]) for i in kept],
        scores=scores[kept],
        rows=kept,
        test_fraction=test_fraction,
        metric=scoring if metric == "score" else metric,
        n_left_out=len(scores) - len(kept),
    )


def split_fraction(search: Any) -> float:
    """Return the share of rows that each split of a fitted search tests on."""
    cv, n_splits = getattr(search, "cv", None), search.n_splits_
    if cv is None or isinstance(cv, int):
        return 1 / int(n_splits)
    if hasattr(cv, "cvargs"):  # of RepeatedKFold and RepeatedStratifiedKFold
        return 1 / int(cv.cvargs["n_splits"])
    if isinstance(cv, BaseShuffleSplit):
        size = 0.1 if cv.test_size is None and cv.train_size is None else cv.test_size
        if isinstance(size, float):
            return size
    elif hasattr(cv, "n_splits"):
        return 1 / int(n_splits)
    raise ValueError(f"What share of the rows {cv} tests on is not known. Give test_fraction=.")


def shared_rows_factor(n_splits: int, test_fraction: float | None) -> float:
    """Return what the variance of a split's score is multiplied by to give that of their mean.

    1/n + n_test/n_train, as splits share training rows (Nadeau and Bengio, Machine Learning 52,
    2003); None takes the splits as those of one k-fold cross-validation.
    """
    fraction = 1 / n_splits if test_fraction is None else test_fraction
    return 1 / n_splits + fraction / (1 - fraction)


def corrected_error(scores: Floats, test_fraction: float | None) -> Floats:
    """Return the standard error of means over splits (the last axis); NaN with one split."""
    n_splits = scores.shape[-1]
    if n_splits < 2:
        return np.full(scores.shape[:-1], np.nan)
    factor = shared_rows_factor(n_splits, test_fraction)
    errors: Floats = np.sqrt(factor * scores.var(axis=-1, ddof=1))
    return errors


def half_intervals(
    scores: Floats, test_fraction: float | None, confidence: float = 0.95
) -> Floats:
    """Return half of the confidence interval of means over splits; NaN with one split.

    >>> half_intervals(np.array([[0.5, 0.7, 0.6]]), 1 / 3).round(3)
    array([0.393])
    """
    quantile = float(stats.t.ppf((1 + confidence) / 2, max(scores.shape[-1] - 1, 1)))
    return quantile * corrected_error(scores, test_fraction)


def within_one_error(scores: Floats) -> NDArray[np.bool_]:
    """Return which rows of scores (n_candidates, n_splits) are not clearly worse than the best.

    With d the best one's score minus another's, split by split, that is where mean(d) is at most
    std(d) / √n_splits.

    >>> within_one_error(np.array([[0.7, 0.9], [0.5, 0.6], [0.8, 0.9]]))
    array([ True, False,  True])
    """
    behind = scores[np.argmax(scores.mean(axis=1))] - scores
    n_splits = scores.shape[1]
    errors = behind.std(axis=1, ddof=1) / np.sqrt(n_splits) if n_splits > 1 else 0.0
    near: NDArray[np.bool_] = behind.mean(axis=1) <= errors
    return near


# --- words -------------------------------------------------------------------------------------


def label(value: Any) -> str:
    """Return what a parameter's value is called on an axis."""
    if isinstance(value, str):
        return value
    if isinstance(value, float) and not value.is_integer():
        return f"{value:.3g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(label, value))
    return str(value)


def layer_label(value: Any) -> str:
    """Return what a layer is called on an axis.

    >>> [layer_label(layer) for layer in (3, -1, -2, 0.5, "blend")]
    ['3', 'last', '-2', '50 %', 'blend']
    """
    if isinstance(value, float):
        return f"{value:.0%}".replace("%", " %")
    return "last" if isinstance(value, int | np.integer) and value == -1 else label(value)


def layer_order(value: Any) -> tuple[int, float, str]:
    """Sort layers: from the first ones down to the last, then words."""
    if isinstance(value, float):
        return 1, value, ""
    if isinstance(value, int | np.integer):
        return (0 if value >= 0 else 2), float(value), ""
    return 3, 0.0, label(value)


# --- fitted parts --------------------------------------------------------------------------------


def fitted_parts(estimator: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield a fitted estimator and all that it has inside, from the outside in, with its name."""
    yield name, estimator
    inner: list[tuple[str, Any]] = []
    for attribute in ("best_estimator_", "pipeline_"):
        # `vars`, as asking a search without refit for its best estimator is an error.
        if attribute in vars(estimator):
            inner.append((name, getattr(estimator, attribute)))
    if isinstance(estimator, Pipeline):
        inner += estimator.steps
    inner += vars(estimator).get("embedders_", [])
    for own, part in inner:
        if not isinstance(part, str) and part is not None:
            yield from fitted_parts(part, own)
