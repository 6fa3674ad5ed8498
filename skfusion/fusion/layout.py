"""Where the parts of `FusionTransformer`'s output are, and the names of its columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from .._blocks import to_slices


def output_layout(
    inputs: Mapping[str, slice], width: int, fused: str | None, *, with_blocks: bool
) -> dict[str, slice]:
    """Lay out the blocks, where they are part of the output, and the fused part after them.

    Parameters
    ----------
    inputs : mapping of str to slice
        The input's columns of each block.
    width : int
        Number of output columns.
    fused : str or None
        Name of the fused part; None where there is none. Underscores are added to it while a
        block has that name.
    with_blocks : bool
        Whether the output holds the blocks.

    Returns
    -------
    dict of str to slice
        The output's columns of each part.

    Examples
    --------
    >>> from skfusion.fusion.layout import output_layout
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
    """Name the output's columns.

    Parameters
    ----------
    inputs, outputs : mapping of str to slice
        Columns of the input's blocks and of the output's parts.
    operator : str
        The operator's name.
    columns : sequence of str or None
        Names of the input's columns; None names them ``{block}__{i}``.

    Returns
    -------
    ndarray of str objects
        The blocks' columns by their own names, fused ones as ``{operator}{i}``.

    Examples
    --------
    >>> from skfusion.fusion.layout import output_names
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
