"""A rotation that spreads the variance of principal components evenly over the columns."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import fft


def rotate(projection: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
    """Rotate the columns of a projection by the orthonormal cosine transform.

    Projected rows keep their inner products. Principal components on their own would be whitened
    by a `StandardScaler` behind them, which takes the last ones, mostly noise, for as much as the
    first; of rotated ones no column's variance is more than twice the mean.

    Examples
    --------
    >>> import numpy as np
    >>> rotate(np.array([[2.0, 0.0], [0.0, 0.0]])).round(3)
    array([[1.414, 1.414],
           [0.   , 0.   ]])
    """
    rotated: NDArray[np.floating[Any]] = fft.dct(projection, type=2, norm="ortho", axis=1)
    return np.ascontiguousarray(rotated)
