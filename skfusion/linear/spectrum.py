"""The one decomposition of a layer from which its score follows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

Floats = NDArray[np.float64]

_NOISE = 10  # times the dtype's precision, of the largest: what rounding leaves of a zero


@dataclass(frozen=True)
class Spectrum:
    """Left singular vectors and singular values of a matrix, without those that are zero.

    Parameters
    ----------
    basis : ndarray of shape (n_samples, rank)
        Left singular vectors, each times its singular value: no division by a small one.
    squares : ndarray of float64, shape (rank,)
        Squared singular values.
    """

    basis: NDArray[np.floating[Any]]
    squares: Floats


def spectrum(rows: NDArray[np.floating[Any]]) -> Spectrum:
    """Decompose a matrix through the smaller one of its two Gram matrices.

    Parameters
    ----------
    rows : ndarray of float32 or float64, shape (n_samples, n_features)
        The matrix, usually with centred columns. Where it has more rows than columns, products
        are computed in its own precision.

    Returns
    -------
    Spectrum
        Its singular values and vectors.

    Examples
    --------
    >>> import numpy as np
    >>> from skfusion.linear.spectrum import spectrum
    >>> spectrum(np.array([[3.0, 0.0, 0.0], [0.0, 0.0, 2.0]])).squares
    array([4., 9.])
    """
    n_samples, n_features = rows.shape
    if n_samples <= n_features:
        rows = rows.astype(np.float64)
        squares, vectors = _eigh(rows @ rows.T)
        kept = _varying(squares, rows.dtype)
        return Spectrum(vectors[:, kept] * np.sqrt(squares[kept]), squares[kept])
    squares, vectors = _eigh((rows.T @ rows).astype(np.float64))
    kept = _varying(squares, rows.dtype)
    return Spectrum(rows @ vectors[:, kept].astype(rows.dtype), squares[kept])


def _eigh(gram: Floats) -> tuple[Floats, Floats]:
    squares, vectors = linalg.eigh(gram, driver="evd", overwrite_a=True, check_finite=False)
    return squares, vectors


def _varying(squares: Floats, dtype: np.dtype[Any]) -> NDArray[np.bool_]:
    kept: NDArray[np.bool_] = squares > max(squares[-1], 0.0) * _NOISE * np.finfo(dtype).eps
    return kept
