"""`EmbeddingBlocks`: a 2-D array that knows where one embedding ends and the next begins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import EllipsisType, MappingProxyType
from typing import Any, TypeGuard

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import ArrayLike, DTypeLike, NDArray
from scipy import sparse

Block = Any  # a 2-D ndarray or a scipy CSR array


class EmbeddingBlocks(NDArrayOperatorsMixin):
    """Named blocks of columns over the same rows, which scikit-learn takes for a 2-D array.

    Taking rows (``X[rows]`` or ``X[rows, :]`` with a slice, integers or booleans) keeps the
    blocks. Taking columns, and every numpy operation, gives a plain array of all columns: a
    boundary can be lost, but never be wrong.

    Parameters
    ----------
    blocks : mapping of str to array-like, or sequence of array-like, each (n_samples, width)
        The blocks in their order. Arrays are not copied; scipy sparse blocks stay sparse until a
        plain array is asked for.
    names : sequence of str or None, default=None
        The names of a sequence's blocks; None names them "block0", "block1" and so on.
    feature_names : sequence of str or None, default=None
        Names of all columns.

    Attributes
    ----------
    names : tuple of str
        The blocks' names.
    blocks : mapping of str to ndarray (or CSR array)
        The blocks themselves; read only.
    block_sizes : dict of str to int
        Their widths.
    slices : dict of str to slice
        Their columns, in the form of ``ColumnTransformer.output_indices_``.
    feature_names : tuple of str or None
        Names of all columns, where they were given.
    shape : tuple of int
        Rows and columns.
    dtype : numpy.dtype
        What the plain array has: the blocks' common dtype.
    ndim : int
        2.

    Raises
    ------
    ValueError
        If there is no block, one is not 2-D, row counts differ, or names do not fit: they must
        be different and not empty. In frames the last "__" separates block and feature.

    Examples
    --------
    >>> import numpy as np
    >>> from skfusion import EmbeddingBlocks
    >>> X = EmbeddingBlocks({"a": np.zeros((4, 2)), "b": np.ones((4, 3))})
    >>> X
    EmbeddingBlocks(a: 2, b: 3; shape=(4, 5), dtype=float64)
    >>> X[1:3]
    EmbeddingBlocks(a: 2, b: 3; shape=(2, 5), dtype=float64)
    >>> X[:1] + 1
    array([[1., 1., 2., 2., 2.]])
    >>> X.slices
    {'a': slice(0, 2, None), 'b': slice(2, 5, None)}
    """

    def __init__(
        self,
        blocks: Mapping[str, ArrayLike] | Sequence[ArrayLike],
        names: Sequence[str] | None = None,
        *,
        feature_names: Sequence[str] | None = None,
    ) -> None:
        self._blocks = _name_blocks(blocks, names)
        _check_rows(self._blocks)
        self.feature_names = None if feature_names is None else tuple(map(str, feature_names))
        n_columns = self.shape[1]
        if self.feature_names is not None and len(self.feature_names) != n_columns:
            raise ValueError(
                f"{len(self.feature_names)} feature_names for {n_columns} columns. Give one for "
                f"each column of all blocks."
            )

    # --- what it is ---------------------------------------------------------------------------

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the blocks."""
        return tuple(self._blocks)

    @property
    def blocks(self) -> Mapping[str, Block]:
        """The blocks by name."""
        return MappingProxyType(self._blocks)

    @property
    def block_sizes(self) -> dict[str, int]:
        """Width of each block."""
        return {name: block.shape[1] for name, block in self._blocks.items()}

    @property
    def slices(self) -> dict[str, slice]:
        """Columns of each block."""
        return to_slices(self.block_sizes)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        rows = next(iter(self._blocks.values())).shape[0]
        return rows, sum(block.shape[1] for block in self._blocks.values())

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return 2

    @property
    def size(self) -> int:
        """Number of entries."""
        return self.shape[0] * self.shape[1]

    @property
    def dtype(self) -> np.dtype[Any]:
        """Common dtype of the blocks."""
        return np.result_type(*(block.dtype for block in self._blocks.values()))

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[NDArray[Any]]:
        return (self._row(i) for i in range(len(self)))

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name}: {size}" for name, size in self.block_sizes.items())
        return f"{type(self).__name__}({sizes}; shape={self.shape}, dtype={self.dtype})"

    # --- numpy --------------------------------------------------------------------------------

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        # Nothing is kept: a kept array would go stale when somebody writes to it or to a block.
        blocks = [densify(block) for block in self._blocks.values()]
        if len(blocks) == 1:
            return np.array(blocks[0], dtype=dtype, copy=copy)
        if copy is False:
            raise ValueError(f"{len(blocks)} blocks cannot become one array without a copy.")
        return np.concatenate(blocks, axis=1, dtype=dtype or self.dtype)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if any(isinstance(out, EmbeddingBlocks) for out in kwargs.get("out", ())):
            return NotImplemented
        plain = [np.asarray(x) if isinstance(x, EmbeddingBlocks) else x for x in inputs]
        return getattr(ufunc, method)(*plain, **kwargs)

    # --- rows and blocks ----------------------------------------------------------------------

    def __getitem__(self, key: Any) -> Any:
        rows = key
        if isinstance(key, tuple) and 1 <= len(key) <= 2 and all(map(_takes_all, key[1:])):
            rows = key[0]
        if isinstance(rows, int | np.integer) and not isinstance(rows, bool):
            return self._row(int(rows))
        if isinstance(rows, EllipsisType):
            rows = slice(None)
        if isinstance(rows, slice):
            return self._with({name: block[rows] for name, block in self._blocks.items()})
        if not isinstance(rows, tuple) and (index := _row_index(rows)) is not None:
            return self._with({name: block[index] for name, block in self._blocks.items()})
        return np.asarray(self)[key]

    def select(self, names: Sequence[str]) -> EmbeddingBlocks:
        """Keep some blocks, in the order asked for.

        Parameters
        ----------
        names : sequence of str
            The blocks to keep.

        Returns
        -------
        EmbeddingBlocks
            Those blocks, not copied.

        Raises
        ------
        ValueError
            If a name is unknown.
        """
        unknown = [name for name in names if name not in self._blocks]
        if unknown:
            raise ValueError(f"There is no block {unknown[0]!r}. Blocks: {', '.join(self.names)}.")
        features = None
        if self.feature_names is not None:
            cuts = self.slices
            features = [f for name in names for f in self.feature_names[cuts[name]]]
        chosen = {name: self._blocks[name] for name in names}
        return EmbeddingBlocks(chosen, feature_names=features)

    def _row(self, i: int) -> NDArray[Any]:
        rows = [block[i : i + 1 or None] for block in self._blocks.values()]
        if not -len(self) <= i < len(self):
            raise IndexError(f"row {i} is out of range for {len(self)} rows")
        return np.concatenate([densify(row)[0] for row in rows], dtype=self.dtype)

    def _with(self, blocks: dict[str, Block]) -> EmbeddingBlocks:
        """Take other rows of the same blocks: nothing has to be checked again."""
        taken = object.__new__(EmbeddingBlocks)
        taken._blocks = blocks
        taken.feature_names = self.feature_names
        return taken


