"""Which subsets of models are tried, and in which order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb

import numpy as np

from .subset_parts import Subset

Evaluate = Callable[[Sequence[Subset]], list[float]]

MOST_SUBSETS = 4095  # of 12 models


@dataclass(frozen=True)
class Plan:
    """What a strategy may do.

    Attributes
    ----------
    models : tuple of str
        All models; a subset names its models in this order.
    sizes : sequence of int
        Sizes that may be chosen.
    n_permutations : int
        How many orders of the models "shapley" draws.
    rng : numpy.random.RandomState
        Draws them.
    """

    models: Subset
    sizes: Sequence[int]
    n_permutations: int
    rng: np.random.RandomState

    def subset(self, names: Iterable[str]) -> Subset:
        """Put names in the order of the models."""
        wanted = set(names)
        return tuple(model for model in self.models if model in wanted)


def make_plan(
    strategy: str,
    models: Subset,
    sizes: Sequence[int] | None,
    n_permutations: int,
    rng: np.random.RandomState,
) -> Plan:
    """Check what a search is to do.

    Parameters
    ----------
    strategy : str
        Key of `STRATEGIES`.
    models : tuple of str
        All models.
    sizes : sequence of int or None
        Sizes that may be chosen; None allows all.
    n_permutations : int
        See `Plan`.
    rng : numpy.random.RandomState
        See `Plan`.

    Returns
    -------
    Plan
        With sizes that are different and sorted.

    Raises
    ------
    ValueError
        If a size is out of range, or "all" would try more than 4095 subsets.

    Examples
    --------
    >>> import numpy as np
    >>> from skfusion.selection.subset_strategies import make_plan
    >>> make_plan("all", ("a", "b", "c"), None, 1, np.random.RandomState(0)).sizes
    [1, 2, 3]
    """
    n = len(models)
    wanted = list(range(1, n + 1)) if sizes is None else sorted(set(sizes))
    if not wanted or not all(
        isinstance(size, int | np.integer) and 1 <= size <= n for size in wanted
    ):
        raise ValueError(
            f"sizes={sizes!r} must be numbers of models, from 1 to {n} (the models are "
            f"{', '.join(models)}), or None for all of them."
        )
    n_subsets = sum(comb(n, size) for size in wanted)
    if strategy == "all" and n_subsets > MOST_SUBSETS:
        raise ValueError(
            f"strategy='all' would try {n_subsets} subsets of {n} models; the most is "
            f"{MOST_SUBSETS}. Use strategy='greedy' or 'shapley', or fewer sizes, such as "
            f"sizes=[1, 2]."
        )
    return Plan(models, wanted, n_permutations, rng)


def try_all(plan: Plan, evaluate: Evaluate) -> list[Subset]:
    """Try every subset of the sizes asked for.

    Parameters
    ----------
    plan : Plan
        Models and sizes.
    evaluate : callable
        Gives the mean scores of subsets.

    Returns
    -------
    list of tuple of str
        Orders of the models from which Shapley values can be estimated: none.

    Examples
    --------
    >>> import numpy as np
    >>> from skfusion.selection.subset_strategies import make_plan, try_all
    >>> plan = make_plan("all", ("a", "b"), None, 1, np.random.RandomState(0))
    >>> try_all(plan, lambda subsets: print(subsets))
    [('a',), ('b',), ('a', 'b')]
    []
    """
    evaluate([subset for size in plan.sizes for subset in combinations(plan.models, size)])
    return []


def try_greedily(plan: Plan, evaluate: Evaluate) -> list[Subset]:
    """Begin with the best single model and add what helps most, up to the largest size.

    Parameters
    ----------
    plan : Plan
        Models and sizes.
    evaluate : callable
        Gives the mean scores of subsets; one that is NaN is the worst.

    Returns
    -------
    list of tuple of str
        Orders of the models from which Shapley values can be estimated: none.

    Examples
    --------
    >>> import numpy as np
    >>> from skfusion.selection.subset_strategies import make_plan, try_greedily
    >>> plan = make_plan("greedy", ("a", "b", "c"), [2], 1, np.random.RandomState(0))
    >>> try_greedily(plan, lambda subsets: print(subsets) or [float("b" in s) for s in subsets])
    [('a',), ('b',), ('c',)]
    [('a', 'b'), ('b', 'c')]
    []
    """
    chosen: Subset = ()
    while len(chosen) < max(plan.sizes):
        others = [model for model in plan.models if model not in chosen]
        candidates = [plan.subset([*chosen, added]) for added in others]
        scores = np.nan_to_num(evaluate(candidates), nan=-np.inf)
        chosen = candidates[int(np.argmax(scores))]
    return []


def try_orders(plan: Plan, evaluate: Evaluate) -> list[Subset]:
    """Draw orders of all models and try the beginnings of each.

    Parameters
    ----------
    plan : Plan
        Models, and how many orders are drawn.
    evaluate : callable
        Gives the mean scores of subsets.

    Returns
    -------
    list of tuple of str
        The orders, from which Shapley values can be estimated.

    Examples
    --------
    >>> import numpy as np
    >>> from skfusion.selection.subset_strategies import make_plan, try_orders
    >>> plan = make_plan("shapley", ("a", "b", "c"), None, 1, np.random.RandomState(0))
    >>> try_orders(plan, lambda subsets: print(subsets))
    [('c',), ('b', 'c'), ('a', 'b', 'c')]
    [('c', 'b', 'a')]
    """
    orders = [
        tuple(plan.models[i] for i in plan.rng.permutation(len(plan.models)))
        for _ in range(plan.n_permutations)
    ]
    beginnings = [
        plan.subset(order[:size]) for size in range(1, len(plan.models) + 1) for order in orders
    ]
    evaluate(list(dict.fromkeys(beginnings)))
    return orders


STRATEGIES: dict[str, Callable[[Plan, Evaluate], list[Subset]]] = {
    "all": try_all,
    "greedy": try_greedily,
    "shapley": try_orders,
}
