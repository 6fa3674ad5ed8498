"""Weights of many blocks from the training rows, and the principal components of the whole.

The kernel K_b of a block is that of its centred rows, divided so that its mean diagonal is 1.
Shares v on the simplex give K = Σ v_b K_b: the kernel of the blocks side by side, each multiplied
by √(v_b / t_b), where t_b is the mean squared norm of its centred rows.

Shares come in two stages. A group of blocks, such as the layers of one pooling, has a share
∝ exp(s √N score), the score being that of the sum of its kernels; inside of a group half of it is
spread evenly and half ∝ exp(s √N score of the block).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg
from scipy.special import softmax

from .._targets import CLASSES, LABELS, Targets
from .criteria import balanced_shares, softly_balanced
from .ridge import leave_one_out_features, leave_one_out_kernel
from .spectrum import above_noise, largest_eigenvectors, orient, principal_components

Floats = NDArray[np.float64]
Block = NDArray[np.floating[Any]]

#: Rows that shares are found from, at most: their kernel's factors cost the cube of it.
MOST_ROWS = 1000
#: How sharply scores become shares, in units of 1 / √N.
STRENGTH = 3.0
#: The part of a group's share that its blocks have whatever they score.
EVEN = 0.5
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
    groups: Sequence[Hashable],
    targets: Targets | None,
    rng: np.random.RandomState,
) -> Floats:
    """Return the share of each block, adding up to 1; blocks are read one after the other.

    Without targets all blocks have the same share. One that does not vary has none.

    Examples
    --------
    >>> import numpy as np
    >>> blocks = [np.array([[1.0], [2.0]]), np.ones((2, 1)), np.array([[0.0], [5.0]])]
    >>> blend_shares(blocks, [0, 0, 1], None, np.random.RandomState(0))
    array([0.5, 0. , 0.5])
    """
    if targets is None:
        return _trimmed(np.array([_mean_square(block) > 0 for block in blocks], dtype=float))
    rows = draw_rows(targets, rng)
    targets = targets.take(rows)
    together, scores = _Groups(groups), []
    for group, block in zip(groups, blocks, strict=True):
        features = _unit(block[rows])
        score = -np.inf if features is None else score_features(features, targets)
        scores.append(score)
        if features is not None:
            together.add(group, features, score)
    return two_stages(np.array(scores), groups, together.scores(targets), len(targets))


def two_stages(
    scores: Floats, groups: Sequence[Hashable], group_scores: dict[Hashable, float], n_rows: int
) -> Floats:
    """Turn the scores of blocks, -inf where they do not vary, and of groups into shares."""
    sharpness = STRENGTH * np.sqrt(n_rows)
    shares = np.zeros(len(scores))
    if not group_scores:
        return _trimmed(shares)
    of_groups = softmax(sharpness * np.array(list(group_scores.values())))
    for group, share in zip(group_scores, of_groups, strict=True):
        members = np.array([g == group for g in groups]) & (scores > -np.inf)
        own = softmax(sharpness * scores[members])
        shares[members] = share * (EVEN / members.sum() + (1 - EVEN) * own)
    return _trimmed(shares)


def draw_rows(targets: Targets, rng: np.random.RandomState) -> NDArray[np.intp]:
    """Return the rows that shares are found from: of weight, and at most 1,000, by class.

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


class _Groups:
    """Sums of the kernels of each group's blocks, where a group has several."""

    def __init__(self, groups: Sequence[Hashable]) -> None:
        self._sizes = Counter(groups)
        self._kernels: dict[Hashable, Block] = {}
        self._counts: Counter[Hashable] = Counter()
        self._last: dict[Hashable, float] = {}

    def add(self, group: Hashable, features: Block, score: float) -> None:
        """Add the kernel of one block."""
        self._counts[group] += 1
        self._last[group] = score
        if self._sizes[group] > 1:
            kernel = features @ features.T
            if group in self._kernels:
                kernel += self._kernels[group]
            self._kernels[group] = kernel

    def scores(self, targets: Targets) -> dict[Hashable, float]:
        """Return the scores of groups that vary; of a single block, its own."""
        return {
            group: self._last[group]
            if count == 1
            else score_kernel(self._kernels[group] / count, targets)
            for group, count in self._counts.items()
        }


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


# --- scores ----------------------------------------------------------------------------------


def score_features(features: Block, targets: Targets) -> float:
    """Return minus the loss of rows left out of a ridge regression on a block's rows."""
    n_rows, width = features.shape
    if n_rows <= width:
        return score_kernel(features @ features.T, targets)
    errors_at = leave_one_out_features(features, targets.matrix, _fit_weights(targets))
    return _best(errors_at, targets)


def score_kernel(kernel: Block, targets: Targets) -> float:
    """Return minus the loss of rows left out of a ridge regression by a kernel."""
    errors_at = leave_one_out_kernel(kernel, targets.matrix, _fit_weights(targets))
    return _best(errors_at, targets)


def loss(errors: Floats, targets: Targets) -> float:
    """Return the loss per row and output, in nats as if errors were Gaussian; classes alike."""
    squares = (_row_weights(targets) * errors**2).sum(axis=0)
    if targets.kind in CLASSES:
        squares = squares.sum(keepdims=True)
    return float(np.log(np.maximum(squares, _TINY)).mean()) / 2


def _row_weights(targets: Targets) -> Floats:
    """Return what each row counts in the loss of each output, adding up to 1 for an output."""
    matrix = targets.matrix
    weights = np.repeat(balanced_shares(targets)[:, None], matrix.shape[1], axis=1)
    if targets.kind in LABELS:  # those that have a label count as much as those without it
        for side in (matrix > 0, matrix == 0):
            sums = (weights * side).sum(axis=0)
            weights = np.where(side, weights / np.where(sums > 0, sums, 1.0), weights)
    normalised: Floats = weights / weights.sum(axis=0)
    return normalised


def _fit_weights(targets: Targets) -> Floats:
    """Return the weights to fit with, 1 in the mean, which penalties are relative to."""
    weights = softly_balanced(targets).weights
    normalised: Floats = weights / weights.mean()
    return normalised


def _best(errors_at: Callable[[float], Floats], targets: Targets) -> float:
    """Walk from the middle penalty to where the loss is smallest; return minus that loss."""
    middle = len(PENALTIES) // 2
    least = loss(errors_at(PENALTIES[middle]), targets)
    for way in (PENALTIES[middle + 1 :], PENALTIES[:middle][::-1]):
        found = least
        for penalty in way:
            there = loss(errors_at(penalty), targets)
            if there >= least:
                break
            least = there
        if least < found:
            break
    return -least


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
    s = np.sqrt(eigenvalues)
    vectors = vectors * (above_noise(s) / np.where(s == 0, 1, s))
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
    s = np.sqrt(eigenvalues)
    turned: NDArray[Any] = small @ (vectors * (above_noise(s) / np.where(s == 0, 1, s))).astype(
        small.dtype
    )
    return turned
