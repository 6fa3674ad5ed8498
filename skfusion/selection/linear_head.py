"""Logistic and ridge regression of classes, their penalty and their loss by held-out rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._targets import Targets
from ..linear.logistic import log_chances, logistic_path, predict_logits
from ..linear.ridge import RELATIVE_PENALTIES, leave_one_out_path, sharpen
from ..linear.spectrum import spectrum

Floats = NDArray[np.float64]

#: λ of the logistic regression, the strongest first; rows have mean squared norm 1.
PENALTIES = tuple(10.0 ** (-k / 2) for k in range(1, 13))
_NO_CHOICE = 10.0**-2.5  # where no row can be held out
_PATIENCE = 2  # penalties in a row that are no better, before weaker ones are left out
_PATH_STEPS, _FINAL_ROUNDS = 30, 4  # what is trained in the end takes more steps
_TINY = float(np.finfo(np.float64).tiny)


@dataclass(frozen=True)
class Linear:
    """A linear classifier, and what held-out rows say of it."""

    kind: str
    penalty: float
    coefficients: Floats  # (n_features, n_classes): logits of the probabilities
    intercept: Floats  # (n_classes,)
    held_out: Floats  # (n_samples, n_classes): log-probabilities, NaN where none was held out
    losses: Floats  # (n_samples,): the log-loss of held-out rows, NaN where unknown
    loss: float  # their mean


def deal_folds(
    codes: NDArray[np.intp], n_folds: int, rng: np.random.RandomState
) -> NDArray[np.intp]:
    """Return the fold of each row; each class is shared out as evenly as can be."""
    shuffled = rng.permutation(len(codes))
    order = shuffled[np.argsort(codes[shuffled], kind="stable")]
    folds = np.empty(len(codes), dtype=np.intp)
    folds[order] = np.arange(len(codes)) % min(n_folds, len(codes))
    return folds


@dataclass(frozen=True)
class Rotated:
    """Rows as coordinates along orthogonal directions, of mean squared norm 1."""

    mean: Floats
    axes: Floats  # (n_features, rank): coordinates = (X - mean) @ axes
    rows: Floats  # (n_samples, rank)

    @classmethod
    def of(cls, X: NDArray[Any], targets: Targets) -> Rotated:
        """Rotate rows."""
        mean = X.mean(axis=0, dtype=np.float64)
        centred = X - mean
        scale = np.sqrt(max(float(targets.shares @ (centred**2).sum(axis=1)), _TINY))
        found = spectrum(centred)
        if not len(found.eigenvalues):  # nothing varies
            return cls(mean, np.zeros((X.shape[1], 1)), np.zeros((len(X), 1)))
        axes = centred.T @ (found.basis / found.eigenvalues) / scale
        return cls(mean, axes, found.basis / scale)

    def coefficients(self, V: NDArray[Any], c: NDArray[Any]) -> tuple[Floats, Floats]:
        """Return weights and intercept for the rows as they came."""
        weights: Floats = self.axes @ V.astype(np.float64)
        return weights, c - self.mean @ weights


def held_out_losses(held_out: Floats, targets: Targets) -> tuple[Floats, float]:
    """Return the loss of each row, NaN where it is the only one of its class, and the mean."""
    losses = -held_out[np.arange(len(held_out)), targets.codes]
    alone = np.bincount(targets.codes)[targets.codes] == 1
    losses = np.where(alone, np.nan, losses)
    known = np.isfinite(losses)
    if not known.any():
        return losses, float("nan")
    return losses, float(np.average(losses[known], weights=targets.weights[known]))


def fit_logistic(rows: Rotated, targets: Targets, folds: NDArray[np.intp]) -> Linear:
    """Fit logistic regression, its penalty cross-validated."""
    penalty, held_out = _best_penalty(rows, targets, folds)
    way = [p for p in PENALTIES if p > penalty] + [penalty] * _FINAL_ROUNDS
    whole = targets.weights[:, None]
    *_, (V, c) = logistic_path(rows.rows, targets.matrix, whole, way, _PATH_STEPS)
    V, c = V[:, 0], c[0]
    if V.shape[1] == 1:
        V, c = np.hstack([-V / 2, V / 2]), np.hstack([-c / 2, c / 2])
    coefficients, intercept = rows.coefficients(V, c)
    losses, loss = held_out_losses(held_out, targets)
    return Linear("logistic", penalty, coefficients, intercept, held_out, losses, loss)


def _best_penalty(
    rows: Rotated, targets: Targets, folds: NDArray[np.intp]
) -> tuple[float, Floats]:
    """Fit the path of penalties in all folds at once, until weaker ones are no better."""
    kept = targets.weights[:, None] * (folds[:, None] != np.arange(folds.max() + 1))
    least, penalty, since = np.inf, _NO_CHOICE, 0
    held_out = np.full(targets.matrix.shape, np.nan)
    path = logistic_path(rows.rows, targets.matrix, kept, PENALTIES, _PATH_STEPS)
    for tried, coefficients in zip(PENALTIES, path, strict=True):
        logits = predict_logits(rows.rows, coefficients)[np.arange(len(folds)), folds]
        chances = log_chances(logits)
        _, loss = held_out_losses(chances, targets)
        if loss < least:
            least, penalty, held_out, since = loss, tried, chances, 0
        else:
            since += 1
        if since == _PATIENCE or np.isnan(loss):
            break
    return penalty, held_out


def fit_ridge(rows: Rotated, targets: Targets) -> Linear:
    """Fit ridge regression of the classes, its penalty by exact leave-one-out errors."""
    matrix, weights = targets.matrix, targets.weights / targets.weights.mean()
    path = leave_one_out_path(rows.rows, matrix, weights, RELATIVE_PENALTIES)
    errors = [targets.shares @ ((p - matrix) ** 2).sum(axis=1) for p in path]
    at = int(np.argmin(errors))
    logits, sharpness = sharpen(path[at], targets)
    held_out = log_chances(logits[:, 0])
    mean = targets.shares @ rows.rows
    weighted = (rows.rows - mean).T * weights
    gram = weighted @ (rows.rows - mean) + RELATIVE_PENALTIES[at] * np.eye(len(weighted))
    V = sharpness * np.linalg.solve(gram, weighted @ matrix)
    c = np.log(np.maximum(targets.shares @ matrix, _TINY)) - mean @ V
    coefficients, intercept = rows.coefficients(V, c)
    losses, loss = held_out_losses(held_out, targets)
    penalty = float(RELATIVE_PENALTIES[at])
    return Linear("ridge", penalty, coefficients, intercept, held_out, losses, loss)
