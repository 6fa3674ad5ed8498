"""Leave-one-out predictions of ridge regression in closed form, by features and by kernel.

By features, with weights w, weighted means taken off and rows multiplied by √w, let U S be the
singular vectors and values of the rows. At penalty λ row i pulls its own fit by
h_i = w_i / Σw + Σ_k U_ik² S_k² / (S_k² + λ), and ridge regression with a free intercept that was
fitted without row i misses its target by (y_i - fit_i) / (1 - h_i): exact, not an approximation.
One decomposition serves all λ (Golub, Heath and Wahba, Technometrics 1979).

By kernel, with M = K + λ diag(1 / w) and P = M⁻¹ - M⁻¹ 1 1ᵀ M⁻¹ / (1ᵀ M⁻¹ 1), it misses by
(P y)_i / P_ii.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg
from scipy.special import logsumexp, softmax

from .._targets import LABELS, NUMBERS, Targets
from .spectrum import spectrum

Floats = NDArray[np.float64]

#: Penalties, as multiples of the mean squared norm of a centred row.
RELATIVE_PENALTIES = np.logspace(-3, 3, 13)
_LEAST_SHARP, _MOST_SHARP = 1e-6, 100.0  # t: from the shares alone to as good as certain
_NEWTON_STEPS, _PRECISION = 30, 1e-6
_TINY = float(np.finfo(np.float64).tiny)


def ridge_losses(
    features: NDArray[np.floating[Any]], targets: Targets, shares: Floats | None = None
) -> Floats:
    """Return the log-loss per row, in nats, by ridge regression that was fitted without it.

    `shares` say what rows count in the loss, by default as in the fit.
    """
    predicted = leave_one_out(features, targets)
    return log_losses(predicted, targets, targets.shares if shares is None else shares)


def leave_one_out(features: NDArray[np.floating[Any]], targets: Targets) -> Floats:
    """Return predictions, each row's by a fit without it; the penalty errs least in squares."""
    centre, size = _location(targets)
    matrix = (targets.matrix - centre) / size
    mean_square = float(targets.shares @ (features**2).sum(axis=1))
    penalties = RELATIVE_PENALTIES * max(mean_square, _TINY)
    path = leave_one_out_path(features, matrix, targets.weights, penalties)
    errors = [targets.shares @ ((p - matrix) ** 2).sum(axis=1) for p in path]
    return centre + size * path[int(np.argmin(errors))]


def log_losses(predicted: Floats, targets: Targets, shares: Floats) -> Floats:
    """Return the log-loss per row of predictions by ridge regression.

    Predictions s of classes become probabilities p_c ∝ q_c exp(t (s_c - π_c)), where π and q are
    the classes' shares in the fit and in `shares`, those of rows in the loss, and t >= 0, an
    inverse temperature, minimises the mean log-loss: a layer that knows nothing has t = 0 and
    gives q. Each label is a pair of classes, and losses are summed over labels and outputs.
    Numbers have Gaussian errors, with the errors' own variance.
    """
    if targets.kind in NUMBERS:
        return _gaussian(predicted, shares, targets)
    return _softmax(predicted, shares, targets)


def leave_one_out_path(
    features: NDArray[np.floating[Any]], matrix: Floats, weights: Floats, penalties: Floats
) -> Floats:
    """Return predictions (n_penalties, n_samples, n_outputs), each row's by a fit without it.

    λ is that of Σ w_i |y_i - b - x_i B|² + λ |B|²; weights and penalties are above 0.

    Examples
    --------
    >>> import numpy as np
    >>> y = np.array([[0.0], [1.0], [2.0]])
    >>> leave_one_out_path(np.zeros((3, 1)), y, np.ones(3), np.ones(1)).ravel()
    array([1.5, 1. , 0.5])
    """
    decomposed = spectrum(_centre(features, weights))
    basis, roots = decomposed.basis, np.sqrt(weights)
    residual = (matrix - (weights @ matrix) / weights.sum()) * roots[:, None]
    shrunk = 1 / (decomposed.eigenvalues[:, None] + penalties)  # (rank, n_penalties)
    leverage = (weights / weights.sum())[:, None] + basis**2 @ shrunk.astype(basis.dtype)
    slopes = shrunk[:, :, None] * (basis.T @ residual)[:, None, :]
    fitted = np.tensordot(basis, slopes.astype(basis.dtype), axes=1)  # (rows, penalties, targets)
    # A row that outweighs all others may have a leverage of 1 but for rounding.
    free = np.maximum(1 - leverage, np.finfo(basis.dtype).eps) * roots[:, None]
    errors = (residual[:, None, :] - fitted) / free[:, :, None]
    return np.ascontiguousarray((matrix[:, None, :] - errors).swapaxes(0, 1))


