"""Where one block of an input's columns ends and the next begins, and reading inputs by block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_array
from sklearn.utils.validation import validate_data

from ._blocks import EmbeddingBlocks, check_block_names, densify, to_slices

_FLOATS = [np.float64, np.float32]
SINGLE = "single"


def find_boundaries(X: Any, block_sizes: Any = None) -> dict[str, slice]:
    """Return the columns of each block: by `block_sizes`, by `X` itself, or by column names.

    Examples
    --------
    >>> import numpy as np
    >>> find_boundaries(np.zeros((4, 5)), [2, 3])
    {'block0': slice(0, 2, None), 'block1': slice(2, 5, None)}
    """
    n_features = X.shape[1]
    if block_sizes is not None:
        return _from_sizes(block_sizes, n_features)
    if isinstance(X, EmbeddingBlocks):
        return X.slices
    columns = frame_columns(X)
    bare = [c for c in columns or () if not c.rpartition("__")[0]]
    if bare:
        raise ValueError(
            f"Column {bare[0]!r} of X does not say to which block it belongs. Name the columns "
            f"'block__feature', as FeatureUnion(...).set_output(transform='pandas') does, or pass "
            f"block_sizes=[...], or block_sizes='single' to take all columns for one block."
        )
    if columns is not None:
        return _from_columns(columns)
    raise ValueError(
        f"X is a plain array of {n_features} columns that does not say where one block ends and "
        f"the next begins. A step before this one, such as StandardScaler or ColumnTransformer, "
        f"turns the blocks of EmbedderUnion into a plain array: leave it out (each block is "
        f"scaled by itself, scale='standard'), or let all steps hand on frames, whose columns "
        f"name the blocks, with Pipeline.set_output(transform='pandas'), or pass "
        f"block_sizes=[...] with the width of each block, or block_sizes='single' to take all "
        f"columns for one block."
    )


def _from_sizes(block_sizes: Any, n_features: int) -> dict[str, slice]:
    if isinstance(block_sizes, str):
        if block_sizes != SINGLE:
            raise ValueError(_explain_sizes(block_sizes))
        return to_slices({"block0": n_features})
    if not isinstance(block_sizes, Mapping | Sequence | np.ndarray) or not len(block_sizes):
        raise ValueError(_explain_sizes(block_sizes))
    if isinstance(block_sizes, Mapping):
        sizes = dict(block_sizes)
        check_block_names(list(sizes))
    else:
        sizes = {f"block{i}": size for i, size in enumerate(block_sizes)}
    if not all(isinstance(n, int | np.integer) and n >= 1 for n in sizes.values()):
        raise ValueError(_explain_sizes(block_sizes))
    total = sum(sizes.values())
    if total != n_features:
        raise ValueError(
            f"block_sizes={block_sizes!r} add up to {total}, but X has {n_features} columns. Give "
            f"the width of every block, in the order of the columns."
        )
    return to_slices({name: int(n) for name, n in sizes.items()})


def _explain_sizes(block_sizes: Any) -> str:
    return (
        f"block_sizes={block_sizes!r} must be a list of widths such as [384, 576], a dict of "
        f"names to widths, 'single' or None."
    )


def _from_columns(columns: Sequence[str]) -> dict[str, slice]:
    """Cut names at their last "__", which keeps the innermost block of nested names.

    A feature that holds "__" itself, as a word of a text may, would make a block of its own:
    where that can be seen, it is refused.
    """
    advice = (
        "The last '__' of a name separates block and feature. Sort the columns by block, rename "
        "features that hold '__' themselves, or pass block_sizes=[...]."
    )
    first: dict[str, str] = {}  # a column of each block
    sizes: dict[str, int] = {}
    previous = None
    for column in columns:
        block = column.rpartition("__")[0]
        if block in sizes and block != previous:
            raise ValueError(
                f"The columns of block {block!r} are not adjacent in X: columns of block "
                f"{previous!r}, such as {first[str(previous)]!r}, stand between them. {advice}"
            )
        first.setdefault(block, column)
        sizes[block] = sizes.get(block, 0) + 1
        previous = block
    for block, column in first.items():
        outer = block.rpartition("__")[0]
        while outer:
            if outer in sizes:
                raise ValueError(
                    f"Column {column!r} of X may be of block {block!r}, or of block {outer!r}, "
                    f"which is there too. {advice}"
                )
            outer = outer.rpartition("__")[0]
    return to_slices(sizes)


def frame_columns(X: Any) -> list[str] | None:
    """Return the column names of a data frame; None of others and of names that are no str."""
    frame = nw.from_native(X, eager_only=True, pass_through=True)
    if not isinstance(frame, nw.DataFrame):
        return None
    columns: list[Any] = list(frame.columns)
    return columns if all(isinstance(c, str) for c in columns) else None


def read_blocks(
    estimator: Any, X: Any, block_sizes: Any = None, *, reset: bool
) -> dict[str, NDArray[Any]]:
    """Validate an input as scikit-learn does and return its blocks by name, of one float dtype.

    With `reset`, in `fit`, it sets ``block_indices_``, ``n_features_in_`` and, where columns are
    named, ``feature_names_in_`` of the estimator; otherwise it holds the input to them. Blocks are
    views of the input where that has their dtype.
    """
    if isinstance(X, EmbeddingBlocks) and block_sizes is None:
        return _read_embedding_blocks(estimator, X, reset)
    array = _read_array(estimator, X, reset)
    if reset:
        source = X if frame_columns(X) is not None else array
        estimator.block_indices_ = find_boundaries(source, block_sizes)
    return {name: array[:, cut] for name, cut in estimator.block_indices_.items()}


def check_block(estimator: Any, X: EmbeddingBlocks, name: str) -> NDArray[Any]:
    """Return one block of an input as a finite float array."""
    block: NDArray[Any] = check_array(
        densify(X.blocks[name]),
        dtype=_FLOATS,
        estimator=estimator,
        input_name=f"block {name!r}",
    )
    return block


def _read_array(estimator: Any, X: Any, reset: bool) -> NDArray[Any]:
    frame = nw.from_native(X, eager_only=True, pass_through=True)
    if not isinstance(frame, nw.DataFrame) or frame.implementation.is_pandas_like():
        array: NDArray[Any] = validate_data(estimator, X, reset=reset, dtype=_FLOATS)
        return array
    # scikit-learn knows dtypes of pandas only, and would make float64 of polars' float32.
    validate_data(estimator, X, reset=reset, skip_check_array=True)
    array = check_array(frame.to_numpy(), dtype=_FLOATS, estimator=estimator, input_name="X")
    return array


def _read_embedding_blocks(
    estimator: Any, X: EmbeddingBlocks, reset: bool
) -> dict[str, NDArray[Any]]:
    blocks = {name: check_block(estimator, X, name) for name in X.names}
    if reset:
        estimator.block_indices_ = X.slices
        estimator.n_features_in_ = X.shape[1]
        estimator.__dict__.pop("feature_names_in_", None)
        if X.feature_names is not None:
            estimator.feature_names_in_ = np.array(X.feature_names, dtype=object)
    elif X.slices != estimator.block_indices_:
        fitted = ", ".join(f"{k}: {c.stop - c.start}" for k, c in estimator.block_indices_.items())
        given = ", ".join(f"{k}: {n}" for k, n in X.block_sizes.items())
        raise ValueError(
            f"X has blocks {given} ({X.shape[1]} features), but {type(estimator).__name__} is "
            f"expecting {estimator.n_features_in_} features in the blocks {fitted} of fit."
        )
    common = np.result_type(*blocks.values())
    return {name: block.astype(common, copy=False) for name, block in blocks.items()}
