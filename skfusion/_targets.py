"""What layers are scored against: classes, labels or numbers, and what each row counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import assert_all_finite, check_consistent_length, compute_sample_weight
from sklearn.utils.multiclass import type_of_target
from sklearn.utils.validation import _check_sample_weight

from ._blocks import densify

Kind = Literal["classes", "labels", "numbers"]


@dataclass(frozen=True)
class LayerTargets:
    """Checked targets of rows that all count.

    Parameters
    ----------
    kind : {"classes", "labels", "numbers"}
        One class a row, any number of labels a row, or a regression.
    matrix : ndarray of float64, shape (n_samples, n_columns)
        Of classes, one column each with ones where a row is of it; of labels, two columns each,
        for rows without and with it; of a regression, its numbers.
    n_options : int
        How many adjacent columns exclude each other: the classes, 2 for labels, 1 for numbers.
    weights : ndarray of float64, shape (n_samples,)
        Above 0; 1 in the mean.
    rows : ndarray of int, shape (n_samples,)
        Where these rows stood among those that were given.
    """

    kind: Kind
    matrix: NDArray[np.float64]
    n_options: int
    weights: NDArray[np.float64]
    rows: NDArray[np.intp]

    @property
    def shares(self) -> NDArray[np.float64]:
        """Each row's share of the whole weight."""
        shares: NDArray[np.float64] = self.weights / self.weights.sum()
        return shares


def read_layer_targets(
    y: Any, n_rows: int, *, class_weight: Any = None, sample_weight: Any = None
) -> LayerTargets:
    """Check targets, and leave out rows without weight.

    Parameters
    ----------
    y : array-like of shape (n_samples,) or (n_samples, n_outputs)
        Classes, a label indicator matrix, or the numbers of a regression. Whole numbers are
        classes, as everywhere in scikit-learn.
    n_rows : int
        How many there must be.
    class_weight : dict, "balanced" or None, default=None
        As in `LogisticRegression`.
    sample_weight : array-like of shape (n_samples,) or None, default=None
        What each row counts.

    Returns
    -------
    LayerTargets
        The targets.

    Raises
    ------
    ValueError
        If y has another length, misses values, is of one class alone, or is of a kind that
        cannot be scored.

    Examples
    --------
    >>> from skfusion._targets import read_layer_targets
    >>> targets = read_layer_targets(["b", "a", "b"], 3)
    >>> targets.kind, targets.matrix.tolist()
    ('classes', [[0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
    """
    y = np.asarray(densify(y))
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    assert_all_finite(y, input_name="y")
    check_consistent_length(y, np.empty(n_rows))
    kind, matrix, n_options = _read(y)
    weights = _check_sample_weight(sample_weight, y, dtype=np.float64, ensure_non_negative=True)
    if class_weight is not None:
        if kind != "classes":
            raise ValueError(f"class_weight={class_weight!r} needs classes, but y holds {kind}.")
        weights = weights * compute_sample_weight(class_weight, y)
    rows = np.flatnonzero(weights > 0)
    if len(rows) < 2:
        raise ValueError(
            f"Layers are scored by leaving rows out, which takes two rows of positive weight at "
            f"least; got n_samples={len(rows)}."
        )
    weights = weights[rows] / weights[rows].mean()
    return LayerTargets(kind, matrix[rows], n_options, weights, rows)


def _read(y: NDArray[Any]) -> tuple[Kind, NDArray[np.float64], int]:
    found = type_of_target(y, input_name="y")
    if found in ("continuous", "continuous-multioutput"):
        return "numbers", y.astype(np.float64).reshape(len(y), -1), 1
    if found == "multilabel-indicator":
        present = y.astype(np.float64)
        return "labels", np.stack([1 - present, present], axis=2).reshape(len(y), -1), 2
    if found in ("binary", "multiclass"):
        classes, codes = np.unique(y, return_inverse=True)
        if len(classes) < 2:
            raise ValueError(
                f"y must hold two classes at least to score layers with it, got 1 class: "
                f"{classes[0]!r} (n_samples={len(y)})."
            )
        return "classes", np.eye(len(classes))[codes], len(classes)
    raise ValueError(
        f"Unknown label type: y is {found!r}. Layers can be scored with classes, a label "
        f"indicator matrix, or numbers."
    )
