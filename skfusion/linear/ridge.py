"""Leave-one-out predictions and log-loss of ridge regression on a layer, in closed form.

With weights w, weighted means taken off and rows multiplied by √w, let U S be the singular vectors
and values of the layer. At penalty λ the row i pulls its own fit by
h_i = w_i / Σw + Σ_k U_ik² S_k² / (S_k² + λ), and ridge regression with a free intercept that was
fitted without row i misses its target by (y_i - fit_i) / (1 - h_i): exact, not an approximation.
One decomposition serves all λ (Golub, Heath and Wahba, Technometrics 1979).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp, softmax

from .._targets import LayerTargets
from .spectrum import spectrum

Floats = NDArray[np.float64]

#: Penalties, as multiples of the mean squared norm of a centred row.
RELATIVE_PENALTIES = np.logspace(-3, 3, 13)
_LEAST_SHARP, _MOST_SHARP = 1e-6, 100.0  # t: from the shares alone to as good as certain
_NEWTON_STEPS, _PRECISION = 30, 1e-6
_TINY = float(np.finfo(np.float64).tiny)


def ridge_losses(features: NDArray[np.floating[Any]], targets: LayerTargets) -> Floats:
    """Give each row's log-loss by ridge regression that was fitted without it.

    The penalty is the one with the smallest mean squared error of rows left out. Its predictions s
    of classes become probabilities p_c ∝ π_c exp(t (s_c - π_c)), where π are the classes' shares
    and t >= 0, an inverse temperature, minimises the mean log-loss: a layer that knows nothing has
    t = 0 and gives the shares. Numbers have Gaussian errors, with the errors' own variance.

    Parameters
    ----------
    features : ndarray of shape (n_samples, n_features)
        A layer, standardised.
    targets : LayerTargets
        The targets of the same rows.

    Returns
    -------
    ndarray of float64, shape (n_samples,)
        Log-losses in nats, summed over outputs where there are several.

    Examples
    --------
    >>> import numpy as np
    >>> from skfusion._targets import read_layer_targets
    >>> from skfusion.linear.ridge import ridge_losses
    >>> y = np.tile([0, 1], 20)
    >>> targets = read_layer_targets(y, 40)
    >>> noise = np.random.default_rng(0).normal(size=(40, 3))
    >>> [round(float(ridge_losses(noise + k * y[:, None], targets).mean()), 2) for k in (0, 2)]
    [0.69, 0.01]
    """
    mean_square = float(targets.shares @ (features**2).sum(axis=1))
    penalties = RELATIVE_PENALTIES * max(mean_square, _TINY)
    path = leave_one_out_path(features, targets.matrix, targets.weights, penalties)
    errors = [targets.shares @ ((p - targets.matrix) ** 2).sum(axis=1) for p in path]
    predicted = path[int(np.argmin(errors))]
    return (_gaussian if targets.kind == "numbers" else _softmax)(predicted, targets)


def leave_one_out_path(
    features: NDArray[np.floating[Any]], matrix: Floats, weights: Floats, penalties: Floats
) -> Floats:
    """Predict each row by ridge regression that was fitted without it.

    Parameters
    ----------
    features : ndarray of shape (n_samples, n_features)
        Rows.
    matrix : ndarray of float64, shape (n_samples, n_targets)
        Targets.
    weights : ndarray of float64, shape (n_samples,)
        What each row counts, above 0.
    penalties : ndarray of float64, shape (n_penalties,)
        λ of Σ w_i |y_i - b - x_i B|² + λ |B|², above 0.

    Returns
    -------
    ndarray of float64, shape (n_penalties, n_samples, n_targets)
        Predictions.

    Examples
    --------
    >>> import numpy as np
    >>> from skfusion.linear.ridge import leave_one_out_path
    >>> y = np.array([[0.0], [1.0], [2.0]])
    >>> leave_one_out_path(np.zeros((3, 1)), y, np.ones(3), np.ones(1)).ravel()
    array([1.5, 1. , 0.5])
    """
    decomposed = spectrum(_centre(features, weights))
    basis, roots = decomposed.basis, np.sqrt(weights)
    residual = (matrix - (weights @ matrix) / weights.sum()) * roots[:, None]
    shrunk = 1 / (decomposed.squares[:, None] + penalties)  # (rank, n_penalties)
    leverage = (weights / weights.sum())[:, None] + basis**2 @ shrunk.astype(basis.dtype)
    slopes = shrunk[:, :, None] * (basis.T @ residual)[:, None, :]
    fitted = np.tensordot(basis, slopes.astype(basis.dtype), axes=1)  # (rows, penalties, targets)
    # A row that outweighs all others may have a leverage of 1 but for rounding.
    free = np.maximum(1 - leverage, np.finfo(basis.dtype).eps) * roots[:, None]
    errors = (residual[:, None, :] - fitted) / free[:, :, None]
    return np.ascontiguousarray((matrix[:, None, :] - errors).swapaxes(0, 1))


def _centre(features: NDArray[np.floating[Any]], weights: Floats) -> NDArray[np.floating[Any]]:
    """Take off the weighted means and multiply rows by the roots of their weights."""
    means = (weights @ features) / weights.sum()
    centred: NDArray[np.floating[Any]] = features - means.astype(features.dtype)
    centred *= np.sqrt(weights)[:, None].astype(features.dtype)
    return centred


def _gaussian(predicted: Floats, targets: LayerTargets) -> Floats:
    squares = (targets.matrix - predicted) ** 2
    variances = np.maximum(targets.shares @ squares, _TINY)
    losses: Floats = ((np.log(2 * np.pi * variances) + squares / variances) / 2).sum(axis=1)
    return losses


def _softmax(predicted: Floats, targets: LayerTargets) -> Floats:
    """Log-losses of classes, or of every label's two options, at the best temperature."""
    shape = (len(predicted), -1, targets.n_options)
    true = targets.matrix.reshape(shape)
    priors = (targets.shares @ targets.matrix).reshape(shape[1:])
    scores = predicted.reshape(shape) - priors
    log_priors = np.log(np.maximum(priors, _TINY))
    sharpness = _sharpness(scores, true, log_priors, targets.shares)
    logits = log_priors + sharpness * scores
    losses: Floats = (logsumexp(logits, axis=2) - (true * logits).sum(axis=2)).sum(axis=1)
    return losses


def _sharpness(scores: Floats, true: Floats, log_priors: Floats, shares: Floats) -> float:
    """Minimise the mean log-loss by t. It is convex, which is the case for Newton's steps."""
    sharpness = 1.0
    reached = float(shares @ (true * scores).sum(axis=(1, 2)))
    for _ in range(_NEWTON_STEPS):
        chances = softmax(log_priors + sharpness * scores, axis=2)
        expected = (chances * scores).sum(axis=2)
        spread = (chances * scores**2).sum(axis=2) - expected**2
        slope = float(shares @ expected.sum(axis=1)) - reached
        step = slope / max(float(shares @ spread.sum(axis=1)), _TINY)
        # A factor of e at most: far from the minimum the curvature says little.
        moved = sharpness * float(np.exp(np.clip(-step / sharpness, -1, 1)))
        before, sharpness = sharpness, min(max(moved, _LEAST_SHARP), _MOST_SHARP)
        if abs(sharpness - before) <= _PRECISION * before:
            break
    return sharpness
