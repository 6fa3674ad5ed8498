"""Projections trained together with the operator and a linear classifier, which is then dropped.

The objective is the cross-entropy of softmax(F V + c) over the training rows, F the output of
`FusionTransformer`, plus a weight decay on V and on the projections W_i in units where the rows of
each block have mean squared norm 1. It is minimised by L-BFGS over all rows at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import optimize
from sklearn.model_selection import train_test_split
from threadpoolctl import threadpool_limits

from .._targets import Targets
from .operators import Operator, concat, mean
from .projection import LinearProjection, Projection, add_bias, pca_projection

Flat = NDArray[np.float64]

DECAYS = (1e-2, 1e-3, 1e-4)
_FEW_ROWS = 10  # below that nothing is held out to choose the decay by
_SEARCH_STEPS = 30
_FINAL_STEPS = 100
_TOLERANCE = 1e-5


@dataclass(frozen=True)
class _Coordinates:
    """Coordinates of a block's rows in as few dimensions as they span, with mean norm 1."""

    # The best W is a combination of the training rows, so nothing is lost, and few rows of a wide
    # block cost little.
    rows: NDArray[Any]
    to_basis: LinearProjection | None
    norm: float

    def widen(self, weight: NDArray[Any], bias: NDArray[Any]) -> LinearProjection:
        """Return the map of the block that is a map of the coordinates."""
        weight = weight / self.norm
        if self.to_basis is None:
            return LinearProjection(weight, bias)
        return LinearProjection(self.to_basis.weight @ weight, bias + self.to_basis.bias @ weight)


def supervised_projections(
    blocks: Sequence[NDArray[Any]],
    targets: Targets,
    operator: Operator,
    *,
    n_components: int,
    residual: bool | str,
    rng: np.random.RandomState,
) -> list[Projection]:
    """Train W_i and b_i of each block for a linear classifier of what `FusionTransformer` returns.

    The weight decay is that of `DECAYS` with the least cross-entropy on a fifth of the rows, held
    out by class; then all rows are trained on. With fewer than 10 rows, or a class of one row, it
    is the middle one.
    """
    bases = [_to_coordinates(block, rng) for block in blocks]
    problem = _pose([basis.rows for basis in bases], targets, operator, n_components, residual)
    decay, start = _choose_decay(problem, _draw(problem, operator, n_components, rng), rng)
    parts = _cut(_minimise(problem, start, decay, _FINAL_STEPS), problem)
    trained = [basis.widen(parts[2 * i], parts[2 * i + 1][0]) for i, basis in enumerate(bases)]
    factor = _unit_factor(trained, blocks, operator, residual)
    return [project.affine(factor, np.zeros(n_components)) for project in trained]


def _unit_factor(
    trained: Sequence[LinearProjection],
    blocks: Sequence[NDArray[Any]],
    operator: Operator,
    residual: bool | str,
) -> float:
    """Return the factor of all projections that makes the fused columns' mean variance 1."""
    # The dropped head took any scale, but a penalised classifier after this one does not. Where a
    # factor of the projections is not one of the result, the factor is 1.
    linear, product = operator.name in ("sum", "mean"), operator.neutral is not None
    if not (linear or (product and residual != "add")):
        return 1.0
    fused = operator([project(block) for project, block in zip(trained, blocks, strict=True)])
    size = float(np.sqrt(fused.var(axis=0, dtype=np.float64).mean()))
    if size < np.finfo(fused.dtype).tiny ** 0.5:
        return 1.0
    return float(size ** (-1 / (1 if linear else len(blocks))))


@dataclass(frozen=True)
class _Problem:
    """What is minimised, over W_1, b_1, ..., W_n, b_n, V and c, of these shapes."""

    rows: list[NDArray[Any]]
    targets: Targets
    fuse: Callable[[Sequence[Any], Sequence[Any]], Any]
    shapes: list[tuple[int, int]]

    def take(self, rows: NDArray[np.intp]) -> _Problem:
        blocks = [block[rows] for block in self.rows]
        return replace(self, rows=blocks, targets=self.targets.take(rows))


def _pose(
    rows: list[NDArray[Any]], targets: Targets, operator: Operator, d: int, residual: bool | str
) -> _Problem:
    def fuse(blocks: Sequence[Any], projected: Sequence[Any]) -> Any:
        fused = operator(projected)
        if residual == "add":
            fused = fused + mean(projected)
        return concat([*blocks, fused]) if residual == "concat" else fused

    probe = fuse([block[:1] for block in rows], [np.zeros((1, d), rows[0].dtype) for _ in rows])
    n_classes = targets.matrix.shape[1]
    shapes = [shape for block in rows for shape in [(block.shape[1], d), (1, d)]]
    shapes += [(probe.shape[1], n_classes), (1, n_classes)]
    return _Problem(rows, targets, fuse, shapes)


