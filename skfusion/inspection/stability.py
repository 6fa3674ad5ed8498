"""How stable a set of scores is: worst cases, harm, and what each member of a set is worth."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import combinations
from math import factorial
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

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
    # C(n - i, m - 1) / C(n, m) is m / n for i = 1, and each is a fraction of the one before.
    above = n - np.arange(1, n)
    weights = m / n * np.cumprod([1.0, *(np.maximum(above - m + 1, 0) / above)])
    return float(ascending @ weights)


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
    n_worst = alpha * len(ascending)
    weights = np.clip(n_worst - np.arange(len(ascending)), 0, 1)
    return float(ascending @ weights / n_worst)


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