def to_slices(sizes: Mapping[str, int]) -> dict[str, slice]:
    """Turn widths into adjacent columns, in the form of ``ColumnTransformer.output_indices_``.

    Examples
    --------
    >>> to_slices({"a": 2, "b": 3})
    {'a': slice(0, 2, None), 'b': slice(2, 5, None)}
    """
    slices, start = {}, 0
    for name, size in sizes.items():
        slices[name] = slice(start, start + size)
        start += size
    return slices


def densify(block: Block) -> NDArray[Any]:
    """Return a block as an ndarray, which it mostly is already."""
    dense: NDArray[Any] = block.toarray() if sparse.issparse(block) else block
    return dense


def _name_blocks(
    blocks: Mapping[str, ArrayLike] | Sequence[ArrayLike], names: Sequence[str] | None
) -> dict[str, Block]:
    if isinstance(blocks, Mapping):
        if names is not None:
            raise ValueError("names are given twice: as keys of `blocks` and as `names`.")
        names, arrays = list(blocks), list(blocks.values())
    else:
        arrays = list(blocks)
        names = [f"block{i}" for i in range(len(arrays))] if names is None else list(names)
    if not arrays or len(names) != len(arrays):
        raise ValueError(
            f"{len(names)} names for {len(arrays)} blocks. Give one each, one at least."
        )
    check_block_names(names)
    return {name: _to_block(name, array) for name, array in zip(names, arrays, strict=True)}


