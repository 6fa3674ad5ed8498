"""Bringing blocks to a common width: principal components, random and count-sketch projections."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, sparse
from sklearn.utils.extmath import randomized_svd

from .operators import Operator

_CHUNK = 2048  # rows cast to float64 at a time


class ProjectionWarning(UserWarning):
    """The common width is smaller than the blocks, because there are few training rows."""


@dataclass(frozen=True)
class LinearProjection:
    """The map x -> x W + b.

    Parameters
    ----------
    weight : ndarray of shape (width, n_components)
        W.
    bias : ndarray of shape (n_components,)
        b.
    """

    weight: NDArray[Any]
    bias: NDArray[Any]

    def __call__(self, block: NDArray[Any]) -> NDArray[Any]:
        """Project rows.

        Parameters
        ----------
        block : ndarray of shape (n_samples, width)
            The block.

        Returns
        -------
        ndarray of shape (n_samples, n_components)
            In the block's dtype.
        """
        projected: NDArray[Any] = block @ self.weight.astype(block.dtype, copy=False)
        projected += self.bias.astype(block.dtype, copy=False)
        return projected


@dataclass(frozen=True)
class CountSketch:
    """The count sketch of Charikar, Chen and Farach-Colton (2002): signed sums into buckets.

    Parameters
    ----------
    buckets : ndarray of int, shape (width,)
        Where each entry goes.
    signs : ndarray of float, shape (width,)
        1 or -1 for each entry.
    n_components : int
        Number of buckets.
    """

    buckets: NDArray[np.intp]
    signs: NDArray[np.float64]
    n_components: int

    def __call__(self, block: NDArray[Any]) -> NDArray[Any]:
        """Sketch rows.

        Parameters
        ----------
        block : ndarray of shape (n_samples, width)
            The block.

        Returns
        -------
        ndarray of shape (n_samples, n_components)
            In the block's dtype.
        """
        width = len(self.buckets)
        entries = (self.signs.astype(block.dtype), (self.buckets, np.arange(width)))
        matrix = sparse.csr_array(entries, shape=(self.n_components, width))
        return np.ascontiguousarray((matrix @ block.T).T)


Projection = LinearProjection | CountSketch


def count_sketch(
    width: int, n_components: int, random_state: np.random.RandomState
) -> CountSketch:
    """Draw a count sketch, under which inner products are right in the mean.

    Parameters
    ----------
    width : int
        Entries of a vector.
    n_components : int
        Buckets.
    random_state : numpy.random.RandomState
        Where buckets and signs are drawn from.

    Returns
    -------
    CountSketch
        The map.

    Examples
    --------
    >>> import numpy as np
    >>> from skfusion.fusion.projection import count_sketch
    >>> sketch = count_sketch(3, 1, np.random.RandomState(0))
    >>> sketch(np.array([[1.0, 2.0, 4.0]])).shape
    (1, 1)
    """
    buckets = random_state.randint(n_components, size=width)
    signs = random_state.choice([-1.0, 1.0], size=width)
    return CountSketch(buckets, signs, n_components)


def random_projection(
    width: int, n_components: int, random_state: np.random.RandomState
) -> LinearProjection:
    """Draw a Gaussian projection that keeps squared norms in the mean.

    Parameters
    ----------
    width : int
        Entries of a vector.
    n_components : int
        Entries afterwards; may be more.
    random_state : numpy.random.RandomState
        Where it is drawn from.

    Returns
    -------
    LinearProjection
        Entries of W are independent with variance 1 / n_components; b is 0.

    Examples
    --------
    >>> import numpy as np
    >>> from skfusion.fusion.projection import random_projection
    >>> random_projection(3, 2, np.random.RandomState(0)).weight.shape
    (3, 2)
    """
    weight = random_state.standard_normal((width, n_components)) / np.sqrt(n_components)
    return LinearProjection(weight, np.zeros(n_components))


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
    >>> from skfusion.fusion.projection import pca_projection
    >>> block = np.array([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]])
    >>> pca_projection(block, 1, np.random.RandomState(0))(block).round(3)
    array([[-1.414],
           [ 0.   ],
           [ 1.414]])
    """
    mean = block.mean(axis=0, dtype=np.float64)
    smaller = min(block.shape)
    if smaller > 1000 and n_components <= 0.1 * smaller:
        components = _randomized(block, mean, n_components, random_state)
    elif block.shape[0] > block.shape[1]:
        components = _from_covariance(block, mean, n_components)
    else:
        components = _from_rows(block, mean, n_components)
    at = np.argmax(np.abs(components), axis=0)
    components *= np.where(components[at, np.arange(n_components)] < 0, -1, 1)
    return LinearProjection(components, -(mean @ components))