def leave_one_out_features(
    features: NDArray[np.floating[Any]], matrix: Floats, weights: Floats
) -> Callable[[float], Floats]:
    """Return a function of λ: target minus prediction (n_samples, n_outputs) of rows left out.

    For few λ: each costs a Cholesky factor, a fraction of what `leave_one_out_path` needs.

    Examples
    --------
    >>> import numpy as np
    >>> y = np.array([[0.0], [1.0], [2.0]])
    >>> leave_one_out_features(np.zeros((3, 1)), y, np.ones(3))(1.0).ravel()
    array([-1.5,  0. ,  1.5])
    """
    rows, roots = _centre(features, weights), np.sqrt(weights)
    covariance = rows.T @ rows
    residual = (matrix - (weights @ matrix) / weights.sum()) * roots[:, None]
    least = np.finfo(rows.dtype).eps

    def errors(penalty: float) -> Floats:
        factor = linalg.cholesky(_load(covariance, penalty), lower=True, overwrite_a=True)
        half = linalg.solve_triangular(factor, rows.T, lower=True, check_finite=False)
        leverage = weights / weights.sum() + np.square(half).sum(axis=0, dtype=np.float64)
        fitted = half.T @ (half @ residual.astype(half.dtype))
        free = np.maximum(1 - leverage, least) * roots
        missed: Floats = (residual - fitted) / free[:, None]
        return missed

    return errors


def leave_one_out_kernel(
    kernel: NDArray[np.floating[Any]], matrix: Floats, weights: Floats
) -> Callable[[float], Floats]:
    """Return a function of λ: target minus prediction (n_samples, n_outputs) of rows left out.

    Examples
    --------
    >>> import numpy as np
    >>> y = np.array([[0.0], [1.0], [2.0]])
    >>> leave_one_out_kernel(np.zeros((3, 3)), y, np.ones(3))(1.0).ravel().round(6)
    array([-1.5,  0. ,  1.5])
    """
    (invert,) = linalg.get_lapack_funcs(("potri",), (kernel,))

    def errors(penalty: float) -> Floats:
        loaded = _load(kernel, penalty / weights)
        factor = linalg.cholesky(loaded, lower=True, overwrite_a=True, check_finite=False)
        inverse, _ = invert(factor, lower=True, overwrite_c=True)
        inverse = np.tril(inverse) + np.tril(inverse, -1).T
        ones = inverse.sum(axis=1, dtype=np.float64)
        pulled = inverse @ matrix.astype(inverse.dtype)
        pulled = pulled - np.outer(ones, ones @ matrix / ones.sum())
        # A single row leaves none to learn from: its P is 0.
        diagonal = np.maximum(np.diag(inverse) - ones**2 / ones.sum(), _TINY)
        missed: Floats = pulled / diagonal[:, None]
        return missed

    return errors


def _load(gram: NDArray[np.floating[Any]], penalty: float | Floats) -> NDArray[np.floating[Any]]:
    """Return a copy with penalties added to the diagonal."""
    loaded = gram.copy()
    loaded[np.diag_indices_from(loaded)] += np.asarray(penalty, dtype=gram.dtype)
    return loaded


def _centre(features: NDArray[np.floating[Any]], weights: Floats) -> NDArray[np.floating[Any]]:
    """Take off the weighted means and multiply rows by the roots of their weights."""
    means = (weights @ features) / weights.sum()
    centred: NDArray[np.floating[Any]] = features - means.astype(features.dtype)
    centred *= np.sqrt(weights)[:, None].astype(features.dtype)
    return centred


def _location(targets: Targets) -> tuple[Floats, Floats]:
    """Return means and standard deviations of numbers, and 0 and 1 of classes and labels."""
    matrix = targets.matrix
    if targets.kind not in NUMBERS:
        return np.zeros(matrix.shape[1]), np.ones(matrix.shape[1])
    mean = targets.shares @ matrix
    size = np.maximum(np.abs(matrix - mean).max(axis=0), _TINY)
    return mean, size * np.sqrt(targets.shares @ ((matrix - mean) / size) ** 2)


def _gaussian(predicted: Floats, shares: Floats, targets: Targets) -> Floats:
    errors = targets.matrix - predicted
    sizes = np.maximum(np.abs(errors).max(axis=0), _TINY)  # their squares may be too large
    squares = (errors / sizes) ** 2
    variances = np.maximum(shares @ squares, _TINY)
    losses: Floats = (
        np.log(sizes) + (np.log(2 * np.pi * variances) + squares / variances) / 2
    ).sum(axis=1)
    return losses


def _softmax(predicted: Floats, shares: Floats, targets: Targets) -> Floats:
    """Return the log-losses at the best temperature."""
    logits, _ = sharpen(predicted, targets, shares)
    true = _options(targets.matrix, targets)
    losses: Floats = (logsumexp(logits, axis=2) - (true * logits).sum(axis=2)).sum(axis=1)
    return losses


def sharpen(
    predicted: Floats, targets: Targets, shares: Floats | None = None
) -> tuple[Floats, float]:
    """Return logits (n_samples, n_labels or 1, k) at the best inverse temperature, and that.

    `shares` say what rows count in the loss that it minimises, by default as in the fit.
    """
    true, counts = _options(targets.matrix, targets), targets.shares if shares is None else shares
    scores = _options(predicted, targets) - np.tensordot(targets.shares, true, axes=1)
    log_priors = np.log(np.maximum(np.tensordot(counts, true, axes=1), _TINY))
    sharpness = _sharpness(scores, true, log_priors, counts)
    return log_priors + sharpness * scores, sharpness


def _options(matrix: Floats, targets: Targets) -> Floats:
    """Return one column a class; each label is a pair of them."""
    both = targets.kind in LABELS
    return np.stack([1 - matrix, matrix], axis=2) if both else matrix[:, None, :]


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
