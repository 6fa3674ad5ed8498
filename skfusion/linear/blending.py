"""Weights of many blocks from the training rows, and the principal components of the whole.

The kernel K_b of a block is that of its centred rows, divided so that its mean diagonal is 1.
Shares v on the simplex give K = Σ v_b K_b: the kernel of the blocks side by side, each multiplied
by √(v_b / t_b), where t_b is the mean squared norm of its centred rows.

Each row has a log-loss by each block, that of ridge regression fitted without it. How much a block
is behind the best one, Δ per row with standard error e over N rows, is a matter of chance too, so
a share is the prior one times the odds Φ(-z) / Φ(z) of being the better of the two, with
z = s N Δ / √(N² e² + 8 / π): of a block that is surely behind next to nothing is left,
and one that other rows may well put in front keeps nearly its prior share. That is pseudo-Bayesian
model averaging by leave-one-out losses with their uncertainty (Yao, Vehtari, Simpson and Gelman,
Bayesian Analysis 2018), the bootstrap of which is put into closed form here.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg
from scipy.special import log_ndtr, softmax

from .._targets import Targets
from .criteria import balanced_shares, softly_balanced
from .ridge import leave_one_out_features, leave_one_out_kernel, log_losses
from .spectrum import inverse_roots, largest_eigenvectors, orient, principal_components

Floats = NDArray[np.float64]
Block = NDArray[np.floating[Any]]

#: Rows that shares are found from, at most: their kernel's factors cost the cube of it.
MOST_ROWS = 500
#: s: the sharpness of shares, found on real data (benchmarks/layer_choice.py measures them).
SHARPNESS = 1.5
#: With so many rows, all other blocks together have half the prior share of the preferred.
FADE_ROWS = 100
#: A block with less does not count.
LEAST_SHARE = 1e-3
#: Penalties of kernels whose mean diagonal is 1.
PENALTIES = (0.01, 0.1, 1.0, 10.0, 100.0)

#: Components that are kept where nobody says how many.
MOST_COMPONENTS = 1000
_EXACT_ROWS = 3000  # of the kernel form, which costs their cube
_EXACT_COLUMNS = 3000  # of the covariance form, likewise
_EXACT_SIZE = 2**28  # entries that the covariance form may hold
_OVERSAMPLED, _POWERS = 20, 2
_CONSTANT = 100  # times the dtype's precision: such a spread is what rounding leaves
_TINY = float(np.finfo(np.float64).tiny)


# --- shares ----------------------------------------------------------------------------------


def blend_shares(
    blocks: Iterable[Block],
    prior: Floats,
    targets: Targets | None,
    rng: np.random.RandomState,
    *,
    even: float = 0.0,
) -> Floats:
    """Return the share of each block, adding up to 1; blocks are read one after the other.

    `prior` says what blocks have that are equally good. The part `even` of all shares stays as it
    says, and without targets all does. A block that does not vary has none.

    Examples
    --------
    >>> import numpy as np
    >>> blocks = [np.array([[1.0], [2.0]]), np.ones((2, 1)), np.array([[0.0], [5.0]])]
    >>> blend_shares(blocks, np.ones(3), None, np.random.RandomState(0))
    array([0.5, 0. , 0.5])
    """
    if targets is None:
        varying = np.array([_mean_square(block) > 0 for block in blocks])
        return _trimmed(prior * varying)
    rows = draw_rows(targets, rng)
    targets, losses = targets.take(rows), []
    fitted, row_shares = softly_balanced(targets), balanced_shares(targets)
    for block in blocks:
        features = _unit(block[rows])
        losses.append(None if features is None else block_losses(features, fitted, row_shares))
    varying = np.array([loss is not None for loss in losses])
    if not varying.any():
        return _trimmed(np.zeros(len(prior)))
    found = np.stack([loss for loss in losses if loss is not None], axis=1)
    before, shares = prior[varying] / prior[varying].sum(), np.zeros(len(prior))
    weighed = average(found, row_shares, before)
    shares[varying] = even * before + (1 - even) * weighed
    return _trimmed(shares)


def average(losses: Floats, row_shares: Floats, prior: Floats) -> Floats:
    """Turn losses (n_rows, n_blocks) into shares of blocks; `row_shares` add up to 1.

    Examples
    --------
    >>> import numpy as np
    >>> same, surely = np.array([[0.1], [0.3]]), np.array([[9.0], [9.2]])
    >>> average(np.hstack([same, same, surely]), np.full(2, 0.5), np.full(3, 1 / 3)).round(3)
    array([0.5, 0.5, 0. ])
    """
    n_rows = np.count_nonzero(row_shares)
    best = int(np.argmin(row_shares @ losses))
    behind = losses - losses[:, [best]]
    mean = row_shares @ behind
    variance = row_shares**2 @ (behind - mean) ** 2
    z = SHARPNESS * n_rows * mean / np.sqrt(n_rows**2 * variance + 8 / np.pi)
    odds = np.log(prior) + log_ndtr(-z) - log_ndtr(z)
    shares: Floats = softmax(odds)
    return shares


def fading_prior(preferred: Sequence[bool], n_rows: int) -> Floats:
    """Return shares by which the preferred blocks together have half, and with few rows more.

    All others together have N / (N + 100) times as much.

    Examples
    --------
    >>> fading_prior([True, False, False], 100)
    array([0.66666667, 0.16666667, 0.16666667])
    """
    chosen = np.array(preferred, dtype=bool)
    if chosen.all() or not chosen.any():
        return np.full(len(chosen), 1 / len(chosen))
    weights = np.where(chosen, 1 / chosen.sum(), 0.0)
    weights[~chosen] = n_rows / (n_rows + FADE_ROWS) / np.count_nonzero(~chosen)
    prior: Floats = weights / weights.sum()
    return prior


def draw_rows(targets: Targets, rng: np.random.RandomState) -> NDArray[np.intp]:
    """Return the rows that shares are found from: of weight, and at most 500, by class.

    Two rows of each class are drawn first, as long as there is room.
    """
    rows = np.flatnonzero(targets.weights > 0)
    if len(rows) <= MOST_ROWS:
        return rows
    rows = rng.permutation(rows)
    codes = targets.codes[rows]
    order = np.argsort(codes, kind="stable")
    counts = np.bincount(codes)
    starts = np.cumsum(counts) - counts
    rank = np.empty(len(rows))
    rank[order] = np.arange(len(rows)) - starts[codes[order]]
    place = np.where(rank < 2, 0.0, (rank + rng.uniform(size=len(rows))) / counts[codes])
    return np.sort(rows[np.argsort(place, kind="stable")[:MOST_ROWS]])


def without_repeats(targets: Targets, rows: Iterable[Hashable]) -> Targets:
    """Return targets in which repeated rows, with the same target, have their weight in the first.

    A row that is left out would else be learnt from its copy.
    """
    first: dict[Hashable, int] = {}
    weights = np.zeros(len(targets))
    for i, (row, target) in enumerate(zip(rows, targets.matrix, strict=True)):
        weights[first.setdefault((row, target.tobytes()), i)] += targets.weights[i]
    return targets.weighted(weights)


def _trimmed(shares: Floats) -> Floats:
    """Take off the smallest shares and let the rest add up to 1; even ones where all are 0."""
    if not shares.any():
        return np.full(len(shares), 1 / len(shares))
    shares = shares / shares.sum()
    least = min(LEAST_SHARE, 0.5 / np.count_nonzero(shares))
    kept = np.where(shares < least, 0.0, shares)
    trimmed: Floats = kept / kept.sum()
    return trimmed


def _mean_square(block: Block) -> float:
    """Return the mean squared norm of centred rows, 0 where it is but rounding."""
    return _centred(block)[2]


def _centred(block: Block) -> tuple[Block, Floats, float]:
    """Return the centred rows, what was taken off, and their mean squared norm."""
    mean = block.mean(axis=0, dtype=np.float64)
    centred: Block = block - mean.astype(block.dtype)
    square = float(np.square(centred).sum(dtype=np.float64)) / len(block)
    noise = _CONSTANT * float(np.finfo(block.dtype).eps)
    return centred, mean, square if square > noise**2 * float(mean @ mean) else 0.0


def _unit(block: Block) -> Block | None:
    """Return centred rows of mean squared norm 1; None where they do not vary."""
    centred, _, square = _centred(block)
    if square <= _TINY:
        return None
    centred /= block.dtype.type(np.sqrt(square))
    return centred


# --- losses of rows left out -------------------------------------------------------------------


def block_losses(features: Block, fitted: Targets, row_shares: Floats) -> Floats:
    """Return the log-loss per row of a ridge regression on a block's rows, fitted without it.

    `row_shares` say what rows count in the loss.
    """
    n_rows, width = features.shape
    weights = fitted.weights / fitted.weights.mean()  # penalties are relative to these
    if n_rows <= width:
        errors_at = leave_one_out_kernel(features @ features.T, fitted.matrix, weights)
    else:
        errors_at = leave_one_out_features(features, fitted.matrix, weights)
    errors = _least_errors(errors_at, row_shares)
    return log_losses(fitted.matrix - errors, fitted, row_shares)


def _least_errors(errors_at: Callable[[float], Floats], shares: Floats) -> Floats:
    """Walk from the middle penalty to where the squared errors are smallest; return the errors."""

    def at(penalty: float) -> tuple[float, Floats]:
        errors = errors_at(penalty)
        return float(shares @ (errors**2).sum(axis=1)), errors

    middle = len(PENALTIES) // 2
    first = least = at(PENALTIES[middle])
    for way in (PENALTIES[middle + 1 :], PENALTIES[:middle][::-1]):
        for penalty in way:
            there = at(penalty)
            if there[0] >= least[0]:
                break
            least = there
        if least is not first:
            break
    return least[1]


# --- components ------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class BlendComponents:
    """Principal components of blocks side by side, as one linear map for each block."""

    means: tuple[NDArray[Any], ...]  # (width,) for each block
    projections: tuple[NDArray[Any], ...]  # (width, n_components) for each block

    def __call__(self, blocks: Iterable[NDArray[Any]]) -> NDArray[Any]:
        """Return Σ (block - mean) @ projection; blocks are read one after the other."""
        total: NDArray[Any] | None = None
        for block, mean, projection in zip(blocks, self.means, self.projections, strict=True):
            part = (block - mean.astype(block.dtype)) @ projection.astype(block.dtype)
            total = part if total is None else np.add(total, part, out=total)
        assert total is not None
        return total


def count_components(n_components: int | None, n_rows: int, n_columns: int) -> int:
    """Return how many there are: at most n_rows - 1, the columns, and 1,000 or what is asked."""
    asked = MOST_COMPONENTS if n_components is None else n_components
    return max(1, min(asked, n_rows - 1, n_columns))


def fit_components(
    read: Callable[[], Iterable[Block]],
    shares: Floats,
    n_components: int | None,
    rng: np.random.RandomState,
) -> BlendComponents:
    """Return the principal components of the weighted blocks, largest first.

    `read` gives the blocks anew for every pass over them, and they are not kept. Up to 3,000 rows
    or columns they are exact: by the kernel of rows, or by the covariance of columns. Beyond,
    they are found by randomised subspace iteration, in five passes. Directions in which the rows
    do not vary are no components: they are zeros.

    Examples
    --------
    >>> import numpy as np
    >>> blocks = [np.array([[1.0], [2.0]]), np.array([[0.0], [4.0]])]
    >>> found = fit_components(lambda: blocks, np.array([0.5, 0.5]), 1, np.random.RandomState(0))
    >>> found(blocks).round(6)
    array([[-1.],
           [ 1.]])
    """
    weighted = _measure(read, shares)
    n_rows, n_columns = weighted.n_rows, sum(len(mean) for mean in weighted.means)
    k = count_components(n_components, n_rows, n_columns)
    if n_columns <= min(n_rows, _EXACT_COLUMNS) and n_rows * n_columns <= _EXACT_SIZE:
        whole = np.concatenate(list(weighted.blocks()), axis=1)
        _, directions = principal_components(whole, k, rng)
    elif n_rows <= _EXACT_ROWS:
        directions = _from_kernel(weighted, k)
    else:
        directions = _randomised(weighted, k, rng)
    cuts = np.cumsum([len(mean) for mean in weighted.means])[:-1]
    orient(directions)
    return BlendComponents(
        tuple(mean.astype(weighted.dtype) for mean in weighted.means),
        tuple(
            (scale * part).astype(weighted.dtype)
            for scale, part in zip(weighted.scales, np.split(directions, cuts), strict=True)
        ),
    )


@dataclass(frozen=True)
class _Weighted:
    """Blocks that are centred and weighted while they are read."""

    read: Callable[[], Iterable[Block]]
    means: list[Floats]
    scales: list[float]  # √(v_b / t_b)
    n_rows: int
    dtype: np.dtype[Any]

    def blocks(self, dtype: Any = None) -> Iterable[Block]:
        """Yield the centred and weighted blocks, one after the other."""
        for block, mean, scale in zip(self.read(), self.means, self.scales, strict=True):
            rows = block.astype(dtype or self.dtype)
            rows -= mean.astype(rows.dtype)
            rows *= rows.dtype.type(scale)
            yield rows


def _measure(read: Callable[[], Iterable[Block]], shares: Floats) -> _Weighted:
    """Learn means and scales in a first pass."""
    means, scales, n_rows, dtypes = [], [], 0, []
    for block, share in zip(read(), shares, strict=True):
        _, mean, square = _centred(block)
        means.append(mean)
        scales.append(float(np.sqrt(share / square)) if square > _TINY else 0.0)
        n_rows = len(block)
        dtypes.append(block.dtype)
    return _Weighted(read, means, scales, n_rows, np.result_type(*dtypes))


def _from_kernel(weighted: _Weighted, k: int) -> Floats:
    kernel = np.zeros((weighted.n_rows, weighted.n_rows))
    for rows in weighted.blocks(np.float64):
        kernel += rows @ rows.T
    eigenvalues, vectors = largest_eigenvectors(kernel, k)
    vectors = vectors * inverse_roots(eigenvalues)
    return np.concatenate([rows.T @ vectors for rows in weighted.blocks(np.float64)])


def _randomised(weighted: _Weighted, k: int, rng: np.random.RandomState) -> NDArray[Any]:
    """Halko, Martinsson and Tropp (SIAM Review 2011), with one pass over the blocks a power."""
    size = min(k + _OVERSAMPLED, weighted.n_rows)
    basis = np.zeros((weighted.n_rows, size), dtype=weighted.dtype)
    for rows in weighted.blocks():
        basis += rows @ rng.normal(size=(rows.shape[1], size)).astype(rows.dtype)
    for _ in range(_POWERS):
        start = linalg.qr(basis, mode="economic", overwrite_a=True, check_finite=False)[0]
        basis = np.zeros_like(start)
        for rows in weighted.blocks():
            basis += rows @ (rows.T @ start)
    start = linalg.qr(basis, mode="economic", overwrite_a=True, check_finite=False)[0]
    small = np.concatenate([rows.T @ start for rows in weighted.blocks()])
    eigenvalues, vectors = largest_eigenvectors((small.T @ small).astype(np.float64), k)
    turned: NDArray[Any] = small @ (vectors * inverse_roots(eigenvalues)).astype(small.dtype)
    return turned
