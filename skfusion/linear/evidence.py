"""Exact log evidence of a linear model on a layer (LogME: You et al., ICML 2021).

With slopes of prior variance a and noise of variance b, targets y ~ N(0, b I + a F Fᵀ). In the
singular values S_1, ..., S_k of F, with z = Uᵀ y and r = a / b,

    log p(y) = -n/2 log(2π b) - 1/2 Σ_k log(1 + r S_k²) - Q(r) / (2 b),
    Q(r) = Σ_k z_k² / (1 + r S_k²) + |y|² - |z|².

The logarithm of the prior's precision 1/a thus stands in it k/2 times. (Common implementations
have it D/2 times, which is wrong where n < D, and then rank layers by their scale.) The best b is
Q/n, so that only r is left to be searched.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from .spectrum import spectrum

Floats = NDArray[np.float64]

_GRID = np.linspace(-14.0, 14.0, 57)  # of log r, where the mean squared singular value is 1
_TINY = float(np.finfo(np.float64).tiny)


def log_evidence(features: NDArray[np.floating[Any]], matrix: Floats) -> Floats:
    """Return the largest log evidence per target, in nats, over both variances.

    Scaling the features changes nothing.

    Examples
    --------
    >>> import numpy as np
    >>> F = np.random.default_rng(0).normal(size=(30, 2))
    >>> y = F @ [[1.0], [2.0]]
    >>> bool(log_evidence(F, y + 0.1)[0] > log_evidence(F[::-1], y + 0.1)[0])
    True
    """
    decomposed = spectrum(features)
    eigenvalues = decomposed.eigenvalues
    parts = (decomposed.basis.T @ matrix) ** 2 / eigenvalues[:, None]  # z²
    rest = np.maximum((matrix**2).sum(axis=0) - parts.sum(axis=0), 0.0)
    unit = float(eigenvalues.mean()) if len(eigenvalues) else 1.0
    targets = zip(parts.T, rest, strict=True)
    return np.array([_largest(eigenvalues / unit, z, r, len(matrix)) for z, r in targets])


def _largest(eigenvalues: Floats, parts: Floats, rest: float, n_samples: int) -> float:
    """Search r on a grid, then between the best point's neighbours."""

    def negative(log_ratio: float) -> float:
        return -_profile(log_ratio, eigenvalues, parts, rest, n_samples)

    best = int(np.argmin([negative(at) for at in _GRID]))
    around = (_GRID[max(best - 1, 0)], _GRID[min(best + 1, len(_GRID) - 1)])
    found = optimize.minimize_scalar(
        negative, bounds=around, method="bounded", options={"xatol": 1e-6}
    )
    return -float(min(found.fun, negative(_GRID[best])))


def _profile(
    log_ratio: float, eigenvalues: Floats, parts: Floats, rest: float, n_samples: int
) -> float:
    """Log evidence at an r and the b that fits it best."""
    grown = 1 + eigenvalues * np.exp(log_ratio)
    remaining = max(float((parts / grown).sum()) + rest, _TINY)
    fit = n_samples * (np.log(n_samples / (2 * np.pi * remaining)) - 1)
    return float(fit - np.log(grown).sum()) / 2
