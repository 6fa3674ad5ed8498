"""What counts as a text input, and the key under which a text is stored."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence, Set
from typing import Any, Literal

import narwhals.stable.v2 as nw
import numpy as np
from numpy.typing import NDArray

Missing = Literal["error", "empty"]

KEY_BYTES = 16
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_ACCEPTED = (
    "a list or tuple of str, a 1-D numpy array of str, a pandas or polars Series, a pyarrow "
    "Array, or a data frame of one column"
)
_MAX_NAMED_POSITIONS = 10


def check_texts(X: Any, *, missing: Missing = "error") -> list[str]:
    """Return any accepted container of texts as a list of plain ``str``.

    Lone surrogates, which no encoder can write, are replaced by U+FFFD.

    Examples
    --------
    >>> check_texts(["one", None], missing="empty")
    ['one', '']
    """
    values = as_sequence(X)
    texts: list[str] = []
    absent: list[int] = []
    for position, value in enumerate(values):
        if isinstance(value, str):
            # str.__str__ makes an exact str of a subclass (np.str_, StrEnum) without its repr.
            texts.append(_LONE_SURROGATE.sub("\ufffd", str.__str__(value)))
        elif _is_missing(value):
            absent.append(position)
            texts.append("")
        else:
            raise TypeError(
                f"Every text must be a str; got {type(value).__name__} {_short(value)} at "
                f"position {position}. Decode bytes and turn other values into str first."
            )
    if absent and missing == "error":
        named = ", ".join(map(str, absent[:_MAX_NAMED_POSITIONS]))
        more = ", ..." if len(absent) > _MAX_NAMED_POSITIONS else ""
        raise ValueError(
            f"{len(absent)} of {len(texts)} texts are missing (None or NaN), at position "
            f"{named}{more}. Fill or drop them, or use missing='empty' to treat them as ''."
        )
    return texts


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
    if isinstance(X, str | bytes | bytearray):
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
    native = nw.from_native(X, allow_series=True, pass_through=True)
    if isinstance(native, nw.DataFrame):
        if len(native.columns) != 1:
            raise ValueError(
                f"Expected one column of texts, got a {type(X).__name__} with "
                f"{len(native.columns)} columns: {native.columns[:10]}. Select one, for example "
                f"with a ColumnTransformer."
            )
        native = native.get_column(native.columns[0])
    if isinstance(native, nw.Series):
        return native.to_list()
    raise TypeError(f"Expected {_ACCEPTED}; got {type(X).__name__}.")


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


def _is_missing(value: Any) -> bool:
    """Whether it is None, NaN of any float type, pandas.NA or NaT; without importing pandas."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float | np.floating) and bool(value != value)


def _short(value: Any, width: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= width else text[: width - 3] + "..."
