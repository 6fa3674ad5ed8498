"""What a recipe has found, in about twenty lines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Floats = NDArray[np.float64]

_MOST_LAYERS = 4  # that a line names
_LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean over folds and the ends of its 95 % interval, by Student's t; NaN where unknown."""

    mean: float
    low: float
    high: float


def mean_interval(values: Floats) -> Interval:
    """Return the mean of the finite values, and where it lies with 95 % of certainty.

    Examples
    --------
    >>> mean_interval(np.array([1.0, 1.0]))
    Interval(mean=1.0, low=1.0, high=1.0)
    """
    kept = values[np.isfinite(values)]
    if not len(kept):
        return Interval(float("nan"), float("nan"), float("nan"))
    mean = float(kept.mean())
    if len(kept) == 1:
        return Interval(mean, float("nan"), float("nan"))
    error = float(kept.std(ddof=1) / np.sqrt(len(kept)))
    reach = error * float(stats.t.ppf((1 + _LEVEL) / 2, len(kept) - 1))
    return Interval(mean, mean - reach, mean + reach)


def score_lines(scoring: str, scores: Floats, baseline: Floats, baseline_name: str) -> list[str]:
    """Say how good it is in cross-validation, and how much better than the baseline."""
    if not len(scores):
        return ["score: not estimated (cv=None, too few rows for folds, or no time left)"]
    own, other = mean_interval(scores), mean_interval(baseline)
    ahead = mean_interval(scores - baseline)
    return [
        f"score: {scoring} {_with_interval(own)} in {len(scores)} folds",
        f"{baseline_name}: {scoring} {other.mean:.3f} in the same folds",
        f"difference: {_with_interval(ahead, sign='+')}",
    ]


def _with_interval(found: Interval, sign: str = "") -> str:
    text = f"{found.mean:{sign}.3f}"
    if np.isnan(found.low):
        return text
    return f"{text} (95 % interval {found.low:{sign}.3f} to {found.high:{sign}.3f})"


def weight_lines(
    weights: Mapping[str, float], layers: Mapping[str, Mapping[str, float]]
) -> list[str]:
    """Say what each model counts, and which of its layers most."""
    lines = []
    width = max(map(len, weights), default=0)
    for name, weight in sorted(weights.items(), key=lambda item: -item[1]):
        own = sorted(layers.get(name, {}).items(), key=lambda item: -item[1])
        counted = [(layer, share) for layer, share in own if share > 0]
        text = ", ".join(f"{layer} {share:.0%}" for layer, share in counted[:_MOST_LAYERS])
        rest = len(counted) - _MOST_LAYERS
        more = f" and {rest} more" if rest > 0 else ""
        lines.append(f"  {name:<{width}}  {weight:4.0%}" + (f"  {text}{more}" if text else ""))
    return lines


def head_lines(head: Any) -> list[str]:
    """Say what the last step is and how it decides."""
    if not hasattr(head, "offsets_"):
        penalty = f", penalty {head.alpha_:.3g}" if hasattr(head, "alpha_") else ""
        return [f"head: {type(head).__name__}{penalty}"]
    penalty = f", penalty {head.penalty_:.2g}" if hasattr(head, "penalty_") else ""
    named = {0.0: "none", 0.5: "square root of balanced", 1.0: "balanced"}
    strength = named.get(head.strength_, f"balanced to the power {head.strength_:g}")
    if np.isnan(head.strength_):
        strength = "as given"
    low, high = head.offsets_.min(), head.offsets_.max()
    return [
        f"head: {head.kind_}{penalty}, held-out log-loss {head.log_loss_:.3f}",
        f"class weights of decisions: {strength} (offsets {low:+.2f} to {high:+.2f})",
    ]


def cost_lines(seconds: Mapping[str, float], n_bytes: Mapping[str, int]) -> list[str]:
    """Say what fitting took, and what is stored."""
    spent = ", ".join(f"{name} {value:.1f}" for name, value in seconds.items())
    stored = ", ".join(f"{name} {value / 1e6:.1f} MB" for name, value in n_bytes.items())
    return [f"seconds: {spent}", f"bytes of stored vectors: {stored or 'none'}"]
