"""One reader of y: its kind, in scikit-learn's words, and the forms that models learn from."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.utils import assert_all_finite, check_consistent_length
from sklearn.utils.multiclass import type_of_target
from sklearn.utils.validation import _check_y, column_or_1d

#: The words of `sklearn.utils.multiclass.type_of_target`.
Kind = Literal[
    "binary", "multiclass", "multilabel-indicator", "continuous", "continuous-multioutput"
]
CLASSES: frozenset[Kind] = frozenset({"binary", "multiclass"})
LABELS: frozenset[Kind] = frozenset({"multilabel-indicator"})
NUMBERS: frozenset[Kind] = frozenset({"continuous", "continuous-multioutput"})


@dataclass(frozen=True)
class Targets:
    """Checked targets: one column per class, per label or per output, and one weight per row."""

    kind: Kind
    matrix: NDArray[np.float64]  # (n_samples, n_outputs): one-hot, 0/1, or numbers
    codes: NDArray[np.intp]  # (n_samples,): the class, the set of labels, or 0 for numbers
    classes: NDArray[Any] | None  # sorted; 0 to n_labels - 1 for labels, None for numbers
    weights: NDArray[np.float64]  # (n_samples,)

    def __len__(self) -> int:
        return len(self.matrix)

    @property
    def shares(self) -> NDArray[np.float64]:
        """Return each row's share of the total weight."""
        shares: NDArray[np.float64] = self.weights / self.weights.sum()
        return shares

    def take(self, rows: NDArray[Any]) -> Targets:
        """Return the targets of some rows."""
        return replace(
            self, matrix=self.matrix[rows], codes=self.codes[rows], weights=self.weights[rows]
        )

    def weighted(self, weights: NDArray[np.float64]) -> Targets:
        """Return the same targets with other weights."""
        return replace(self, weights=weights)

    def balance(self, counts: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the factor per row that makes classes weigh the same; `counts` are weights."""
        sums = counts @ self.matrix
        factors = counts.sum() / (np.count_nonzero(sums) * np.where(sums > 0, sums, 1.0))
        balanced: NDArray[np.float64] = factors[self.codes]
        return balanced


def require_y(y: Any, owner: Any, why: str = "") -> None:
    """Refuse a missing y, in the words that scikit-learn's checks look for."""
    if y is None:
        raise ValueError(
            f"This {type(owner).__name__} estimator requires y to be passed, but the target y is "
            f"None{why and ': '}{why}."
        )


def read_targets(
    y: Any,
    kinds: Collection[Kind],
    why: str,
    *,
    n_rows: int | None = None,
    classes: NDArray[Any] | None = None,
) -> Targets:
    """Check y and bring it into the forms that models learn from.

    Where numbers alone are accepted, whole numbers are numbers; otherwise they are classes, as
    everywhere in scikit-learn. `why` says in a message what takes these kinds and no others;
    `classes` are those that there may be, where they are known.
    """
    if not set(kinds) - NUMBERS:
        return _read_numbers(y)
    y = y.toarray() if sparse.issparse(y) else np.asarray(y)
    if y.ndim == 2 and y.shape[1] == 1:
        y = column_or_1d(y, warn=True)
    if y.dtype.kind in "fO":
        assert_all_finite(y, input_name="y")
    if n_rows is not None:
        check_consistent_length(y, np.empty(n_rows))
    kind = type_of_target(y, input_name="y")
    if kind not in kinds:
        raise ValueError(f"Unknown label type: y is {kind!r}, but {why}.")
    if kind in NUMBERS:
        return _read_numbers(y)
    if kind in LABELS:
        matrix = y.astype(np.float64)
        codes = np.unique(matrix, axis=0, return_inverse=True)[1].ravel()
        return Targets(kind, matrix, codes, np.arange(matrix.shape[1]), np.ones(len(y)))
    return _read_classes(y, kind, classes)


def _read_numbers(y: Any) -> Targets:
    y = _check_y(y, multi_output=True, y_numeric=True)
    if y.ndim == 2 and y.shape[1] == 1:
        y = column_or_1d(y, warn=True)
    kind: Kind = "continuous" if y.ndim == 1 else "continuous-multioutput"
    matrix = y.reshape(len(y), -1).astype(np.float64)
    return Targets(kind, matrix, np.zeros(len(y), dtype=np.intp), None, np.ones(len(y)))


def _read_classes(y: NDArray[Any], kind: Kind, classes: NDArray[Any] | None) -> Targets:
    y = column_or_1d(y)
    known = np.unique(y if classes is None else classes)
    if len(known) < 2:
        raise ValueError(
            f"y must hold two classes at least to learn from, got 1 class: "
            f"{known.tolist()[0]!r} (n_samples={len(y)})."
        )
    extra = np.setdiff1d(y, known)
    if len(extra):
        raise ValueError(
            f"y holds classes {extra.tolist()} that are not in classes={known.tolist()}."
        )
    codes = np.searchsorted(known, y)
    return Targets(kind, np.eye(len(known))[codes], codes, known, np.ones(len(y)))
