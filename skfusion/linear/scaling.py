"""Scaling of a block, and the mean over standardised blocks; learnt from training rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.preprocessing import StandardScaler

Vectors = NDArray[np.float32]

_CONSTANT = 100  # times the dtype's precision: such a std is what rounding leaves


@dataclass(frozen=True)
class Scaler:
    """How a block is scaled: its columns standardised, its rows to unit norm, or not at all."""

    how: str | None  # "standard", "l2" or None
    mean: NDArray[Any] | None = None
    std: NDArray[Any] | None = None

    def __call__(self, block: NDArray[Any]) -> NDArray[Any]:
        """Return the scaled rows in a new array of the same dtype; with None the block itself."""
        if self.how == "standard":
            assert self.mean is not None and self.std is not None
            scaled: NDArray[Any] = block - self.mean.astype(block.dtype)
            scaled /= self.std.astype(block.dtype)
            return scaled
        if self.how == "l2":
            norms = np.linalg.norm(block, axis=1, keepdims=True)
            return block / np.where(norms == 0, 1, norms)
        return block


def fit_scaler(
    block: NDArray[Any], how: str | None, weights: NDArray[Any] | None = None
) -> Scaler:
    """Learn the scaling of a block; a column that does not vary is only centred.

    Examples
    --------
    >>> import numpy as np
    >>> block = np.array([[1.0, 5.0], [3.0, 5.0]])
    >>> fit_scaler(block, "standard")(block)
    array([[-1.,  0.],
           [ 1.,  0.]])
    """
    if how != "standard":
        return Scaler(how)
    fitted = StandardScaler().fit(block, sample_weight=weights)
    std, precision = np.sqrt(fitted.var_), np.finfo(block.dtype)
    constant = std <= _CONSTANT * precision.eps * np.abs(fitted.mean_) + precision.tiny
    return Scaler(how, fitted.mean_, np.where(constant, 1.0, std))


def column_scales(columns: Iterable[Vectors]) -> tuple[Vectors, Vectors]:
    """Return means and standard deviations of blocks (n_texts, width), one row per block.

    A standard deviation is 1 where nothing varies.
    """
    fitted = [StandardScaler().fit(column) for column in columns]
    means = np.array([scaler.mean_ for scaler in fitted], dtype=np.float32)
    return means, np.array([scaler.scale_ for scaler in fitted], dtype=np.float32)


def mean_over_layers(
    columns: Iterable[Vectors], n_texts: int, scales: tuple[Vectors, Vectors], n_poolings: int
) -> Vectors:
    """Standardise blocks, poolings varying fastest, and return the mean over layers.

    Examples
    --------
    >>> import numpy as np
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
