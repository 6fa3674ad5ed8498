"""Penalised logistic regression for a path of penalties and many folds, all folds at once.

The objective of one fold, its row weights w_i adding up to 1, is

    Σ w_i loss(y_i, x_i V + c) + λ / 2 ‖V‖²

with the cross-entropy of softmax for three classes or more and that of the logistic function for
two. Columns are orthogonal, as principal components are, so that a diagonal matrix bounds the
loss's curvature (Böhning, Annals of the Institute of Statistical Mathematics 44, 1992) and
accelerated gradient steps (Nesterov, 1983; with the restarts of O'Donoghue and Candès, 2015) need
no line search. Each λ starts from the solution at the one before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, log_expit, log_softmax, softmax

Floats = NDArray[np.float64]
Coefficients = tuple[NDArray[np.float32], NDArray[np.float32]]

_TOLERANCE = 1e-4  # of the slope, where rows have mean squared norm 1


def logistic_path(
    rows: NDArray[np.floating],
    matrix: Floats,
    weights: Floats,
    penalties: Iterable[float],
    steps: int,
) -> Iterator[Coefficients]:
    """Yield V (n_columns, n_folds, k) and c (n_folds, k) for each penalty, the strongest first.

    `rows` have orthogonal columns, `matrix` one column a class and `weights` one column a fold.
    k is 1 for two classes.
    """
    rows = rows.astype(np.float32)
    target = _targets(matrix)[:, None, :]
    scaled = (weights / weights.sum(axis=0)).astype(np.float32)
    curvature = 0.25 if target.shape[2] == 1 else 0.5
    bound = np.maximum(curvature * len(rows) * scaled.max(axis=0), curvature)
    spread = (rows**2).mean(axis=0)
    V = np.zeros((rows.shape[1], scaled.shape[1], target.shape[2]), np.float32)
    c = np.zeros(V.shape[1:], np.float32)
    for penalty in penalties:
        step = (1 / (bound * spread[:, None] + penalty))[:, :, None].astype(np.float32)
        V, c = _descend(
            rows, target, scaled[:, :, None], penalty, (V, c), (step, 1 / bound[:, None]), steps
        )
        yield V, c


def predict_logits(rows: NDArray[np.floating], coefficients: Coefficients) -> NDArray[np.float32]:
    """Return the logits (n_samples, n_folds, k)."""
    V, c = coefficients
    flat = rows.astype(np.float32, copy=False) @ V.reshape(len(V), c.size)
    logits: NDArray[np.float32] = flat.reshape(len(rows), *c.shape) + c
    return logits


def log_chances(logits: NDArray[np.floating]) -> Floats:
    """Return log-probabilities of all classes; the last axis of one logit becomes two.

    Examples
    --------
    >>> log_chances(np.zeros((1, 1))).round(3)
    array([[-0.693, -0.693]])
    """
    logits = logits.astype(np.float64)
    if logits.shape[-1] == 1:
        return np.concatenate([log_expit(-logits), log_expit(logits)], axis=-1)
    chances: Floats = log_softmax(logits, axis=-1)
    return chances


def _targets(matrix: Floats) -> NDArray[np.float32]:
    return (matrix[:, 1:] if matrix.shape[1] == 2 else matrix).astype(np.float32)


def _descend(
    rows: NDArray[np.float32],
    target: NDArray[np.float32],
    weights: NDArray[np.float32],
    penalty: float,
    start: Coefficients,
    step: tuple[NDArray[np.float32], NDArray[np.floating]],
    steps: int,
) -> Coefficients:
    V, c = V_ahead, c_ahead = start
    link = expit if target.shape[2] == 1 else lambda logits: softmax(logits, axis=2)
    age = np.ones(len(c), np.float32)  # Nesterov's t, of each fold
    for _ in range(steps):
        slopes = weights * (link(predict_logits(rows, (V_ahead, c_ahead))) - target)
        slope_V = (rows.T @ slopes.reshape(len(rows), -1)).reshape(V.shape)
        slope_V += np.float32(penalty) * V_ahead
        slope_c = slopes.sum(axis=0)
        V_next = V_ahead - step[0] * slope_V
        c_next = (c_ahead - step[1] * slope_c).astype(np.float32)
        move_V, move_c = V_next - V, c_next - c
        uphill = (slope_V * move_V).sum(axis=(0, 2)) + (slope_c * move_c).sum(axis=1) > 0
        age = np.where(uphill, np.float32(1), age)
        older = np.float32(0.5) + np.sqrt(np.float32(0.25) + age**2)
        push = np.where(uphill, np.float32(0), (age - 1) / older)[:, None]
        V, V_ahead, c, c_ahead = V_next, V_next + push * move_V, c_next, c_next + push * move_c
        age = older
        if max(np.abs(slope_V).max(initial=0), np.abs(slope_c).max()) < _TOLERANCE:
            break
    return V, c
