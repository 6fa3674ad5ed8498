"""`fit_many`: many heads at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone
from sklearn.utils import _safe_indexing

from .base import BaseFusionMLP
from .solvers import solve
from .stack import train_stacked


def fit_many(
    estimators: Sequence[BaseFusionMLP],
    X: ArrayLike,
    y: ArrayLike,
    folds: Sequence[ArrayLike],
    *,
    sample_weight: ArrayLike | None = None,
) -> list[list[BaseFusionMLP]]:
    """Fit a clone of every estimator on every fold, the networks of one shape as one.

    Networks that differ in weights and rows only are trained as one network whose weights have
    one more axis, each with the random numbers that it would have drawn alone, so that results
    are those of ``clone(estimator).fit(X[fold], y[fold])`` up to rounding. On a CPU networks of
    more than a million weights are trained one after the other, because arithmetic is all that
    their training consists of. What "auto" learns of a fold's rows before training is learnt
    once for all estimators.

    Parameters
    ----------
    estimators : sequence of FusionMLPClassifier or FusionMLPRegressor
        Candidates. Those with ``callbacks`` or ``warm_start=True`` are trained one by one.
    X : EmbeddingBlocks, data frame or array-like of shape (n_samples, n_features)
        Blocks of all rows.
    y : array-like of shape (n_samples,) or (n_samples, n_outputs)
        Their targets.
    folds : sequence of array-like of int or bool
        The training rows of each fold.
    sample_weight : array-like of shape (n_samples,) or None, default=None
        Weights of all rows.

    Returns
    -------
    list of list of estimators
        ``fitted[i][j]`` is estimator i, fitted on fold j.

    Raises
    ------
    TypeError
        If an estimator is neither of the two.
    ValueError, FloatingPointError
        As their `fit`.

    Examples
    --------
    >>> import numpy as np
    >>> from skfusion import FusionMLPClassifier
    >>> from skfusion.neural.many import fit_many
    >>> X, y = np.random.default_rng(0).normal(size=(40, 6)), np.arange(40) % 2
    >>> folds = [np.arange(0, 30), np.arange(10, 40)]
    >>> heads = [FusionMLPClassifier(dropout=p, random_state=0) for p in (0, 0.5)]
    >>> fitted = fit_many(heads, X, y, folds)
    >>> [len(row) for row in fitted]
    [2, 2]
    """
    for estimator in estimators:
        if not isinstance(estimator, BaseFusionMLP):
            raise TypeError(
                f"fit_many trains FusionMLPClassifier and FusionMLPRegressor, got {estimator!r}. "
                f"Fit others with joblib.Parallel."
            )
    fitted = [[clone(estimator) for _ in folds] for estimator in estimators]
    apart, together = [], []
    for j, fold in enumerate(folds):
        given = [_take(values, np.asarray(fold)) for values in (X, y, sample_weight)]
        for row in fitted:
            head = row[j]
            if head.callbacks or head.warm_start:
                apart.append((head, given))
            else:
                head._validate_params()
                together.append((head, head._make_task(*given)))
    trained = solve([task for _, task in together], train_stacked)
    for (head, task), result in zip(together, trained, strict=True):
        head._keep(task, result)
    for head, given in apart:
        head.fit(*given)
    return fitted


def _take(values: Any, rows: NDArray[Any]) -> Any:
    return None if values is None else _safe_indexing(values, rows)
