"""Weights of blocks by the leave-one-out error of kernel ridge regression, in closed form.

With kernels K_1, ..., K_n of trace N, shares v on the simplex and K = Σ v_i K_i, the mean squared
error of `linear.ridge.leave_one_out_kernel` is a smooth function of v and λ whose gradient has a
closed form too, since dP = -P dM P.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import optimize
from scipy.special import softmax
from sklearn.model_selection import train_test_split

from .._targets import NUMBERS, Targets
from ..linear.ridge import leave_one_out_kernel

Floats = NDArray[np.float64]

MOST_ROWS = 1000
_FLAT = 1e-6  # of the logarithm of the error: no reason to prefer a block
_LOG_PENALTIES = (-9.0, 5.0)  # of λ, where the kernels' mean diagonal is 1


def ridge_weights(
    blocks: Sequence[NDArray[np.floating]], targets: Targets, rng: np.random.RandomState
) -> tuple[Floats, Floats]:
    """Return the weights w of blocks that are put side by side, and their kernels' shares v.

    Both are on the simplex. The kernel of [w_1 E_1 ‖ ... ‖ w_n E_n] is a multiple of Σ v_i K_i, so
    a wide block needs a small weight for the same share; a block that does not vary has share 0.
    Where there are more than 1,000 rows, that many are drawn, stratified by class.
    """
    if len(targets) > MOST_ROWS:
        rows = _sample(targets, rng)
        blocks, targets = [block[rows] for block in blocks], targets.take(rows)
    kernels, traces = _kernels(blocks)
    varying = traces > 0
    shares = np.zeros(len(blocks))
    if not varying.any():
        return np.full(len(blocks), 1 / len(blocks)), np.full(len(blocks), 1 / len(blocks))
    chosen = [kernel for kernel, varies in zip(kernels, varying, strict=True) if varies]
    shares[varying] = _best_shares(chosen, targets)
    weights = np.sqrt(np.divide(shares, traces, out=np.zeros(len(blocks)), where=varying))
    return weights / weights.sum(), shares


def _sample(targets: Targets, rng: np.random.RandomState) -> NDArray[np.intp]:
    everything = np.arange(len(targets))
    codes = None if targets.kind in NUMBERS else targets.codes
    if codes is not None and (np.bincount(codes).min() < 2 or codes.max() >= MOST_ROWS):
        codes = None  # a class too small to be split
    rows: NDArray[np.intp]
    rows, _ = train_test_split(everything, train_size=MOST_ROWS, stratify=codes, random_state=rng)
    return np.sort(rows)


def _kernels(blocks: Sequence[NDArray[np.floating]]) -> tuple[list[Floats], Floats]:
    """Return centred kernels of mean diagonal 1, and what their mean diagonal was."""
    kernels, traces = [], []
    for block in blocks:
        centred = block.astype(np.float64) - block.mean(axis=0, dtype=np.float64)
        kernel = centred @ centred.T
        trace = float(np.trace(kernel)) / len(kernel)
        kernels.append(kernel / (trace or 1.0))
        traces.append(trace)
    return kernels, np.array(traces)


def _best_shares(kernels: Sequence[Floats], targets: Targets) -> Floats:
    """Descend from the best of the uniform shares and the single blocks, where it pays."""
    n = len(kernels)
    starts = [np.full(n, 1 / n), *(0.9 * np.eye(n) + 0.1 / n)]
    if n == 1:
        return np.ones(1)
    tried = [_best_penalty(kernels, v, targets) for v in starts]
    best = int(np.argmin([loss for loss, _ in tried]))
    if tried[best][0] > tried[0][0] - _FLAT:
        best = 0  # equal blocks keep equal shares
    (_, penalty), shares = tried[best], starts[best]
    start = np.append(np.log(shares), penalty)
    bounds = [(-12.0, 12.0)] * n + [_LOG_PENALTIES]
    found = optimize.minimize(
        lambda at: _loss_and_slope(kernels, at, targets),
        start,
        jac=True,
        method="L-BFGS-B",
        bounds=bounds,
        options={"maxiter": 50, "ftol": 1e-5},
    )
    best_shares: Floats = softmax(found.x[:-1])
    return best_shares


def _best_penalty(
    kernels: Sequence[Floats], shares: Floats, targets: Targets
) -> tuple[float, float]:
    """Try a few λ at given shares; the descent refines the best."""
    with_penalty = [
        (_loss_and_slope(kernels, np.append(np.log(shares), at), targets, slope=False)[0], at)
        for at in np.linspace(-6.0, 3.0, 4)
    ]
    return min(with_penalty)


def _loss_and_slope(
    kernels: Sequence[Floats], at: Floats, targets: Targets, *, slope: bool = True
) -> tuple[float, Floats]:
    """Return the log mean squared error and its derivative by share logits and log λ."""
    shares, penalty = softmax(at[:-1]), float(np.exp(at[-1]))
    kernel = sum(v * K for v, K in zip(shares, kernels, strict=True))
    errors, P = leave_one_out_kernel(np.asarray(kernel), penalty, targets.matrix)
    row_weights = targets.weights[:, None] / len(P)
    loss = max(float((row_weights * errors**2).sum()), np.finfo(np.float64).tiny)
    if not slope:
        return np.log(loss), np.zeros(len(at))
    diagonal = np.diag(P)[:, None]
    toward_fit = 2 * row_weights * errors / diagonal
    toward_leverage = 2 * (row_weights * errors**2).sum(axis=1, keepdims=True) / diagonal
    # d loss = <by_kernel, dM>, from dP = -P dM P in both parts of errors = (P y) / diag(P).
    by_kernel = P @ (toward_leverage * P) - (P @ toward_fit) @ (P @ targets.matrix).T
    by_share = np.array([np.vdot(by_kernel, K) for K in kernels])
    by_logit = shares * (by_share - shares @ by_share)
    return np.log(loss), np.append(by_logit, penalty * np.trace(by_kernel)) / loss
