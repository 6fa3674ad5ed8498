"""A rotation that spreads the variance of principal components evenly over the columns."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import fft


def even_columns(projection: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
    """Rotate a projection on principal components, and scale it to columns of like variance.

    Of rows whose mean squared norm is 1, columns of mean variance 1 are made, none of which varies
    by more than 2. Inner products are multiplied by the number of components, and are otherwise
    what they were. A `StandardScaler` or a network that standardises would whiten the components
    themselves: the last ones, which are mostly noise, would count as much as the first.

    Examples
    --------
    >>> import numpy as np
    >>> even_columns(np.array([[1.0, 0.0], [0.0, 0.0]])).round(3)
    array([[1., 1.],
           [0., 0.]])
    """
    # The cosine transform has no sign or order of its own, and costs nothing in `transform`.
    rotated = fft.dct(projection, type=2, norm="ortho", axis=1)
    rotated *= rotated.dtype.type(np.sqrt(projection.shape[1]))
    return np.ascontiguousarray(rotated)
