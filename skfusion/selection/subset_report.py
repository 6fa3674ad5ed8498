"""What a search over subsets found: costs, the choice, a line for each size, a share for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..inspection.cost import ModelCost
from ..inspection.stability import (
    complementarity,
    cvar,
    expected_minimum,
    harm_rate,
    sampled_shapley_values,
    shapley_values,
)
from .subset_parts import Subset

Floats = NDArray[np.float64]
Cost = Mapping[str, Any] | Callable[[Subset], float] | None


def subset_costs(cost: Cost, models: Subset, subsets: Sequence[Subset]) -> dict[str, Floats]:
    """Give the cost of each subset.

    Parameters
    ----------
    cost : mapping of str to number or ModelCost, callable or None
        As for `ModelSubsetSearchCV`.
    models : tuple of str
        All models.
    subsets : sequence of tuple of str
        The subsets.

    Returns
    -------
    dict of str to ndarray of shape (n_subsets,)
        "cost"; where costs were measured also "seconds_per_text" and "bytes_per_text", which add
        up, and "peak_bytes", the highest, since models run one after another.

    Raises
    ------
    ValueError
        If a model's cost is missing, or a cost is not a finite number.

    Examples
    --------
    >>> from skfusion.selection.subset_report import subset_costs
    >>> subset_costs({"a": 1, "b": 2.5}, ("a", "b"), [("a",), ("a", "b")])
    {'cost': array([1. , 3.5])}
    """
    if cost is None:
        return {"cost": np.array([float(len(subset)) for subset in subsets])}
    if not isinstance(cost, Mapping):
        return {"cost": _finite([cost(subset) for subset in subsets])}
    missing = [model for model in models if model not in cost]
    if missing:
        raise ValueError(
            f"cost says nothing of {', '.join(map(repr, missing))}. Give a number for each of "
            f"{', '.join(models)}."
        )
    costs = {"cost": _finite([sum(float(cost[name]) for name in subset) for subset in subsets])}
    if all(isinstance(cost[model], ModelCost) for model in models):
        for field, gather in _MEASURED.items():
            costs[field] = np.array(
                [gather([getattr(cost[name], field) for name in subset]) for subset in subsets]
            )
    return costs


_MEASURED: dict[str, Callable[[list[float]], float]] = {
    "seconds_per_text": sum,
    "bytes_per_text": sum,
    "peak_bytes": max,
}


def _finite(costs: Sequence[float]) -> Floats:
    array = np.array(costs, dtype=np.float64)
    if not np.isfinite(array).all():
        raise ValueError(f"Every cost must be a finite number, got {array.tolist()}.")
    return array


def cheapest_within_one_error(scores: Floats, costs: Floats) -> int:
    """Choose the cheapest subset that is not clearly worse than the best one.

    With d the best subset's score minus another one's, fold by fold, that one is not clearly
    worse where mean(d) is at most the standard error std(d) / √n_folds. Folds are compared in
    pairs, since they differ from each other by more than subsets do.

    Parameters
    ----------
    scores : ndarray of shape (n_subsets, n_folds)
        Scores; subsets with one that is not finite are not chosen.
    costs : ndarray of shape (n_subsets,)
        Costs.

    Returns
    -------
    int
        The position of the cheapest; of several that cost the same the one with the highest
        mean, and of those the first.

    Raises
    ------
    ValueError
        If no subset has finite scores.

    References
    ----------
    Breiman, Friedman, Olshen and Stone, "Classification and Regression Trees" (1984), section
    3.4.3.

    Examples
    --------
    >>> import numpy as np
    >>> from skfusion.selection.subset_report import cheapest_within_one_error
    >>> scores = np.array([[0.7, 0.9], [0.75, 0.85], [0.8, 0.9]])
    >>> cheapest_within_one_error(scores, np.array([1.0, 1.0, 2.0]))
    0
    """
    finite = np.isfinite(scores).all(axis=1)
    if not finite.any():
        raise ValueError(
            "Every subset has scores that are not finite, so that none can be chosen. Use "
            "error_score='raise' to see why."
        )
    means = np.where(finite, scores.mean(axis=1), -np.inf)
    behind = scores[np.argmax(means)] - scores[finite]
    n_folds = scores.shape[1]
    errors = behind.std(axis=1, ddof=1) / np.sqrt(n_folds) if n_folds > 1 else 0.0
    good = np.flatnonzero(finite)[behind.mean(axis=1) <= errors]
    return int(good[np.lexsort((-means[good], costs[good]))[0]])


def size_report(subsets: Sequence[Subset], means: Floats) -> dict[str, Floats]:
    """Describe the subsets of each size.

    Parameters
    ----------
    subsets : sequence of tuple of str
        The subsets that were tried, all single models among them.
    means : ndarray of shape (n_subsets,)
        Their mean scores; those that are not finite are left out.

    Returns
    -------
    dict of str to ndarray of shape (n_sizes,)
        See ``size_report_`` of `ModelSubsetSearchCV`.
    """
    alone = {s[0]: mean for s, mean in zip(subsets, means, strict=True) if len(s) == 1}
    singles = [mean for mean in alone.values() if np.isfinite(mean)]
    sizes = sorted({len(subset) for subset in subsets})
    lines = []
    for size in sizes:
        cases = [
            (mean, [alone[model] for model in subset])
            for subset, mean in zip(subsets, means, strict=True)
            if len(subset) == size and np.isfinite([mean, *(alone[m] for m in subset)]).all()
        ]
        lines.append(_describe(cases, singles) if cases else {})
    columns = dict.fromkeys(key for line in lines for key in line)
    return {
        "size": np.array(sizes),
        **{key: np.array([line.get(key, np.nan) for line in lines]) for key in columns},
    }


def _describe(cases: list[tuple[float, list[float]]], singles: list[float]) -> dict[str, float]:
    scores = [score for score, _ in cases]
    members = [alone for _, alone in cases]
    # The minimum of many is lower than that of few: both sides draw as many as the fewer have.
    matched = min(len(scores), len(singles))
    return {
        "n_subsets": len(scores),
        "min": min(scores),
        "median": float(np.median(scores)),
        "max": max(scores),
        "expected_min": expected_minimum(scores, matched),
        "expected_min_single": expected_minimum(singles, matched),
        "cvar": cvar(scores),
        "over_best_member": float(complementarity(scores, members).mean()),
        "over_mean_member": float(complementarity(scores, members, against="mean").mean()),
        "harm_best": harm_rate(scores, members),
        "harm_mean": harm_rate(scores, members, against="mean"),
    }


def model_shares(
    subsets: Sequence[Subset], means: Floats, nothing: float, orders: Sequence[Subset]
) -> dict[str, float] | None:
    """Share the score of all models among them.

    Parameters
    ----------
    subsets : sequence of tuple of str
        The subsets that were tried.
    means : ndarray of shape (n_subsets,)
        Their mean scores.
    nothing : float
        The score without any model.
    orders : sequence of tuple of str
        Orders of the models of which every beginning was tried, where not all subsets were.

    Returns
    -------
    dict of str to float or None
        Shapley values by model; None where too few subsets were tried.
    """
    values = {frozenset[str](): nothing}
    values |= {frozenset(subset): float(mean) for subset, mean in zip(subsets, means, strict=True)}
    n_models = sum(len(subset) == 1 for subset in subsets)
    if len(values) == 2**n_models:
        return shapley_values(values)
    return sampled_shapley_values(values, orders) if orders else None
