"""The training loss to stop at: that of penalised regression, its strength cross-validated.

The objective over the rows (weights w_i, which add up to N) is

    (1 / N) Σ w_i loss(y_i, x_i V + c) + λ / 2 ‖V‖²

with cross-entropy, binary cross-entropy or half the squared error. All λ, and all folds that λ is
chosen by, are solved at the same time as columns of one matrix product: in the basis of the rows'
singular vectors a diagonal matrix bounds the loss's curvature (Böhning, Annals of the Institute of
Statistical Mathematics 44, 1992), so accelerated gradient steps (Nesterov, 1983; with the restarts
of O'Donoghue and Candès, 2015) need no line search.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..linear.spectrum import spectrum
from .data import Rows
from .modules import Loss

#: Values of λ, the strongest first; columns have variance 1.
PATH = tuple(10.0 ** (k / 2) for k in range(3, -9, -1))
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


def to_basis(X: Tensor, weights: Tensor) -> Basis:
    """Return rows (n_samples, n_features) with weights of mean 1 as coordinates."""
    n = len(X)
    factors = (weights / n).sqrt()[:, None].double()
    # In double precision: a Gram matrix has the condition of the rows squared.
    scaled = (X - weights @ X / n).double() * factors
    found = spectrum(scaled.cpu().numpy())
    keep = found.eigenvalues > found.eigenvalues.max(initial=0) * _RANK_TOLERANCE
    rows = torch.from_numpy(found.basis[:, keep]).to(factors) / factors
    return Basis(rows.to(X), torch.from_numpy(found.eigenvalues[keep]).to(X))


def target_training_loss(rows: Rows, loss: Loss, generator: torch.Generator) -> float:
    """Return the loss, weighted by ``rows.balanced``, that a network should be trained to.

    λ is the one with the least held-out loss κ; the regression with it has the loss τ on its own
    rows. A network that fits them as closely is regularised as much as the data ask for. It may
    go somewhat below, τ · max(1/2, τ / κ), because it fits where it has learnt something.
    """
    basis = to_basis(rows.X, rows.weights)
    held_out = _held_out_losses(basis, rows, loss, generator)
    decay = rows.X.new_tensor([PATH[int(held_out.argmin())]])
    V, c = _minimise(basis, rows.target, rows.weights[:, None], loss, decay, steps=_FINAL_STEPS)
    own = loss.per_row(_predict(basis.rows, V, c)[:, 0], rows.target) @ rows.balanced
    return float(own * (own / held_out.min()).clamp(0.5, 1))


def _held_out_losses(basis: Basis, rows: Rows, loss: Loss, generator: torch.Generator) -> Tensor:
    """Return the loss of each λ of `PATH` on rows by the fit without their fold."""
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
    # A class of one row cannot be known without it, and would make the strongest λ look best.
    is_held, is_alone = folds < len(used), torch.bincount(rows.codes)[rows.codes] == 1
    held = torch.nonzero(is_held & ~is_alone)[:, 0]
    if not len(held):
        held = torch.nonzero(is_held)[:, 0]
    losses = loss.per_row(logits[held, folds[held]], rows.target[held, None, :])
    return rows.balanced[held] @ losses / rows.balanced[held].sum()


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
