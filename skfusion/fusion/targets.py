"""Targets for the parts of fusion that learn from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import assert_all_finite, check_consistent_length, column_or_1d
from sklearn.utils.multiclass import type_of_target


@dataclass(frozen=True)
class Targets:
    """Checked targets of the training rows.

    Parameters
    ----------
    matrix : ndarray of float64, shape (n_samples, n_classes or 1)
        One column a class with ones where a row is of it, or the numbers of a regression.
    codes : ndarray of int, shape (n_samples,), or None
        The class of each row; None in a regression.
    row_weights : ndarray of float64, shape (n_samples,)
        What each row counts; 1 in the mean.
    """

    matrix: NDArray[np.float64]
    codes: NDArray[np.intp] | None
    row_weights: NDArray[np.float64]

    def take(self, rows: NDArray[np.intp]) -> Targets:
        """Give the targets of some rows.

        Parameters
        ----------
        rows : ndarray of int
            Which rows.

        Returns
        -------
        Targets
            Theirs.
        """
        codes = None if self.codes is None else self.codes[rows]
        return Targets(self.matrix[rows], codes, self.row_weights[rows])


def read_targets(estimator: Any, y: Any, n_rows: int) -> Targets:
    """Check the targets of a `FusionTransformer` that learns from them.

    Parameters
    ----------
    estimator : FusionTransformer
        Whose they are; its ``class_weight`` and ``projection`` are read.
    y : array-like of shape (n_samples,)
        Classes or numbers.
    n_rows : int
        How many there must be.

    Returns
    -------
    Targets
        The targets.

    Raises
    ------
    ValueError
        If y is missing, of another length, of one class, or not of classes where a classifier is
        trained.
    """
    if y is None:
        raise ValueError(
            f"This {type(estimator).__name__} estimator requires y to be passed, but the target "
            f"y is None: operator='weighted' and projection='supervised' learn from it."
        )
    y = column_or_1d(y, warn=True)
    assert_all_finite(y, input_name="y")
    check_consistent_length(y, np.empty(n_rows))
    kind = type_of_target(y, input_name="y")
    if kind == "continuous" and estimator.operator == "weighted":
        return Targets(np.asarray(y, dtype=np.float64)[:, None], None, np.ones(n_rows))
    if kind not in ("binary", "multiclass"):
        raise ValueError(
            f"Unknown label type: y is {kind!r}, but projection='supervised' trains a classifier "
            f"and needs classes. Use projection='pca', which needs no y."
        )
    classes, codes = np.unique(y, return_inverse=True)
    if len(classes) < 2:
        raise ValueError(
            f"y must hold two classes at least to learn from, got 1 class: {classes[0]!r} "
            f"(n_samples={n_rows})."
        )
    weights = np.ones(n_rows)
    if estimator.class_weight == "balanced":
        weights = (n_rows / (len(classes) * np.bincount(codes)))[codes]
    return Targets(np.eye(len(classes))[codes], codes, weights)
