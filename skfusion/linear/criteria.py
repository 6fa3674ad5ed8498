"""How well a layer will serve, from its standardised rows: one function per criterion."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import entr
from sklearn.covariance import ledoit_wolf_shrinkage

from .._targets import CLASSES, LABELS, NUMBERS, Kind, Targets
from .evidence import log_evidence
from .ridge import ridge_losses
from .spectrum import spectrum

Features = NDArray[np.floating[Any]]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Criterion:
    """A criterion, ``of(features, targets)``: a score, higher is better, or the loss per row."""

    of: Callable[[Features, Any], Any]
    #: Of losses per row, what each row counts: scores then have standard errors.
    shares: Callable[[Targets], Floats] | None = None
    in_nats: bool = False  # a log-likelihood per row, of which small differences are small
    kinds: frozenset[Kind] = CLASSES | LABELS | NUMBERS  # of targets; empty where it takes none


def logme(features: Features, targets: Targets) -> float:
    """Mean log evidence per row and output (You et al., ICML 2021), targets centred."""
    centred = targets.matrix - targets.matrix.mean(axis=0)
    n_free = len(centred) - 1  # the means are taken off both
    return float(log_evidence(features, centred, n_free).mean()) / n_free


def balanced_losses(features: Features, targets: Targets) -> Floats:
    """Return the log-loss per row by ridge regression fitted without it, classes alike."""
    return ridge_losses(features, softly_balanced(targets), balanced_shares(targets))


def softly_balanced(targets: Targets) -> Targets:
    """Return the targets to fit with: rows of classes have the roots of balanced weights.

    A class of few rows is then seen, and yet no single row rules the fit.
    """
    if targets.kind not in CLASSES:
        return targets
    weights = targets.weights * np.sqrt(targets.balance(targets.weights))
    return targets.weighted(weights / weights.mean())


def balanced_shares(targets: Targets) -> Floats:
    """Return what each row counts where classes count the same; of labels and numbers, `shares`.

    A class of one row counts nothing: without that row, nothing is known of it. Where that leaves
    less than two classes, all count.
    """
    if targets.kind not in CLASSES:
        return targets.shares
    repeated = targets.matrix.sum(axis=0) > 1
    weights = targets.weights
    if np.count_nonzero(repeated) > 1:
        weights = np.where(repeated[targets.codes], weights, 0.0)
    return targets.weighted(weights * targets.balance(weights)).shares


def h_score(features: Features, targets: Targets) -> float:
    """Shrunk H-score: trace of Σ⁻¹ Σ_between (Bao et al. 2019; Ibrahim et al. 2021).

    Σ is shrunk toward a multiple of the identity as Ledoit and Wolf have it, and Σ_between by the
    same factor, without which more columns than rows would give every layer the same score.
    """
    n_samples, n_features = features.shape
    shrinkage = float(ledoit_wolf_shrinkage(features, assume_centered=True))
    decomposed = spectrum(features)
    variance = decomposed.eigenvalues / n_samples
    level = shrinkage * variance.sum() / n_features
    # The means of classes in the basis of singular vectors, where Σ is diagonal.
    counts = targets.matrix.sum(axis=0)
    means = decomposed.basis.T @ (targets.matrix / counts)
    within = ((1 - shrinkage) * variance + level)[:, None]
    between: float = (means**2 / within).sum(axis=0) @ counts / n_samples
    return (1 - shrinkage) * float(between)


def variability(features: Features, targets: Targets) -> float:
    """Variance between classes over variance within them.

    The inverse of the variability ratio that neural collapse brings to zero, by its traces
    (Papyan, Han and Donoho, PNAS 2020).
    """
    counts = targets.matrix.sum(axis=0)
    means = features.T @ (targets.matrix / counts)
    between = float((means**2).sum(axis=0) @ counts)
    within = float((features**2).sum(dtype=np.float64)) - between
    return between / max(within, float(np.finfo(np.float64).tiny))


def effective_rank(features: Features, targets: None) -> float:
    """Exponential of the entropy of the singular values (Roy and Vetterli, EUSIPCO 2007)."""
    values = np.sqrt(spectrum(features).eigenvalues)
    return float(np.exp(entr(values / values.sum()).sum()))


#: Every criterion by the name that `criterion` takes.
CRITERIA: dict[str, Criterion] = {
    "balanced": Criterion(balanced_losses, balanced_shares, in_nats=True),
    "logme": Criterion(logme, in_nats=True),
    "ridge": Criterion(ridge_losses, lambda targets: targets.shares, in_nats=True),
    "h_score": Criterion(h_score, kinds=CLASSES),
    "variability": Criterion(variability, kinds=CLASSES),
    "effective_rank": Criterion(effective_rank, kinds=frozenset()),
}
