"""Exact log evidence of a linear model on a layer (LogME: You et al., ICML 2021).

With slopes of prior variance a and noise of variance b, targets y ~ N(0, b I + a F Fᵀ), in m
dimensions: n, or n - 1 where the means are taken off. In the singular values S_1, ..., S_k of F,
with z = Uᵀ y and r = a / b,

    log p(y) = -m/2 log(2π b) - 1/2 Σ_k log(1 + r S_k²) - Q(r) / (2 b),
    Q(r) = Σ_k z_k² / (1 + r S_k²) + |y|² - |z|².

The logarithm of the prior's precision 1/a thus stands in it k/2 times. (Common implementations
have it D/2 times, which is wrong where n < D, and then rank layers by their scale.) The best b is
Q/m, so that only r is left to be searched, from 0, where F says nothing, to infinity, where there
is no noise. There the evidence has a limit if k = m. If k < m directions fit y exactly, it grows
without bound: noise is then held to what float32 vectors can tell from none.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from .spectrum import spectrum

Floats = NDArray[np.float64]

#: Of r, where the mean squared singular value is 1.
_GRID = np.append(0.0, np.exp(np.linspace(-14.0, 24.0, 77)))
_LEAST_NOISE = 1e-6  # of the targets' variance
_LEAST_EIGENVALUE = 1e-12  # of the largest: below it float32 vectors have nothing but rounding
_TINY = float(np.finfo(np.float64).tiny)


def log_evidence(
    features: NDArray[np.floating[Any]], matrix: Floats, n_free: int | None = None
) -> Floats:
    """Return the largest log evidence per target, in nats, over both variances.

    `n_free` is m, by default the number of rows. Scaling the features changes nothing.

    Examples
    --------
    >>> import numpy as np
    >>> F = np.random.default_rng(0).normal(size=(30, 2))
    >>> y = F @ [[1.0], [2.0]] + np.tile([[0.1], [-0.1]], (15, 1))
    >>> bool(log_evidence(F, y)[0] > log_evidence(F[::-1], y)[0])
    True
    """
    m = len(matrix) if n_free is None else n_free
    basis, eigenvalues = _directions(features, m)
    largest = np.abs(matrix).max(axis=0)  # their squares may be too large or too small
    sizes = largest * np.sqrt(((matrix / largest) ** 2).sum(axis=0) / m)
    parts = (basis.T @ (matrix / sizes)) ** 2  # z², with |y|² = m
    least = m * _LEAST_NOISE if len(eigenvalues) < m else 0.0
    rest = np.maximum(m - parts.sum(axis=0), least) if least else np.zeros(len(sizes))
    starts = np.argmax(_profile(_GRID, eigenvalues, parts, rest, m), axis=0)
    values, exact = np.empty(len(sizes)), False
    for t, start in enumerate(starts):
        values[t], ratio = _refine(start, eigenvalues, parts[:, [t]], rest[[t]], m)
        remaining = rest[t] + (parts[:, t] / (1 + ratio * eigenvalues)).sum()
        exact |= least > 0 and bool(remaining < 2 * least)
    if exact:
        warnings.warn(
            "Vectors fit y exactly, as they also may where rows are repeated. Log evidence then "
            "has no maximum, and is given for noise of a millionth of the variance of y. "
            "The criterion 'ridge' knows no such case.",
            stacklevel=2,
        )
    values -= m * np.log(sizes)
    return values


def _directions(features: NDArray[np.floating[Any]], m: int) -> tuple[Floats, Floats]:
    """Return left singular vectors, m at most, and squared singular values of mean 1."""
    decomposed = spectrum(features)
    values = decomposed.eigenvalues[-m:]  # they rise
    kept = values > _LEAST_EIGENVALUE * values.max(initial=0.0)
    basis, values = decomposed.basis[:, -m:][:, kept], values[kept]
    return basis / np.sqrt(values), values / (values.mean() if len(values) else 1.0)


def _refine(
    start: int, eigenvalues: Floats, parts: Floats, rest: Floats, m: int
) -> tuple[float, float]:
    """Search r between the grid's neighbours; return the log evidence and the best r."""

    def at(log_ratio: float) -> float:
        return float(_profile(np.exp([log_ratio]), eigenvalues, parts, rest, m)[0, 0])

    if start == 0:  # no slopes
        return float(_profile(_GRID[:1], eigenvalues, parts, rest, m)[0, 0]), 0.0
    around = np.log(_GRID[[max(start - 1, 1), min(start + 1, len(_GRID) - 1)]])
    found = optimize.minimize_scalar(
        lambda x: -at(x), bounds=around, method="bounded", options={"xatol": 1e-6}
    )
    best = max((-float(found.fun), found.x), (at(np.log(_GRID[start])), np.log(_GRID[start])))
    without_noise = -np.inf
    if len(eigenvalues) == m:
        slopes = float((parts[:, 0] / eigenvalues).sum())
        without_noise = -(m * (np.log(2 * np.pi * slopes / m) + 1) + np.log(eigenvalues).sum()) / 2
    return max((best[0], float(np.exp(best[1]))), (without_noise, np.inf))


def _profile(ratios: Floats, eigenvalues: Floats, parts: Floats, rest: Floats, m: int) -> Floats:
    """Return log evidence (n_ratios, n_targets) at values of r, each with the best b."""
    grown = 1 + ratios[:, None] * eigenvalues
    noise = np.maximum(((1 / grown) @ parts + rest) / m, _TINY)
    values: Floats = m * (np.log(2 * np.pi * noise) + 1)
    values += np.log(grown).sum(axis=1)[:, None]
    return -values / 2
