"""``layer="mean"``: the mean over layers of vectors that are standardised by training rows."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray
from sklearn.preprocessing import StandardScaler

Vectors = NDArray[np.float32]


def column_scales(columns: Iterable[Vectors]) -> tuple[Vectors, Vectors]:
    """Learn the scale of every column, which is the vectors of one layer and pooling.

    Parameters
    ----------
    columns : iterable of ndarray of shape (n_texts, width)
        The columns, one after the other.

    Returns
    -------
    means, stds : ndarray of float32, shape (n_columns, width)
        Of the training rows; a std is 1 where nothing varies.

    Examples
    --------
    >>> import numpy as np
    >>> from skfusion.embed.averaging import column_scales
    >>> column_scales([np.array([[1.0, 5.0], [3.0, 5.0]], dtype=np.float32)])
    (array([[2., 5.]], dtype=float32), array([[1., 1.]], dtype=float32))
    """
    fitted = [StandardScaler().fit(column) for column in columns]
    means = np.array([scaler.mean_ for scaler in fitted], dtype=np.float32)
    return means, np.array([scaler.scale_ for scaler in fitted], dtype=np.float32)


def mean_over_layers(
    columns: Iterable[Vectors], n_texts: int, scales: tuple[Vectors, Vectors], n_poolings: int
) -> Vectors:
    """Standardise every column and take the mean over layers, for each pooling.

    Parameters
    ----------
    columns : iterable of ndarray of shape (n_texts, width)
        The columns, poolings varying fastest.
    n_texts : int
        How many rows they have.
    scales : (means, stds)
        From `column_scales`.
    n_poolings : int
        How many poolings each layer has.

    Returns
    -------
    ndarray of float32, shape (n_texts, n_poolings * width)
        One block a pooling.

    Examples
    --------
    >>> import numpy as np
    >>> from skfusion.embed.averaging import mean_over_layers
    >>> scales = np.zeros((2, 1), np.float32), np.ones((2, 1), np.float32)
    >>> columns = [np.array([[1.0]], np.float32), np.array([[4.0]], np.float32)]
    >>> mean_over_layers(columns, 1, scales, 1)
    array([[2.5]], dtype=float32)
    """
    n_columns, width = scales[0].shape
    total = np.zeros((n_texts, n_poolings, width), dtype=np.float32)
    for i, (column, mean, std) in enumerate(zip(columns, *scales, strict=True)):
        total[:, i % n_poolings] += (column - mean) / std
    total /= n_columns // n_poolings
    return total.reshape(n_texts, n_poolings * width)
