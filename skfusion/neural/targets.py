"""Targets of the neural head: classes, label indicators and numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import assert_all_finite
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import _check_y, column_or_1d


@dataclass(frozen=True)
class Targets:
    """Targets as a network takes them.

    Parameters
    ----------
    kind : {"softmax", "sigmoid", "squares"}
        Which of `LOSSES` they are for.
    matrix : ndarray of shape (n_samples, n_outputs)
        One-hot classes, indicators or numbers.
    codes : ndarray of int, shape (n_samples,)
        Groups that a split should share out: classes, sets of labels, or zeros.
    """

    kind: str
    matrix: NDArray[np.float64]
    codes: NDArray[np.intp]


def read_classes(y: Any, classes: Any = None) -> tuple[Targets, NDArray[Any]]:
    """Read the targets of a classifier.

    Parameters
    ----------
    y : array-like of shape (n_samples,) or (n_samples, n_labels)
        Classes of any kind, or a multilabel indicator.
    classes : array-like or None, default=None
        All classes there can be, for `partial_fit`.

    Returns
    -------
    targets : Targets
        One column a class, or a label.
    classes : ndarray
        The classes, sorted; for labels 0, 1, ..., n_labels - 1.

    Raises
    ------
    ValueError
        If y holds no classes, or some that are not in `classes`.
    """
    _check_finite(y)
    check_classification_targets(y)
    kind = type_of_target(y, input_name="y")
    if kind == "multilabel-indicator":
        matrix = np.asarray(y.toarray() if hasattr(y, "toarray") else y, dtype=np.float64)
        codes = np.unique(matrix, axis=0, return_inverse=True)[1].ravel()
        return Targets("sigmoid", matrix, codes), np.arange(matrix.shape[1])
    if kind == "multiclass-multioutput":
        raise ValueError(
            "Unknown label type: y has several columns that are no 0/1 indicators of labels. Use "
            "MultiOutputClassifier for several sets of classes."
        )
    y = column_or_1d(y, warn=True)
    known = np.unique(y if classes is None else classes)
    extra = np.setdiff1d(y, known)
    if len(extra):
        raise ValueError(
            f"y holds classes {extra.tolist()} that are not in classes={known.tolist()}."
        )
    codes = np.searchsorted(known, y)
    return Targets("softmax", np.eye(len(known))[codes], codes), known


def _check_finite(y: Any) -> None:
    values = y if hasattr(y, "dtype") else np.asarray(y)
    if getattr(values.dtype, "kind", "") == "f":
        assert_all_finite(values, input_name="y")


def read_numbers(y: Any) -> tuple[Targets, bool]:
    """Read the targets of a regressor.

    Parameters
    ----------
    y : array-like of shape (n_samples,) or (n_samples, n_outputs)
        Finite numbers.

    Returns
    -------
    targets : Targets
        One column an output.
    flat : bool
        Whether y was 1-D.

    Raises
    ------
    ValueError
        If y is not finite or not numeric.
    """
    y = _check_y(y, multi_output=True, y_numeric=True)
    flat = y.ndim == 1
    if y.ndim == 2 and y.shape[1] == 1:
        y, flat = column_or_1d(y, warn=True), True
    matrix = y.reshape(len(y), -1).astype(np.float64)
    return Targets("squares", matrix, np.zeros(len(y), dtype=np.intp)), flat
