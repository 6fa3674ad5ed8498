"""What a search over subsets of models reports: costs, stability by size, Shapley values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..inspection.stability import (
    complementarity,
    cvar,
    expected_minimum,
    harm_rate,
    sampled_shapley_values,
    shapley_values,
)
from .choice import Floats

Subset = tuple[str, ...]
SubsetCost = Any  # a mapping or data frame by model, a function of a subset, or None

_COST = "seconds_per_text"  # of what was measured, what is weighed against the score
_MEASURED: dict[str, Callable[[list[float]], float]] = {
    _COST: sum,
    "bytes_per_text": sum,
    "peak_bytes": max,  # models run one after another
}


def subset_costs(cost: SubsetCost, models: Subset, subsets: Sequence[Subset]) -> dict[str, Floats]:
    """Return "cost", one per subset, and what was measured of it where `cost` is measured.

    >>> subset_costs({"a": 1, "b": 2.5}, ("a", "b"), [("a",), ("a", "b")])
    {'cost': array([1. , 3.5])}
    """
    if cost is None:
        return {"cost": np.array([float(len(subset)) for subset in subsets])}
    if callable(cost):
        return {"cost": _finite([cost(subset) for subset in subsets])}
    table = getattr(cost, "ndim", 1) == 2
    columns = _by_model(cost) if table else {"cost": dict(cost)}
    missing = [model for model in models if model not in columns["cost"]]
    if missing:
        raise ValueError(
            f"cost says nothing of {', '.join(map(repr, missing))}. Give a number for each of "
            f"{', '.join(models)}."
        )
    costs = {}
    for name, by_model in columns.items():
        gather = _MEASURED.get(name, sum)
        values = [gather([float(by_model[model]) for model in subset]) for subset in subsets]
        costs[name] = _finite(values) if name == "cost" else np.array(values)
    return costs


def _by_model(frame: Any) -> dict[str, dict[str, Any]]:
    """Return what `measure_costs` has measured, by its columns and then by model."""
    columns = {name: frame[name].to_dict() for name in _MEASURED if name in frame}
    if _COST not in columns:
        raise ValueError(
            f"cost is a data frame without a column {_COST!r}. Give what skfusion.measure_costs "
            f"returns, or a mapping of each model's name to a number."
        )
    return {"cost": columns[_COST], **columns}


def _finite(costs: Sequence[float]) -> Floats:
    array = np.array(costs, dtype=np.float64)
    if not np.isfinite(array).all():
        raise ValueError(f"Every cost must be a finite number, got {array.tolist()}.")
    return array


def size_report(subsets: Sequence[Subset], means: Floats) -> dict[str, Floats]:
    """Return one row per size of subset, from mean scores; those that are not finite are left out.

    All single models must be among the subsets.
    """
    alone = {s[0]: mean for s, mean in zip(subsets, means, strict=True) if len(s) == 1}
    singles = [mean for mean in alone.values() if np.isfinite(mean)]
    sizes = sorted({len(subset) for subset in subsets})
    rows = []
    for size in sizes:
        cases = [
            (mean, [alone[model] for model in subset])
            for subset, mean in zip(subsets, means, strict=True)
            if len(subset) == size and np.isfinite([mean, *(alone[m] for m in subset)]).all()
        ]
        rows.append(_describe(cases, singles) if cases else {})
    columns = dict.fromkeys(key for row in rows for key in row)
    return {
        "size": np.array(sizes),
        **{key: np.array([row.get(key, np.nan) for row in rows]) for key in columns},
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


def model_values(
    subsets: Sequence[Subset], means: Floats, baseline: float, orders: Sequence[Subset]
) -> dict[str, float] | None:
    """Return the models' Shapley values, or None where too few subsets were tried.

    They are exact where all subsets were tried, and otherwise estimated from `orders` of the
    models of which every beginning was tried.
    """
    values = {frozenset[str](): baseline}
    values |= {frozenset(subset): float(mean) for subset, mean in zip(subsets, means, strict=True)}
    n_models = sum(len(subset) == 1 for subset in subsets)
    if len(values) == 2**n_models:
        return shapley_values(values)
    return sampled_shapley_values(values, orders) if orders else None
