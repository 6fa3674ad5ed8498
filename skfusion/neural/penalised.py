"""Penalised regression: the linear part of a network, its strength cross-validated.

The objective over the rows (weights w_i, which add up to N) is

    (1 / N) Σ w_i loss(y_i, x_i V + c) + λ / 2 ‖V‖²

with cross-entropy, binary cross-entropy or half the squared error. All λ, and all folds that λ is
chosen by, are solved at the same time as columns of one matrix product: in the basis of the rows'
singular vectors a diagonal matrix bounds the loss's curvature (Böhning, Annals of the Institute of
Statistical Mathematics 44, 1992), so accelerated gradient steps (Nesterov, 1983; with the restarts
of O'Donoghue and Candès, 2015) need no line search.

Weights that bring classes closer together move the odds of a class by its factor. What of that
the held-out rows do not bear out is taken back from the intercepts, so probabilities stay right.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..linear.spectrum import spectrum
from .data import Rows
from .modules import SQUARED_ERROR, LinearMap, Loss

#: Values of λ, the strongest first; columns have variance 1.
PATH = tuple(10.0 ** (k / 2) for k in range(3, -9, -1))
#: How much of the classes' log factors may be taken back; of equals the first.
_TAKEN_BACK = (0.0, 0.25, 0.5, 0.75, 1.0)
_PATH_STEPS = 100
_FINAL_STEPS = 400
_TOLERANCE = 1e-5
_RANK_TOLERANCE = 1e-9  # of the largest variance: directions below it count as none
_N_FOLDS = 5
_MOST_ENTRIES = 20_000  # of targets, so that fewer folds do where they are many


@dataclass(frozen=True)
class Basis:
    """Rows as coordinates along their singular vectors.

    The weighted mean of their products is the diagonal matrix of the variances.
    """

    rows: Tensor  # (n_samples, rank)
    variances: Tensor  # (rank,)
    mean: Tensor  # (n_features,)
    axes: Tensor  # (n_features, rank): rows = (X - mean) @ axes

    def double(self) -> Basis:
        """Return the same in double precision."""
        return Basis(*(part.double() for part in vars(self).values()))


@dataclass(frozen=True)
class Regression:
    """The penalised regression of all rows, and those without each of some splits."""

    full: LinearMap
    without: tuple[LinearMap, ...]
    level: float  # the loss, weighted by ``rows.balanced``, that a network may be trained to
    shift: Tensor  # (n_outputs,): what logits need to be added at the end


def to_basis(X: Tensor, weights: Tensor) -> Basis:
    """Return rows (n_samples, n_features) with weights of mean 1 as coordinates."""
    n = len(X)
    mean = weights @ X / n
    factors = (weights / n).sqrt()[:, None].double()
    # In double precision: a Gram matrix has the condition of the rows squared.
    scaled = (X - mean).double() * factors
    found = spectrum(scaled.cpu().numpy())
    keep = found.eigenvalues > found.eigenvalues.max(initial=0) * _RANK_TOLERANCE
    rows = torch.from_numpy(found.basis[:, keep]).to(factors)
    variances = torch.from_numpy(found.eigenvalues[keep]).to(factors)
    axes = scaled.T @ rows / variances
    return Basis((rows / factors).to(X), variances.to(X), mean, axes.to(X))


def solve_regression(
    rows: Rows, loss: Loss, splits: Sequence[Tensor], generator: torch.Generator
) -> Regression:
    """Return the regression with the λ that has the least held-out loss κ.

    Where a network is trained until it fits its rows closely enough, the regression's loss τ on
    its own rows says how closely that is: as much as the data ask for. It may go somewhat below,
    τ · max(1/2, τ / κ), because it fits where it has learnt something. Both losses are weighted
    by ``rows.balanced``.
    """
    basis = to_basis(rows.X, rows.weights)
    held, logits = _held_out_logits(basis, rows, loss, generator)
    decay, shift = _choose(rows, held, logits, loss)
    kept = torch.stack([torch.ones_like(rows.weights), *[(~s).to(rows.X) for s in splits]], dim=1)
    # In double precision, as steps that nearly turn around would make much of rounding.
    solve = _solve_squares if loss is SQUARED_ERROR else _minimise
    V, c = (
        found.to(rows.X)
        for found in solve(
            basis.double(),
            rows.target.double(),
            (rows.weights[:, None] * kept).double(),
            loss,
            rows.X.new_tensor([PATH[decay]]).repeat(kept.shape[1]).double(),
            steps=_FINAL_STEPS,
        )
    )
    weights = (basis.axes @ V.flatten(1)).reshape(-1, *V.shape[1:])  # (n_features, M, C)
    maps = [LinearMap(weights[:, m].T, c[m] - basis.mean @ weights[:, m]) for m in range(len(c))]
    own = loss.per_row(_predict(basis.rows, V, c)[:, 0], rows.target) @ rows.balanced
    balanced = rows.balanced[held] / rows.balanced[held].sum()
    unseen = balanced @ loss.per_row(logits[:, decay], rows.target[held])
    level = float(own * (own / unseen).clamp(0.5, 1))
    return Regression(maps[0], tuple(maps[1:]), level, shift)


def _held_out_logits(
    basis: Basis, rows: Rows, loss: Loss, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return positions of rows and their logits (n, n_λ, C), each by fits without its fold."""
    folds = stratified_folds(rows.codes, min(_N_FOLDS, len(rows)), generator)
    n_used = min(max(1, _MOST_ENTRIES // rows.target.numel()), int(folds.max()) + 1)
    used = torch.arange(n_used, device=folds.device)
    kept = rows.weights[:, None] * (folds[:, None] != used)
    V, c = _minimise(
        basis,
        rows.target,
        kept.repeat_interleave(len(PATH), dim=1),
        loss,
        rows.X.new_tensor(PATH).repeat(len(used)),
        steps=_PATH_STEPS,
    )
    logits = _predict(basis.rows, V, c).reshape(len(rows), len(used), len(PATH), -1)
    is_held = folds < len(used)
    held = torch.nonzero(is_held & ~is_alone(rows.codes))[:, 0]
    if not len(held):
        held = torch.nonzero(is_held)[:, 0]
    return held, logits[held, folds[held]]


def is_alone(codes: Tensor) -> Tensor:
    """Whether a row is the only one of its class.

    Such a class cannot be known without it, and would make the strongest λ look best.
    """
    return torch.bincount(codes)[codes] == 1


def _choose(rows: Rows, held: Tensor, logits: Tensor, loss: Loss) -> tuple[int, Tensor]:
    """Return the position of λ and what is added to logits, by the loss of held-out rows."""
    plain = (rows.weights / rows.evened)[held]
    log_factors = torch.zeros_like(rows.target[0])
    if bool((rows.evened != 1).any()):
        log_factors[rows.target.argmax(dim=1)] = rows.evened.log()
    shifts = [-share * log_factors for share in _TAKEN_BACK]
    losses = torch.stack(
        [plain @ loss.per_row(logits + shift, rows.target[held, None, :]) for shift in shifts]
    )
    best = int(losses.argmin())
    return best % len(PATH), shifts[best // len(PATH)]


def stratified_folds(groups: Tensor, n_folds: int, generator: torch.Generator) -> Tensor:
    """Return the fold of each row; each class is shared out as evenly as can be."""
    shuffled = torch.randperm(len(groups), generator=generator, device=groups.device)
    # One class after the other, dealt out like cards.
    order = shuffled[torch.sort(groups[shuffled], stable=True).indices]
    folds = torch.empty_like(groups)
    folds[order] = torch.arange(len(groups), device=groups.device).remainder(n_folds)
    return folds


def _predict(rows: Tensor, V: Tensor, c: Tensor) -> Tensor:
    """Return logits (N, M, C) of M maps V (r, M, C) in one matrix product."""
    flat = rows @ V.reshape(len(V), math.prod(V.shape[1:]))
    return flat.reshape(len(rows), *V.shape[1:]) + c


def _solve_squares(
    basis: Basis, target: Tensor, weights: Tensor, loss: Loss, decays: Tensor, *, steps: int
) -> tuple[Tensor, Tensor]:
    """Solve what `_minimise` comes close to, for squared errors."""
    rows, found = basis.rows, []
    for row_weights, decay in zip(weights.T, decays, strict=True):
        shares = row_weights / row_weights.sum()
        means, expected = shares @ rows, shares @ target
        weighted = ((rows - means) * shares[:, None]).T
        gram = weighted @ (rows - means)
        gram.diagonal().add_(decay)
        V = torch.linalg.solve(gram, weighted @ (target - expected))
        found.append((V, expected - means @ V))
    return torch.stack([V for V, _ in found], dim=1), torch.stack([c for _, c in found])


def _minimise(
    basis: Basis, target: Tensor, weights: Tensor, loss: Loss, decays: Tensor, *, steps: int
) -> tuple[Tensor, Tensor]:
    """Minimise M objectives with row weights (N, M) and λ (M,): V (r, M, C) and c (M, C).

    No weight may be above that of the same row in the basis.
    """
    rows, target = basis.rows, target[:, None, :]
    total = weights.sum(dim=0)
    weights = (weights / total)[:, :, None]
    bound = loss.curvature * len(rows) / total
    step_V = 1 / (bound * basis.variances[:, None] + decays)[:, :, None]
    step_c = 1 / bound[:, None]
    V = V_ahead = rows.new_zeros(rows.shape[1], len(decays), target.shape[2])
    c = c_ahead = rows.new_zeros(len(decays), target.shape[2])
    age = torch.ones_like(decays)  # Nesterov's t, of each objective
    for _ in range(steps):
        slopes = weights * loss.gradient(_predict(rows, V_ahead, c_ahead), target)
        slope_V = (rows.T @ slopes.flatten(1)).reshape(V.shape)
        slope_V += decays[:, None] * V_ahead
        slope_c = slopes.sum(dim=0)
        V_next, c_next = V_ahead - step_V * slope_V, c_ahead - step_c * slope_c
        move_V, move_c = V_next - V, c_next - c
        uphill = (slope_V * move_V).sum(dim=(0, 2)) + (slope_c * move_c).sum(dim=1) > 0
        age = torch.where(uphill, 1.0, age)
        older = 0.5 + torch.sqrt(0.25 + age**2)
        push = torch.where(uphill, 0.0, (age - 1) / older)[:, None]
        V, V_ahead, c, c_ahead = V_next, V_next + push * move_V, c_next, c_next + push * move_c
        age = older
        if torch.cat([slope_V.flatten(), slope_c.flatten()]).abs().max() < _TOLERANCE:
            break
    return V, c
