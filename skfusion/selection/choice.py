"""The rule by which both searches choose: the cheapest within one standard error of the best.

With d the best candidate's score minus another one's, split by split, that one is not clearly
worse where mean(d) is at most the standard error std(d) / √n_splits. Splits are compared in
pairs, since they differ from each other by more than candidates do. The rule with unpaired
errors is that of Breiman, Friedman, Olshen and Stone, "Classification and Regression Trees"
(1984), section 3.4.3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def split_scores(results: Mapping[str, Any], n_splits: int, metric: str = "score") -> Floats:
    """Return the scores in ``cv_results_``, one row per candidate and one column per split."""
    return np.stack([results[f"split{i}_test_{metric}"] for i in range(n_splits)], axis=1)


def cheapest_within_one_error(scores: Floats, costs: Floats) -> int:
    """Return the row of the cheapest candidate that is not clearly worse than the best one.

    Of several with the same cost it is the one with the highest mean score, and of those the
    first. Candidates with a score that is not finite are left out.

    >>> scores = np.array([[0.7, 0.9], [0.75, 0.85], [0.8, 0.9]])
    >>> cheapest_within_one_error(scores, np.array([1.0, 1.0, 2.0]))
    0
    """
    finite = np.isfinite(scores).all(axis=1)
    if not finite.any():
        raise ValueError(
            "Every candidate has scores that are not finite, so that none can be chosen. Use "
            "error_score='raise' to see why."
        )
    means = np.where(finite, scores.mean(axis=1), -np.inf)
    behind = scores[np.argmax(means)] - scores[finite]
    n_splits = scores.shape[1]
    errors = behind.std(axis=1, ddof=1) / np.sqrt(n_splits) if n_splits > 1 else 0.0
    good = np.flatnonzero(finite)[behind.mean(axis=1) <= errors]
    return int(good[np.lexsort((-means[good], costs[good]))[0]])