def check_block_names(names: Sequence[str]) -> None:
    """Refuse names that are empty, no str, or twice there."""
    bad = [name for name in names if not isinstance(name, str) or not name]
    if bad:
        raise ValueError(f"Block name {bad[0]!r} must be a non-empty str.")
    if len(set(names)) < len(names):
        raise ValueError(f"Block names must be different, got {', '.join(names)}.")


def _to_block(name: str, array: Any) -> Block:
    block = array.tocsr() if sparse.issparse(array) else np.asarray(array)
    if block.ndim != 2:
        raise ValueError(f"Block {name!r} must be 2-D, got shape {block.shape}.")
    return block


def _check_rows(blocks: Mapping[str, Block]) -> None:
    rows = {name: block.shape[0] for name, block in blocks.items()}
    if len(set(rows.values())) > 1:
        listed = ", ".join(f"{name}: {n}" for name, n in rows.items())
        raise ValueError(f"Blocks must have the same rows, got {listed}.")


def _takes_all(key: Any) -> TypeGuard[slice]:
    return isinstance(key, EllipsisType) or (isinstance(key, slice) and key == slice(None))


def _row_index(rows: Any) -> NDArray[Any] | None:
    """Return the index of rows as an array, or None where `rows` is something else."""
    index = np.asarray(rows)
    if index.ndim == 1 and index.size == 0 and index.dtype != bool:
        return index.astype(np.intp)
    return index if index.ndim == 1 and index.dtype.kind in "biu" else None


def output_layout(
    inputs: Mapping[str, slice], width: int, fused: str | None, *, with_blocks: bool
) -> dict[str, slice]:
    """Lay out the blocks, where they are part of an output, and the fused part after them.

    Underscores are added to the fused part's name while a block has it; None is no such part.

    Examples
    --------
    >>> output_layout({"a": slice(0, 2)}, 5, "sum", with_blocks=True)
    {'a': slice(0, 2, None), 'sum': slice(2, 5, None)}
    """
    sizes: dict[str, int] = {}
    if with_blocks:
        sizes = {name: cut.stop - cut.start for name, cut in inputs.items()}
    if fused is not None:
        while fused in inputs:
            fused += "_"
        sizes[fused] = width - sum(sizes.values())
    return to_slices(sizes)


def output_names(
    inputs: Mapping[str, slice],
    outputs: Mapping[str, slice],
    operator: str,
    columns: Sequence[str] | None,
) -> NDArray[np.object_]:
    """Name an output's columns: of blocks by their own names, fused ones ``{operator}{i}``.

    Examples
    --------
    >>> output_names({"a": slice(0, 1)}, {"a": slice(0, 1), "sum": slice(1, 3)}, "sum", None)
    array(['a__0', 'sum0', 'sum1'], dtype=object)
    """
    names: list[str] = []
    for part, cut in outputs.items():
        n = cut.stop - cut.start
        if part not in inputs:
            names += [f"{operator}{i}" for i in range(n)]
        elif columns is None:
            names += [f"{part}__{i}" for i in range(n)]
        else:
            names += columns[inputs[part]]
    return np.array(names, dtype=object)
