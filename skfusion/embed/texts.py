"""What counts as a text input, and the key under which a text is stored."""

from __future__ import annotations

import hashlib
import re
from array import array
from collections import Counter, UserString
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, Literal

import narwhals.stable.v2 as nw
import numpy as np
from narwhals.exceptions import DuplicateError
from numpy.typing import NDArray

from .._targets import is_missing, name_positions

Missing = Literal["error", "empty"]

KEY_BYTES = 16
#: A pair that stands for one character, as JSON escapes have it, or one without its partner.
_SURROGATES = re.compile("[\ud800-\udbff][\udc00-\udfff]|[\ud800-\udfff]")
_ACCEPTED = (
    "a list or another sequence of str, a 1-D array of str (numpy, pandas, pyarrow), a Series, or "
    "a data frame of one column"
)
_SINGLE = (str, bytes, bytearray, UserString)
_SEQUENCE = ("__len__", "__getitem__", "__iter__")


def check_texts(X: Any, *, missing: Missing = "error") -> list[str]:
    """Return any accepted container of texts as a list of plain ``str``.

    A UTF-16 surrogate pair becomes the character it stands for; lone surrogates, which no encoder
    can write, are replaced by U+FFFD.

    Examples
    --------
    >>> check_texts(["one", None], missing="empty")
    ['one', '']
    """
    values = as_sequence(X)
    texts: list[str] = []
    absent: list[int] = []
    for position, value in enumerate(values):
        if not isinstance(value, str) and hasattr(value, "as_py"):  # a pyarrow scalar
            value = value.as_py()
        if isinstance(value, str):
            texts.append(encodable(value))
        elif is_missing(value):
            absent.append(position)
            texts.append("")
        else:
            raise TypeError(
                f"Every text must be a str; got {type(value).__name__} {_short(value)} at "
                f"position {position}. Decode bytes and turn other values into str first."
            )
    if absent and missing == "error":
        raise ValueError(
            f"{len(absent)} of {len(texts)} texts are missing (None or NaN), at position "
            f"{name_positions(absent)}. Fill or drop them, or use missing='empty' to treat "
            f"them as ''."
        )
    return texts


def encodable(text: str) -> str:
    """Join surrogate pairs and replace lone ones, for which there is no UTF-8."""
    # str.__str__ makes an exact str of a subclass (np.str_, StrEnum) without its repr.
    return _SURROGATES.sub(_join_surrogates, str.__str__(text))


def _join_surrogates(found: re.Match[str]) -> str:
    pair = found.group()
    return pair.encode("utf-16", "surrogatepass").decode("utf-16") if pair[1:] else "\ufffd"


def text_keys(texts: Sequence[str]) -> NDArray[np.bytes_]:
    """Return the 16-byte blake2b hash of each text, under which its vectors are stored."""
    digests = b"".join(
        hashlib.blake2b(text.encode("utf-8"), digest_size=KEY_BYTES).digest() for text in texts
    )
    return np.frombuffer(digests, dtype=f"S{KEY_BYTES}")


def as_sequence(X: Any) -> Sequence[Any]:
    """Return the entries of a container of texts, without looking at them."""
    if isinstance(X, list | tuple):
        return X
    if isinstance(X, _SINGLE):
        raise TypeError(
            f"Expected a collection of texts, got a single {type(X).__name__} {_short(X)}. "
            f"Wrap it in a list: [text]."
        )
    if isinstance(X, Mapping | Set):
        raise TypeError(f"Expected {_ACCEPTED}; got a {type(X).__name__}, which has no row order.")
    if isinstance(X, np.ndarray):
        return _from_numpy(X)
    if hasattr(X, "to_pylist") and not hasattr(X, "column_names"):  # pyarrow Array, ChunkedArray
        values: list[Any] = X.to_pylist()
        return values
    try:
        native = nw.from_native(X, allow_series=True, pass_through=True)
        columns = native.columns if isinstance(native, nw.DataFrame) else ()
    except DuplicateError as error:
        raise ValueError(_twice(X)) from error
    if isinstance(native, nw.DataFrame):
        if len(columns) != 1:
            raise ValueError(
                f"Expected one column of texts, got a {type(X).__name__} with "
                f"{len(columns)} columns: {columns[:10]}. Select one, for example "
                f"with a ColumnTransformer."
            )
        native = native.get_column(columns[0])
    if isinstance(native, nw.Series):
        return native.to_list()
    if hasattr(X, "column_names"):  # a table of a library that narwhals does not read
        raise TypeError(
            f"Expected {_ACCEPTED}; got a {type(X).__name__} of the columns "
            f"{list(X.column_names)[:10]}. Pass one of them, such as X[{X.column_names[0]!r}]."
        )
    ordered = all(hasattr(X, name) for name in _SEQUENCE) and not hasattr(X, "keys")
    if ordered and not isinstance(X, memoryview | array):
        return list(X)  # a deque, an index, an extension array, a column that is read lazily
    once = isinstance(X, Iterable) and not hasattr(X, "__getitem__")
    hint = " Turn it into a list first: list(X)." if once else ""
    raise TypeError(f"Expected {_ACCEPTED}; got {type(X).__name__}.{hint}")


def _twice(X: Any) -> str:
    names = list(getattr(X, "column_names", None) or X.columns)
    name, count = Counter(names).most_common(1)[0]
    return (
        f"Expected one column of texts, got a {type(X).__name__} of {len(names)} columns, "
        f"{count} of which are named {name!r}: the name selects all of them. Rename them, or "
        f"select one by its place, such as df.iloc[:, {names.index(name)}]."
    )


def splittable(X: Any) -> Any:
    """Return an index or array of pandas, which scikit-learn may fail to split, as numpy's."""
    pandas = type(X).__module__.partition(".")[0] == "pandas"
    return np.asarray(X) if pandas and not hasattr(X, "iloc") else X


def _from_numpy(X: NDArray[Any]) -> Sequence[Any]:
    if X.ndim == 2 and X.shape[1] == 1:
        X = X[:, 0]
    if X.ndim != 1:
        raise ValueError(
            f"Expected a 1-D array of texts or a single column, got an array of shape {X.shape}."
        )
    if X.dtype.kind not in "UTO":
        raise TypeError(
            f"Expected an array of str, got dtype {X.dtype}. Turn the values into str first."
        )
    values: list[Any] = X.tolist()
    return values


def _short(value: Any, width: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= width else text[: width - 3] + "..."