def _to_coordinates(block: NDArray[Any], rng: np.random.RandomState) -> _Coordinates:
    to_basis = None
    if 2 * len(block) < block.shape[1]:
        to_basis = pca_projection(block, max(1, len(block) - 1), rng)
        block = to_basis(block)
    norm = float(np.sqrt((block.astype(np.float64) ** 2).sum() / len(block))) or 1.0
    return _Coordinates(block / block.dtype.type(norm), to_basis, norm)


def _draw(problem: _Problem, operator: Operator, d: int, rng: np.random.RandomState) -> Flat:
    """Start from a random projection with a bias, and a head that knows nothing."""
    drawn = [
        LinearProjection(rng.standard_normal((block.shape[1], d)), np.zeros(d))
        for block in problem.rows
    ]
    parts = [np.zeros(shape) for shape in problem.shapes]
    for i, project in enumerate(add_bias(drawn, problem.rows, operator)):
        assert isinstance(project, LinearProjection)
        parts[2 * i], parts[2 * i + 1] = project.weight / np.sqrt(d), project.bias
    return np.concatenate([part.ravel() for part in parts])


def _cut(flat: Any, problem: _Problem) -> list[Any]:
    """Cut a vector or tensor of all parameters into matrices."""
    parts, start = [], 0
    for rows, columns in problem.shapes:
        parts.append(flat[start : start + rows * columns].reshape(rows, columns))
        start += rows * columns
    return parts


def _choose_decay(
    problem: _Problem, start: Flat, rng: np.random.RandomState
) -> tuple[float, Flat]:
    """Return the best weight decay, and what was found with it as a start for all rows."""
    codes = problem.targets.codes
    counts = np.bincount(codes)
    n_held = max(len(codes) // 5, len(counts))
    if counts.min() < 2 or len(codes) < max(_FEW_ROWS, 2 * n_held):
        return DECAYS[1], start
    train, held = train_test_split(
        np.arange(len(codes)), test_size=n_held, stratify=codes, random_state=rng
    )
    known, other = problem.take(train), _objective(problem.take(held), 0.0)
    tried = []
    for decay in DECAYS:
        # From the stronger decay's optimum: it is near, and the path stays on one branch.
        start = _minimise(known, start, decay, _SEARCH_STEPS)
        tried.append((other(start)[0], decay, start))
    _, decay, start = min(tried, key=lambda each: each[0])
    return decay, start


def _minimise(problem: _Problem, start: Flat, decay: float, steps: int) -> Flat:
    # The threads of scipy and those of torch spin while the others work: on two cores one thread
    # of BLAS is 2 to 7 times as fast, and its results do not depend on how many there are.
    with threadpool_limits(limits=1, user_api="blas"):
        found = optimize.minimize(
            _objective(problem, decay),
            start,
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": steps, "maxfun": 2 * steps, "gtol": _TOLERANCE, "ftol": 1e-7},
        )
    at: Flat = found.x
    return at


def _objective(problem: _Problem, decay: float) -> Callable[[Flat], tuple[float, Flat]]:
    import torch

    blocks = [torch.from_numpy(np.ascontiguousarray(block)) for block in problem.rows]
    dtype = blocks[0].dtype
    row_weights = problem.targets.weights
    weights = torch.from_numpy(row_weights / row_weights.sum()).to(dtype)
    codes = torch.from_numpy(problem.targets.codes)

    def evaluate(flat: Flat) -> tuple[float, Flat]:
        at = torch.from_numpy(flat).to(dtype).requires_grad_()
        parts = _cut(at, problem)
        projected = [
            torch.addmm(parts[2 * i + 1], block, parts[2 * i]) for i, block in enumerate(blocks)
        ]
        logits = problem.fuse(blocks, projected) @ parts[-2] + parts[-1]
        lost = torch.nn.functional.cross_entropy(logits, codes, reduction="none")
        squares = torch.stack([(part**2).sum() for part in parts[::2]]).sum()
        loss = (weights * lost).sum() + 0.5 * decay * squares
        (slope,) = torch.autograd.grad(loss, at)
        return loss.item(), slope.double().numpy()

    return evaluate
