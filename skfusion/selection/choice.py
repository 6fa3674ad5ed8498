"""The rule by which both searches choose: the cheapest within one standard error of the best.

With d the best candidate's score minus another one's, split by split, that one is not clearly
worse where mean(d) is at most the standard error std(d) / √n_splits. Splits are compared in
pairs, since they differ from each other by more than candidates do. The rule with unpaired
errors is that of Breiman, Friedman, Olshen and Stone, "Classification and Regression Trees"
(1984), section 3.4.3.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..inspection.candidates import within_one_error

Floats = NDArray[np.float64]


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
    good = np.flatnonzero(finite)[within_one_error(scores[finite])]
    return int(good[np.lexsort((-scores[good].mean(axis=1), costs[good]))[0]])