def _randomized(
    block: NDArray[Any], mean: NDArray[Any], k: int, random_state: np.random.RandomState
) -> NDArray[Any]:
    centred = block - mean.astype(block.dtype)
    _, s, vt = randomized_svd(centred, k, n_iter=7, random_state=random_state, flip_sign=False)
    return vt.T.astype(np.float64) * _varies(s)


def _from_covariance(block: NDArray[Any], mean: NDArray[Any], k: int) -> NDArray[Any]:
    width = block.shape[1]
    gram = np.zeros((width, width))
    for start in range(0, len(block), _CHUNK):
        rows = block[start : start + _CHUNK] - mean
        gram += rows.T @ rows
    squares, vectors = _largest(gram, k)
    return vectors * _varies(np.sqrt(squares))


def _from_rows(block: NDArray[Any], mean: NDArray[Any], k: int) -> NDArray[Any]:
    rows = block - mean
    squares, vectors = _largest(rows @ rows.T, k)
    s = np.sqrt(squares)
    return (rows.T @ vectors) * (_varies(s) / np.where(s == 0, 1, s))


def _largest(gram: NDArray[Any], k: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Give the k largest eigenvalues, falling, and their vectors; it overwrites the matrix."""
    n = len(gram)
    some = {"subset_by_index": (n - k, n - 1)} if k < n else {}
    values, vectors = linalg.eigh(gram, overwrite_a=True, check_finite=False, **some)
    return np.maximum(values[::-1], 0), vectors[:, ::-1]


def _varies(s: NDArray[Any]) -> NDArray[np.bool_]:
    """Tell singular values from the noise that squaring leaves in their place."""
    varies: NDArray[np.bool_] = s > 1e-7 * s.max(initial=0)
    return varies


def common_width(
    operator: Operator,
    widths: Sequence[int],
    n_components: int | None,
    *,
    projection: str | None,
    n_rows: int,
) -> int:
    """Settle the common width d of the projected blocks.

    Parameters
    ----------
    operator : Operator
        Which widths are valid.
    widths : sequence of int
        Widths of the blocks.
    n_components : int or None
        The parameter. None takes the smallest block's width, rounded down to a valid one.
    projection : str or None
        How blocks are projected. "pca" cannot give more than ``n_rows - 1`` components.
    n_rows : int
        Number of training rows.

    Returns
    -------
    int
        The width.

    Raises
    ------
    ValueError
        If the width asked for cannot be had, or none can.

    Warns
    -----
    ProjectionWarning
        If there are too few rows for the smallest block's width.

    Examples
    --------
    >>> from skfusion.fusion.operators import OPERATORS
    >>> from skfusion.fusion.projection import common_width
    >>> common_width(OPERATORS["multiplication"], [384, 576], None, projection="pca", n_rows=500)
    361
    """
    if projection is None:
        return _unprojected_width(operator, widths, n_components)
    limit = min(*widths, n_rows - 1) if projection == "pca" else None
    if limit == 0:
        raise ValueError(
            "projection='pca' needs two training rows at least, got n_samples=1. Use "
            "projection='random', or None where the blocks have one width."
        )
    if n_components is None:
        return _default_width(operator, min(widths), limit)
    operator.width.check(n_components, operator.name)
    if limit is not None and n_components > limit:
        raise ValueError(
            f"n_components={n_components} is more than PCA can give: {limit}, the smaller of the "
            f"smallest block's width {min(widths)} and n_samples - 1 = {n_rows - 1} training "
            f"rows. Use at most that, None for the most, or projection='random'."
        )
    return n_components


def _unprojected_width(
    operator: Operator, widths: Sequence[int], n_components: int | None
) -> int:
    if len(set(widths)) > 1:
        raise ValueError(
            f"projection=None leaves the blocks' widths {list(widths)}, but operator "
            f"{operator.name!r} needs them equal. Use projection='pca', 'random' or 'supervised'."
        )
    if n_components not in (None, widths[0]):
        raise ValueError(
            f"projection=None leaves the blocks' width {widths[0]}, but n_components="
            f"{n_components}. Set n_components=None, or a projection."
        )
    operator.width.check(widths[0], operator.name)
    return widths[0]


def _default_width(operator: Operator, smallest: int, limit: int | None) -> int:
    wanted = operator.width.largest(smallest)
    width = wanted if limit is None else operator.width.largest(min(smallest, limit))
    if width is None:
        raise ValueError(
            f"operator {operator.name!r} needs a common width that is {operator.width.text}, but "
            f"the most there is is {smallest if limit is None else limit}: the smallest block has "
            f"{smallest} columns, and PCA gives at most n_samples - 1 components. Use wider "
            f"blocks, more rows, or projection='random' with n_components set."
        )
    if width != wanted:
        warnings.warn(
            f"The common width is {width}, not {wanted} as the blocks' width would allow: PCA "
            f"gives at most n_samples - 1 = {limit} components. Set n_components to choose it, or "
            f"use projection='random'.",
            ProjectionWarning,
            stacklevel=6,
        )
    return width
