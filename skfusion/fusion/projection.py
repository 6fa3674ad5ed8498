"""Bringing blocks to a common width: which, and by linear maps or count sketches."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from ..linear.spectrum import principal_components
from .operators import Operator

_HEARD: set[int | None] = set()  # the widths that a ProjectionWarning was about
_PRODUCT_SIZE = 1 / 3  # of the product term, where the linear terms have size 1
_LOOKED_AT = 2048  # rows to measure a projection's size on


class ProjectionWarning(UserWarning):
    """The common width is smaller than the blocks, because there are few training rows."""


@dataclass(frozen=True)
class LinearProjection:
    """The map x -> x W + b."""

    weight: NDArray[Any]  # W, of shape (width, n_components)
    bias: NDArray[Any]  # b, of shape (n_components,)

    def __call__(self, block: NDArray[Any]) -> NDArray[Any]:
        """Project rows, in the block's dtype."""
        projected: NDArray[Any] = block @ self.weight.astype(block.dtype, copy=False)
        projected += self.bias.astype(block.dtype, copy=False)
        return projected

    def affine(self, factor: float, shift: NDArray[Any]) -> LinearProjection:
        """Return x -> factor (x W + b) + shift."""
        return LinearProjection(self.weight * factor, self.bias * factor + shift)


@dataclass(frozen=True)
class CountSketch:
    """The count sketch of Charikar, Chen and Farach-Colton (2002): signed sums into buckets."""

    buckets: NDArray[np.intp]  # of each entry of a vector
    signs: NDArray[np.float64]  # 1 or -1 for each
    n_components: int
    factor: float = 1.0
    bias: NDArray[Any] | None = None

    def __call__(self, block: NDArray[Any]) -> NDArray[Any]:
        """Sketch rows, in the block's dtype."""
        width = len(self.buckets)
        signs = (self.factor * self.signs).astype(block.dtype)
        entries = (signs, (self.buckets, np.arange(width)))
        matrix = sparse.csr_array(entries, shape=(self.n_components, width))
        sketched = np.ascontiguousarray((matrix @ block.T).T)
        if self.bias is not None:
            sketched += self.bias.astype(block.dtype)
        return sketched

    def affine(self, factor: float, shift: NDArray[Any]) -> CountSketch:
        """Return the sketch times a factor, plus a shift."""
        bias = shift if self.bias is None else self.bias * factor + shift
        return replace(self, factor=self.factor * factor, bias=bias)


Projection = LinearProjection | CountSketch


def count_sketch(width: int, n_components: int, rng: np.random.RandomState) -> CountSketch:
    """Draw a count sketch, under which inner products are right in the mean."""
    buckets = rng.randint(n_components, size=width)
    signs = rng.choice([-1.0, 1.0], size=width)
    return CountSketch(buckets, signs, n_components)


def random_projection(
    width: int, n_components: int, rng: np.random.RandomState
) -> LinearProjection:
    """Draw W of independent N(0, 1 / n_components): squared norms are right in the mean."""
    weight = rng.standard_normal((width, n_components)) / np.sqrt(n_components)
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


def common_width(
    operator: Operator,
    widths: Sequence[int],
    n_components: int | None,
    *,
    projection: str | None,
    n_rows: int,
) -> int:
    """Return the common width d of the projected blocks: what is asked for, or the most there is.

    That is the smallest block's width, rounded down to a valid one, and under "pca" at most
    ``n_rows - 1``, with a `ProjectionWarning`, once per process, where this makes it smaller.
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


def _unprojected_width(operator: Operator, widths: Sequence[int], n_components: int | None) -> int:
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
    if width != wanted and wanted not in _HEARD:
        # The folds of a search have it in common: once per process is enough.
        _HEARD.add(wanted)
        warnings.warn(
            f"The common width is {width}, not {wanted} as the blocks' width would allow: PCA "
            f"gives at most n_samples - 1 = {limit} components. Set n_components to choose it, or "
            f"use projection='random'.",
            ProjectionWarning,
            stacklevel=7,
        )
    return width
