"""Bringing blocks to a common width: linear maps, at random or learnt, and count sketches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from ..linear.spectrum import principal_components
from .registry import Operator

_PRODUCT_SIZE = 1 / 3  # of the product term, where the linear terms have size 1
_LOOKED_AT = 2048  # rows to measure a projection's size on


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

    def affine(self, factor: float, shift: NDArray[Any]) -> LinearProjection:
        """Multiply what it gives, and shift that.

        Parameters
        ----------
        factor : float
            The factor.
        shift : ndarray of shape (n_components,)
            What is added then.

        Returns
        -------
        LinearProjection
            x -> factor (x W + b) + shift.
        """
        return LinearProjection(self.weight * factor, self.bias * factor + shift)


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
    factor : float, default=1
        What the sums are multiplied by.
    bias : ndarray of shape (n_components,) or None, default=None
        What is added then.
    """

    buckets: NDArray[np.intp]
    signs: NDArray[np.float64]
    n_components: int
    factor: float = 1.0
    bias: NDArray[Any] | None = None

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
        entries = (
            (self.factor * self.signs).astype(block.dtype),
            (self.buckets, np.arange(width)),
        )
        matrix = sparse.csr_array(entries, shape=(self.n_components, width))
        sketched = np.ascontiguousarray((matrix @ block.T).T)
        if self.bias is not None:
            sketched += self.bias.astype(block.dtype)
        return sketched

    def affine(self, factor: float, shift: NDArray[Any]) -> CountSketch:
        """Multiply what it gives, and shift that.

        Parameters
        ----------
        factor : float
            The factor.
        shift : ndarray of shape (n_components,)
            What is added then.

        Returns
        -------
        CountSketch
            The same buckets and signs.
        """
        bias = shift if self.bias is None else self.bias * factor + shift
        return replace(self, factor=self.factor * factor, bias=bias)


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
    """Fit the projection onto a block's principal components."""
    mean, components = principal_components(block, n_components, random_state)
    return LinearProjection(components, -(mean @ components))


def add_bias(
    projections: Sequence[Projection], blocks: Sequence[NDArray[Any]], operator: Operator
) -> list[Projection]:
    """Shift projections by the operator's neutral element, so that products hold linear terms.

    With v_i the projected blocks of root mean square 1 on the training rows, e the neutral
    element and s a third of what makes e.g. ``v_1 ⊗ v_2`` as large as v_1, each u_i becomes
    ``s^(-1/n) (e + s v_i)``. Two blocks then give ``e / s + v_1 + v_2 + s v_1 ⊗ v_2``. Without
    a bias, the product of centred blocks holds no linear trace of either.

    Parameters
    ----------
    projections : sequence of LinearProjection or CountSketch
        One a block.
    blocks : sequence of ndarray of shape (n_samples, width)
        Scaled training rows.
    operator : Operator
        An operator without a neutral element leaves projections as they are.

    Returns
    -------
    list of LinearProjection or CountSketch
        The projections with their bias.

    Examples
    --------
    >>> import numpy as np
    >>> from skfusion.fusion.projection import LinearProjection, add_bias
    >>> from skfusion.fusion.registry import OPERATORS
    >>> block, keep = np.array([[1.0], [-1.0]]), LinearProjection(np.eye(1), np.zeros(1))
    >>> u, v = (p(block) for p in add_bias([keep, keep], [block] * 2, OPERATORS["hadamard"]))
    >>> (u * v).round(3)  # 3 + v_1 + v_2 + v_1 v_2 / 3
    array([[5.333],
           [1.333]])
    """
    if operator.neutral is None or len(projections) < 2:
        return list(projections)
    shifted = []
    for project, block in zip(projections, blocks, strict=True):
        projected = project(block[:: -(-len(block) // _LOOKED_AT)]).astype(np.float64)
        size = float(np.sqrt(np.mean(projected**2))) or 1.0
        d = projected.shape[1]
        s = _PRODUCT_SIZE / np.sqrt(operator.terms(d))
        whole = s ** (-1 / len(projections))
        shifted.append(project.affine(whole * s / size, whole * operator.neutral(d)))
    return shifted
