"""Singular values and vectors of a matrix through the smaller of its two Gram matrices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg
from sklearn.utils.extmath import randomized_svd

Floats = NDArray[np.float64]

_NOISE = 10  # times the dtype's precision, of the largest: what rounding leaves of a zero
_CHUNK = 2048  # rows cast to float64 at a time


@dataclass(frozen=True)
class Spectrum:
    """Left singular vectors and singular values of a matrix, without those that are zero."""

    basis: NDArray[np.floating[Any]]  # (n_samples, rank), each vector times its singular value
    eigenvalues: Floats  # (rank,), squared singular values


def spectrum(rows: NDArray[np.floating[Any]]) -> Spectrum:
    """Decompose a matrix, usually with centred columns.

    Where it has more rows than columns, products are computed in its own precision.

    Examples
    --------
    >>> import numpy as np
    >>> spectrum(np.array([[3.0, 0.0, 0.0], [0.0, 0.0, 2.0]])).eigenvalues
    array([4., 9.])
    """
    n_samples, n_features = rows.shape
    if n_samples <= n_features:
        rows = rows.astype(np.float64)
        eigenvalues, vectors = _eigh(rows @ rows.T)
        kept = _varying(eigenvalues, rows.dtype)
        return Spectrum(vectors[:, kept] * np.sqrt(eigenvalues[kept]), eigenvalues[kept])
    eigenvalues, vectors = _eigh((rows.T @ rows).astype(np.float64))
    kept = _varying(eigenvalues, rows.dtype)
    return Spectrum(rows @ vectors[:, kept].astype(rows.dtype), eigenvalues[kept])


def principal_components(
    block: NDArray[Any], n_components: int, random_state: np.random.RandomState
) -> tuple[Floats, Floats]:
    """Return the column means and the components (width, n_components), largest first.

    The largest entry of each component is positive. Directions in which the rows do not vary are
    no components: they are zeros. Whichever way is fastest at the same accuracy is taken.

    Examples
    --------
    >>> import numpy as np
    >>> block = np.array([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]])
    >>> mean, components = principal_components(block, 1, np.random.RandomState(0))
    >>> ((block - mean) @ components).round(3)
    array([[-1.414],
           [ 0.   ],
           [ 1.414]])
    """
    mean = block.mean(axis=0, dtype=np.float64)
    if prefers_randomised(block.shape, n_components):
        centred = block - mean.astype(block.dtype)
        _, s, vt = randomized_svd(
            centred, n_components, n_iter=7, random_state=random_state, flip_sign=False
        )
        components = vt.T.astype(np.float64) * _above_noise(s)
    elif block.shape[0] > block.shape[1]:
        components = _from_covariance(block, mean, n_components)
    else:
        components = _from_rows(block - mean, n_components)
    orient(components)
    return mean, components


def orient(components: NDArray[Any]) -> None:
    """Turn the components, columns, so that the largest entry of each is positive."""
    at = np.argmax(np.abs(components), axis=0)
    components *= np.where(components[at, np.arange(components.shape[1])] < 0, -1, 1)


def largest_eigenvectors(gram: Floats, k: int) -> tuple[Floats, Floats]:
    """Return the k largest eigenvalues, falling, and their vectors; the matrix is overwritten."""
    return _eigh(gram, k)


def prefers_randomised(shape: tuple[int, ...], n_components: int) -> bool:
    """Whether the randomised solver is faster, found by measuring both."""
    return min(shape) >= 1500 and 16 * n_components <= min(shape)


def _from_covariance(block: NDArray[Any], mean: Floats, k: int) -> Floats:
    gram = np.zeros((block.shape[1], block.shape[1]))
    for start in range(0, len(block), _CHUNK):
        rows = block[start : start + _CHUNK] - mean
        gram += rows.T @ rows
    eigenvalues, vectors = _eigh(gram, k)
    components: Floats = vectors * _above_noise(np.sqrt(eigenvalues))
    return components


def _from_rows(rows: Floats, k: int) -> Floats:
    eigenvalues, vectors = _eigh(rows @ rows.T, k)
    components: Floats = rows.T @ vectors
    components *= inverse_roots(eigenvalues)
    return components


def _eigh(gram: Floats, largest: int | None = None) -> tuple[Floats, Floats]:
    """Return all eigenvalues, rising, or the largest, falling; the matrix is overwritten."""
    n = len(gram)
    if n == 1:  # scipy 1.13 crashes here with driver "evd"
        eigenvalues, vectors = gram[0].copy(), np.ones((1, 1))
    elif largest is None or 3 * largest > n:
        eigenvalues, vectors = linalg.eigh(
            gram, driver="evd", overwrite_a=True, check_finite=False
        )
    else:  # found by measuring: some vectors by bisection
        eigenvalues, vectors = linalg.eigh(
            gram, subset_by_index=(n - largest, n - 1), overwrite_a=True, check_finite=False
        )
    if largest is None:
        return eigenvalues, vectors
    eigenvalues, vectors = eigenvalues[-largest:], vectors[:, -largest:]
    return np.maximum(eigenvalues[::-1], 0), vectors[:, ::-1]


def _varying(eigenvalues: Floats, dtype: np.dtype[Any]) -> NDArray[np.bool_]:
    kept: NDArray[np.bool_] = (
        eigenvalues > max(eigenvalues[-1], 0.0) * _NOISE * np.finfo(dtype).eps
    )
    return kept


def inverse_roots(eigenvalues: Floats) -> Floats:
    """Return 1 / √eigenvalues, and 0 of those that are noise."""
    s = np.sqrt(eigenvalues)
    inverse: Floats = _above_noise(s) / np.where(s == 0, 1, s)
    return inverse


def _above_noise(s: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether singular values are above the noise that squaring leaves in place of zeros."""
    above: NDArray[np.bool_] = s > 1e-7 * s.max(initial=0)
    return above
