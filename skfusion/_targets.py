"""One reader of y: its kind, in scikit-learn's words, and the forms that models learn from."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import islice
from numbers import Number
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

Task = Literal["auto", "classification", "regression"]
TASKS: tuple[Task, ...] = ("auto", "classification", "regression")
_MOST_CLASSES, _ROWS_PER_CLASS = 20, 5
_MAX_NAMED_POSITIONS = 10


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

    def varying(self) -> Targets:
        """Return the targets without the labels or numbers that all rows of weight share."""
        matrix = self.matrix[self.weights > 0]
        varies = (matrix != matrix[:1]).any(axis=0)
        if not varies.any():
            raise ValueError(
                f"y is the same in all {len(matrix)} rows that have weight, so that nothing can "
                f"be learnt from it."
            )
        if self.kind in CLASSES:  # one column is as good as none: shares need all of them
            return self
        known = None if self.classes is None else self.classes[varies]
        return replace(self, matrix=self.matrix[:, varies], classes=known)

    def balance(self, counts: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the factor per row that makes classes weigh the same; `counts` are weights."""
        sums = counts @ self.matrix
        factors = counts.sum() / (np.count_nonzero(sums) * np.where(sums > 0, sums, 1.0))
        balanced: NDArray[np.float64] = factors[self.codes]
        return balanced


def is_missing(value: Any) -> bool:
    """Whether it is None, NaN or NaT of any type, or pandas.NA; without importing pandas."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    kinds = float | np.floating | Decimal | np.datetime64 | np.timedelta64
    return isinstance(value, kinds) and bool(value != value)


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
    task: Task | None = None,
) -> Targets:
    """Check y and bring it into the forms that models learn from.

    `task` says how numbers are read, "auto" by `is_regression`; None is for those who know: where
    numbers alone are accepted, all are numbers, and where none are, whole ones are classes, as
    everywhere in scikit-learn. `why` says in a message what takes these kinds and no others;
    `classes` are those that there may be, where they are known.
    """
    y = read_array(y)
    if y.ndim == 2 and y.shape[1] == 1:
        y = column_or_1d(y, warn=True)
    if n_rows is not None:
        check_consistent_length(y, np.empty(n_rows))
    if task is None and not set(kinds) - NUMBERS:
        task = "regression"
    elif task is None:
        task = "auto" if NUMBERS.intersection(kinds) else "classification"
    if task == "regression" or (task == "auto" and is_regression(y)):
        return _read_numbers(y, kinds, why, task)
    held = sorted({type(value).__name__ for value in y.flat}) if y.dtype.kind in "OmM" else []
    if set(held) - {"str"}:
        raise ValueError(f"Unknown label type: y holds {', '.join(held)} values, but {why}.")
    kind = type_of_target(y, input_name="y")
    if kind in LABELS and not _is_indicator(y):
        kind = "multiclass-multioutput"
    if kind in NUMBERS and kind in kinds:
        why = "task='classification' takes classes or labels"
    if kind in NUMBERS or kind not in kinds:
        raise ValueError(f"Unknown label type: y is {kind!r}, but {why}.")
    if kind in LABELS:
        matrix = y.astype(np.float64)
        codes = np.unique(matrix, axis=0, return_inverse=True)[1].ravel()
        return Targets(kind, matrix, codes, np.arange(matrix.shape[1]), np.ones(len(y)))
    return _read_classes(y, kind, classes)


def is_regression(y: NDArray[Any]) -> bool:
    """Whether an array holds numbers and not classes or labels: the one rule for it.

    Strings, booleans and whole numbers, also as floats, of at most 20 values or of no more values
    than a fifth of the rows, are classes. An indicator matrix of 0 and 1 holds labels.
    """
    if y.dtype.kind not in "iuf":
        return False
    if y.ndim > 1:
        return not _is_indicator(y)
    values = np.unique(y)
    most = max(_MOST_CLASSES, len(y) / _ROWS_PER_CLASS)
    return bool((values != np.rint(values)).any()) or len(values) > most


def _is_indicator(y: NDArray[Any]) -> bool:
    return bool(np.isin(y, (0, 1)).all())


def read_array(y: Any) -> NDArray[Any]:
    """Return y as an array of numbers, booleans or strings; refuse one that misses values."""
    array = y.toarray() if sparse.issparse(y) else np.asarray(y)
    if array.dtype.kind == "T":
        array = array.astype(object)
    # Beside strings numpy writes NaN out as "nan".
    given = np.array(y, dtype=object) if array.dtype.kind == "U" and array is not y else array
    _refuse_gaps(given)
    if array.dtype.kind == "O":
        array = _unwrap_numbers(array)
    if array.dtype.kind == "f":
        assert_all_finite(array, input_name="y")
    return array


def _refuse_gaps(y: NDArray[Any]) -> None:
    if y.dtype.kind == "O":
        missing = np.array([is_missing(value) for value in y.flat], dtype=bool).reshape(y.shape)
    elif y.dtype.kind in "fcmM":
        missing = y != y
    else:
        return
    if missing.any():
        rows = y.ndim < 2 or y.shape[1:] == (1,)
        where = np.flatnonzero(missing) if rows else map(tuple, np.argwhere(missing).tolist())
        raise ValueError(
            f"Input y contains NaN: y misses {np.count_nonzero(missing)} of {y.size} values, at "
            f"position {name_positions(where)}. Leave these rows out, or fill the gaps."
        )


def name_positions(positions: Iterable[Any]) -> str:
    """Return the first positions for a message."""
    first = [str(position) for position in islice(positions, _MAX_NAMED_POSITIONS + 1)]
    first[_MAX_NAMED_POSITIONS:] = ["..."] * len(first[_MAX_NAMED_POSITIONS:])
    return ", ".join(first)


def _unwrap_numbers(y: NDArray[Any]) -> NDArray[Any]:
    """Bring numbers and booleans that are Python's own, such as Decimal, to a dtype of numpy."""
    values = y.ravel().tolist()
    if not all(isinstance(value, Number | np.bool_) for value in values):
        return y
    made = np.array(values)
    return (made.astype(np.float64) if made.dtype.kind == "O" else made).reshape(y.shape)


def _read_numbers(
    y: NDArray[Any], kinds: Collection[Kind], why: str, task: Task | None
) -> Targets:
    if y.size and y.dtype.kind not in "biuf":
        first = y.ravel()[:1].tolist()[0]
        raise ValueError(
            f"A regression needs a y of numbers, got {type(first).__name__} values, such as "
            f"{first!r}."
        )
    y = _check_y(y, multi_output=True, y_numeric=True)
    kind: Kind = "continuous" if y.ndim == 1 else "continuous-multioutput"
    if kind not in kinds:
        whole = task == "auto" and bool((y == np.rint(y)).all())
        hint = " task='classification' takes whole numbers for classes." if whole else ""
        raise ValueError(f"Unknown label type: y is {kind!r}, but {why}.{hint}")
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
