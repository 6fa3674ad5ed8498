"""Principal components of a block, by whichever way is fastest at the same accuracy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg
from sklearn.utils.extmath import randomized_svd

from .projection import LinearProjection

_CHUNK = 2048  # rows cast to float64 at a time


def pca_projection(
    block: NDArray[Any], n_components: int, random_state: np.random.RandomState
) -> LinearProjection:
    """Fit principal components, largest first, with a fixed sign.

    The largest entry of each component is positive. Directions in which the rows do not vary are
    no components: they give zeros.

    Parameters
    ----------
    block : ndarray of shape (n_samples, width)
        Training rows.
    n_components : int
        How many, at most min(n_samples - 1, width).
    random_state : numpy.random.RandomState
        For the randomised solver, which takes over where few components of a large block are
        wanted; otherwise the smaller Gram matrix is decomposed in float64.

    Returns
    -------
    LinearProjection
        Onto the components, after taking off the mean.

    Examples
    --------
    >>> import numpy as np
    >>> from skfusion.fusion.pca import pca_projection
    >>> block = np.array([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]])
    >>> pca_projection(block, 1, np.random.RandomState(0))(block).round(3)
    array([[-1.414],
           [ 0.   ],
           [ 1.414]])
    """
    mean = block.mean(axis=0, dtype=np.float64)
    if prefers_randomised(block.shape, n_components):
        components = _randomized(block, mean, n_components, random_state)
    elif block.shape[0] > block.shape[1]:
        components = _from_covariance(block, mean, n_components)
    else:
        components = _from_rows(block, mean, n_components)
    at = np.argmax(np.abs(components), axis=0)
    components *= np.where(components[at, np.arange(n_components)] < 0, -1, 1)
    return LinearProjection(components, -(mean @ components))


def prefers_randomised(shape: tuple[int, ...], n_components: int) -> bool:
    """Tell whether the randomised solver is faster, found by measuring both.

    Parameters
    ----------
    shape : tuple of int
        Of the block.
    n_components : int
        How many are wanted.

    Returns
    -------
    bool
        True for few components of a block with many rows and columns.

    Examples
    --------
    >>> from skfusion.fusion.pca import prefers_randomised
    >>> prefers_randomised((20000, 4096), 1024), prefers_randomised((20000, 4096), 32)
    (False, True)
    """
    return min(shape) >= 1500 and 16 * n_components <= min(shape)


def _randomized(
    block: NDArray[Any], mean: NDArray[Any], k: int, random_state: np.random.RandomState
) -> NDArray[Any]:
    centred = block - mean.astype(block.dtype)
    _, s, vt = randomized_svd(centred, k, n_iter=7, random_state=random_state, flip_sign=False)
    components: NDArray[Any] = vt.T.astype(np.float64) * _varies(s)
    return components


def _from_covariance(block: NDArray[Any], mean: NDArray[Any], k: int) -> NDArray[Any]:
    width = block.shape[1]
    gram = np.zeros((width, width))
    for start in range(0, len(block), _CHUNK):
        rows = block[start : start + _CHUNK] - mean
        gram += rows.T @ rows
    squares, vectors = _largest(gram, k)
    components: NDArray[Any] = vectors * _varies(np.sqrt(squares))
    return components


def _from_rows(block: NDArray[Any], mean: NDArray[Any], k: int) -> NDArray[Any]:
    rows = block - mean
    squares, vectors = _largest(rows @ rows.T, k)
    s = np.sqrt(squares)
    components: NDArray[Any] = rows.T @ vectors
    components *= _varies(s) / np.where(s == 0, 1, s)
    return components


def _largest(gram: NDArray[Any], k: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Give the k largest eigenvalues, falling, and their vectors; it overwrites the matrix."""
    n = len(gram)
    # Found by measuring: all vectors by divide and conquer, or some by bisection.
    how = {"driver": "evd"} if 3 * k > n else {"subset_by_index": (n - k, n - 1)}
    values, vectors = linalg.eigh(gram, overwrite_a=True, check_finite=False, **how)
    values, vectors = values[-k:], vectors[:, -k:]
    return np.maximum(values[::-1], 0), vectors[:, ::-1]


def _varies(s: NDArray[Any]) -> NDArray[np.bool_]:
    """Tell singular values from the noise that squaring leaves in their place."""
    varies: NDArray[np.bool_] = s > 1e-7 * s.max(initial=0)
    return varies
