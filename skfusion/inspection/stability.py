"""How stable a set of scores is: worst cases, harm, and what each member of a set is worth."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import combinations
from math import factorial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_random_state
from sklearn.utils._optional_dependencies import check_pandas_support

from .candidates import shared_rows_factor

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]
Member = TypeVar("Member", bound=Hashable)
Against = Literal["best", "mean"]


def expected_minimum(scores: ArrayLike, m: int) -> float:
    """Return the expected lowest of m scores that are drawn without replacement.

    The lowest of many scores is lower than that of few, whatever they are scores of. Groups of
    different sizes are compared by the minimum that m members of each are expected to have:
    with the n scores sorted in ascending order, Σ_i s_(i) C(n - i, m - 1) / C(n, m).

    >>> round(expected_minimum([0.1, 0.2, 0.6], 2), 4)  # (0.1 + 0.1 + 0.2) / 3
    0.1333
    """
    ascending = np.sort(_one_dimensional(scores))
    n = len(ascending)
    if not 1 <= m <= n:
        raise ValueError(f"m={m} of {n} scores cannot be drawn. Use 1 to {n}.")
    return float(ascending @ _minimum_weights(n, m))


def cvar(scores: ArrayLike, alpha: float = 0.25) -> float:
    """Return the mean of the worst fraction of scores (conditional value at risk).

    Of n scores the lowest a = alpha n are averaged; where that is no whole number, the last one
    counts by the rest: (Σ_{i ≤ k} s_(i) + (a - k) s_(k + 1)) / a with k = floor(a). Rockafellar
    and Uryasev, "Conditional value-at-risk for general loss distributions", Journal of Banking &
    Finance 26 (2002), proposition 8.

    >>> cvar([0.5, 0.25, 1.0, 1.0], alpha=0.5)
    0.375
    """
    ascending = np.sort(_one_dimensional(scores))
    if not 0 < alpha <= 1:
        raise ValueError(f"alpha={alpha} must be a fraction, above 0 and at most 1.")
    return float(ascending @ _cvar_weights(len(ascending), alpha))


def _minimum_weights(n: int, m: int) -> Floats:
    """Return C(n - i, m - 1) / C(n, m) for i from 1 to n."""
    # It is m / n for i = 1, and each is a fraction of the one before.
    above = n - np.arange(1, n)
    weights: Floats = m / n * np.cumprod([1.0, *(np.maximum(above - m + 1, 0) / above)])
    return weights


def _cvar_weights(n: int, alpha: float) -> Floats:
    """Return what each of n ascending scores counts."""
    n_worst = alpha * n
    weights: Floats = np.clip(n_worst - np.arange(n), 0, 1) / n_worst
    return weights


def complementarity(
    scores: ArrayLike, member_scores: ArrayLike, *, against: Against = "best"
) -> Floats:
    """Return by how much sets score higher than their best member alone, or its mean member.

    `member_scores` has one row per set and one column per member.

    >>> complementarity([0.75, 0.5], [[0.5, 0.25], [0.5, 1.0]])
    array([ 0.25, -0.5 ])
    """
    totals, members = _one_dimensional(scores), np.asarray(member_scores, dtype=np.float64)
    if members.ndim != 2 or len(members) != len(totals) or not members.shape[1]:
        raise ValueError(
            f"member_scores of shape {members.shape} do not fit {len(totals)} scores. Give one "
            f"row per set, one column per member."
        )
    if against not in ("best", "mean"):
        raise ValueError(f"against={against!r} is not known. Use 'best' or 'mean'.")
    alone = members.max(axis=1) if against == "best" else members.mean(axis=1)
    return np.asarray(totals - alone)


def harm_rate(scores: ArrayLike, member_scores: ArrayLike, *, against: Against = "best") -> float:
    """Return the fraction of sets that score lower than their best, or their mean, member."""
    return float(np.mean(complementarity(scores, member_scores, against=against) < 0))


def shapley_values(values: Mapping[frozenset[Member], float]) -> dict[Member, float]:
    """Return the Shapley value of each member, from the values of all 2^n subsets.

    φ_i = Σ_{S without i} |S|! (n - |S| - 1)! / n! (v(S and i) - v(S)): what i adds, averaged
    over all orders in which the members may come. They add up to v(all) - v(none). Shapley, "A
    value for n-person games", Contributions to the Theory of Games II (1953).

    >>> worth = {frozenset(): 0.0, frozenset("a"): 0.5, frozenset("b"): 0.25, frozenset("ab"): 1.0}
    >>> shapley_values(worth)
    {'a': 0.625, 'b': 0.375}
    """
    members = _members(values)
    n = len(members)
    found = dict.fromkeys(members, 0.0)
    for member in members:
        others = [other for other in members if other != member]
        for size in range(n):
            weight = factorial(size) * factorial(n - size - 1) / factorial(n)
            for subset in map(frozenset, combinations(others, size)):
                added = _value(values, subset | {member}) - _value(values, subset)
                found[member] += weight * added
    return found


def sampled_shapley_values(
    values: Mapping[frozenset[Member], float], orders: Iterable[Sequence[Member]]
) -> dict[Member, float]:
    """Estimate Shapley values from some of the orders in which members may come.

    The estimate is the mean over the orders of what a member adds to those before it. It is
    unbiased where orders are drawn uniformly, and adds up to v(all) - v(none) for any of them.
    Castro, Gómez and Tejada, "Polynomial calculation of the Shapley value based on sampling",
    Computers & Operations Research 36 (2009).
    """
    listed = list(orders)
    if not listed:
        raise ValueError("No order is given. Give one permutation of the members at least.")
    found = dict.fromkeys(_members(values), 0.0)
    for order in listed:
        for i, member in enumerate(order):
            before = frozenset(order[:i])
            added = _value(values, before | {member}) - _value(values, before)
            found[member] += added / len(listed)
    return found


def pareto_front(scores: ArrayLike, costs: ArrayLike) -> NDArray[np.intp]:
    """Return the positions that are not beaten, from the cheapest to the best.

    Nothing else scores as high for less, or higher for as much. Of equals the first is taken;
    NaN is never on the front.

    >>> pareto_front([0.5, 0.75, 0.625, 0.875], [1, 2, 3, 4])
    array([0, 1, 3])
    """
    values, prices = _one_dimensional(scores), _one_dimensional(costs)
    if len(values) != len(prices):
        raise ValueError(f"{len(values)} scores and {len(prices)} costs. Give one cost per score.")
    front: list[int] = []
    highest = -np.inf
    for i in np.lexsort((-values, prices)):
        if values[i] > highest:
            front.append(int(i))
            highest = values[i]
    return np.array(front, dtype=np.intp)


def stability_report(
    scores: Mapping[str, ArrayLike],
    *,
    members: Mapping[str, ArrayLike] | None = None,
    alpha: float = 0.25,
    test_fraction: float | None = None,
    confidence: float = 0.95,
    n_resamples: int = 2000,
    random_state: int | np.random.RandomState | None = None,
) -> pd.DataFrame:
    """Say how low groups of candidates go, each figure with its interval.

    A group is what somebody might have taken without knowing better: all layers of a model, all
    single models, all pairs. Its figures are of the candidates' mean scores over splits.

    These means are uncertain, and those of one group together, as splits are easy or hard for
    all. The lowest of many uncertain means is lower than the lowest true score. Means are drawn
    again and again from a multivariate t distribution, with the splits' own covariance (corrected
    for shared training rows as in `compare`), and the interval is the basic bootstrap interval
    (Davison and Hinkley, "Bootstrap Methods and their Application", 1997, section 5.2), which
    takes such a bias off.

    Parameters
    ----------
    scores : mapping of str to array-like of shape (n_candidates, n_splits)
        By group, of the same splits.
    members : mapping of str to array-like of shape (n_candidates, n_members, n_splits) or None, \
            default=None
        For groups of sets of models: the scores of each set's models alone. It gives the rows
        "harm_rate" (the fraction of sets that are worse than their best model) and
        "complementarity" (by how much they are better, on average).
    alpha : float, default=0.25
        The fraction of "cvar".
    test_fraction : float or None, default=None
        The share of rows that each split tests on; None is 1 / n_splits.
    confidence : float, default=0.95
        Level of the intervals.
    n_resamples : int, default=2000
        How often means are drawn.
    random_state : int, RandomState instance or None, default=None
        Draws them.

    Returns
    -------
    pandas.DataFrame
        Indexed by group and figure, with columns `value`, `low` and `high`. Figures are "mean",
        "min", "expected_min" (of as many candidates as the smallest group has), "cvar" (the mean
        of the worst `alpha`), "max" and "range".

    Raises
    ------
    ValueError
        If the arrays do not fit each other, or there are fewer than two splits.

    See Also
    --------
    compare : Two candidates.
    ModelSubsetSearchCV : Whose `size_report_` has such figures for sets of models.

    Examples
    --------
    >>> from skfusion import stability_report
    >>> single = [[0.50, 0.52, 0.54], [0.70, 0.72, 0.71]]
    >>> pairs = [[0.70, 0.71, 0.73]]
    >>> report = stability_report({"single": single, "pairs": pairs}, random_state=0)
    >>> report.loc[("single", "min"), "value"].round(2)
    np.float64(0.52)
    >>> report.loc["pairs", "low":"high"].loc["min"].round(2).tolist()
    [0.65, 0.78]
    """
    frames = check_pandas_support("stability_report")
    groups = {name: np.asarray(own, dtype=np.float64) for name, own in scores.items()}
    own_members = {
        name: np.asarray(own, dtype=np.float64) for name, own in (members or {}).items()
    }
    n_splits = _check_groups(groups, own_members)
    if not 0 < alpha <= 1:
        raise ValueError(f"alpha={alpha} must be a fraction, above 0 and at most 1.")
    rng = check_random_state(random_state)
    matched = min(map(len, groups.values()))
    # All groups are drawn together, as they are of the same splits.
    parts = [*groups.values(), *(own.reshape(-1, n_splits) for own in own_members.values())]
    drawn = _draw_means(np.concatenate(parts), test_fraction, n_resamples, rng)
    cuts = np.cumsum([len(part) for part in parts])[:-1]
    keys = [(name, "own") for name in groups] + [(name, "members") for name in own_members]
    draws = dict(zip(keys, np.split(drawn, cuts, axis=1), strict=True))
    rows: dict[tuple[str, str], tuple[float, float, float]] = {}
    for name, group in groups.items():
        for figure, function in _figures(alpha, matched).items():
            found = float(function(group.mean(axis=1)))
            rows[name, figure] = (found, *_basic(function(draws[name, "own"]), found, confidence))
        if name in own_members:
            shape = own_members[name].shape[:2]
            alone = own_members[name].mean(axis=2)
            for figure, compared in (("harm_rate", harm_rate), ("complementarity", _mean_gain)):
                found = compared(group.mean(axis=1), alone)
                pairs = zip(draws[name, "own"], draws[name, "members"], strict=True)
                again = np.array([compared(a, b.reshape(shape)) for a, b in pairs])
                low, high = _basic(again, found, confidence)
                if figure == "harm_rate":
                    low, high = max(low, 0.0), min(high, 1.0)
                rows[name, figure] = (found, low, high)
    index = frames.MultiIndex.from_tuples(list(rows), names=["group", "figure"])
    return frames.DataFrame(list(rows.values()), index=index, columns=["value", "low", "high"])


def _figures(alpha: float, matched: int) -> dict[str, Callable[[Floats], Any]]:
    """Return functions of means of candidates, along the last axis."""
    return {
        "mean": lambda means: means.mean(axis=-1),
        "min": lambda means: means.min(axis=-1),
        "expected_min": lambda means: np.sort(means) @ _minimum_weights(means.shape[-1], matched),
        "cvar": lambda means: np.sort(means) @ _cvar_weights(means.shape[-1], alpha),
        "max": lambda means: means.max(axis=-1),
        "range": lambda means: np.ptp(means, axis=-1),
    }


def _mean_gain(scores: ArrayLike, member_scores: ArrayLike) -> float:
    return float(complementarity(scores, member_scores).mean())


def _check_groups(groups: Mapping[str, Floats], members: Mapping[str, Floats]) -> int:
    """Return the number of splits."""
    shapes = {name: group.shape for name, group in groups.items()}
    splits = {group.shape[-1] for group in groups.values() if group.ndim == 2 and len(group)}
    if not groups or len(splits) != 1 or any(len(shape) != 2 for shape in shapes.values()):
        raise ValueError(
            f"Scores must be arrays (n_candidates, n_splits) of the same splits, got {shapes}."
        )
    (n_splits,) = splits
    if n_splits < 2:
        raise ValueError("One split says nothing of how uncertain scores are. Give two at least.")
    if not all(np.isfinite(group).all() for group in [*groups.values(), *members.values()]):
        raise ValueError("Scores must be finite. Leave out candidates that failed.")
    for name, own in members.items():
        if name not in groups or own.ndim != 3 or own.shape[::2] != groups[name].shape:
            raise ValueError(
                f"members[{name!r}] of shape {own.shape} does not fit the scores {shapes}. Give "
                f"(n_candidates, n_members, n_splits)."
            )
    return int(n_splits)


def _draw_means(
    scores: Floats, test_fraction: float | None, n: int, rng: np.random.RandomState
) -> Floats:
    """Draw means of all candidates together, (n, n_candidates)."""
    n_splits = scores.shape[1]
    centred = scores - scores.mean(axis=1, keepdims=True)
    factor = np.sqrt(shared_rows_factor(n_splits, test_fraction) / (n_splits - 1))
    # A normal distribution over a root of chi-squared: Student's t, as variances are estimates.
    normal = rng.normal(size=(n, n_splits))
    scale = np.sqrt(rng.chisquare(n_splits - 1, size=(n, 1)) / (n_splits - 1))
    drawn: Floats = scores.mean(axis=1) + factor * (normal / scale) @ centred.T
    return drawn


def _basic(drawn: Floats, found: float, confidence: float) -> tuple[float, float]:
    """Return the basic bootstrap interval."""
    low, high = np.quantile(drawn, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(2 * found - high), float(2 * found - low)


def _one_dimensional(values: ArrayLike) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not len(array):
        raise ValueError(f"Expected a 1-D array of numbers, got one of shape {array.shape}.")
    return array


def _members(values: Mapping[frozenset[Member], float]) -> list[Member]:
    """Return the members in the order in which they first appear."""
    return list(dict.fromkeys(member for subset in values for member in subset))


def _value(values: Mapping[frozenset[Member], float], subset: frozenset[Any]) -> float:
    if subset not in values:
        named = ", ".join(map(str, subset)) or "no member"
        raise ValueError(f"The value of the subset of {named} is missing.")
    return values[subset]
