"""Blocks of an input, scaled and side by side as one tensor."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._blocks import EmbeddingBlocks
from .._boundaries import SINGLE, check_block, read_blocks
from ..linear.scaling import Scaler

_LAYER = re.compile(r"^(?:(?P<model>.+)_)?layer\d+_(?P<pooling>.+)$")


@dataclass(frozen=True)
class Blocks:
    """An input that was read.

    Parameters
    ----------
    arrays : dict of str to ndarray of shape (n_samples, width)
        The blocks that are there, by name.
    """

    arrays: dict[str, NDArray[Any]]

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values())))


def read_input(estimator: Any, X: Any, *, reset: bool) -> Blocks:
    """Validate an input; a plain array or a frame without block names is one block.

    Parameters
    ----------
    estimator : estimator
        Whose input it is; ``block_indices_``, ``n_features_in_`` and ``feature_names_in_`` are
        set in `fit`.
    X : EmbeddingBlocks, data frame or array-like of shape (n_samples, n_features)
        The input. After `fit`, `EmbeddingBlocks` may lack blocks where ``view_dropout`` is not 0.
    reset : bool
        True in `fit`.

    Returns
    -------
    Blocks
        The blocks that are there.

    Raises
    ------
    ValueError
        If `X` is no finite 2-D input, or has other blocks than in `fit`.
    """
    if not reset and isinstance(X, EmbeddingBlocks):
        present = _present_blocks(estimator, X)
        if len(present) < len(estimator.block_indices_):
            return Blocks({name: check_block(estimator, X, name) for name in present})
    return Blocks(read_blocks(estimator, X, reset=reset, default=SINGLE))


def scale(
    blocks: Blocks, scalers: Mapping[str, Scaler], cuts: Mapping[str, slice], dtype: str
) -> NDArray[Any]:
    """Scale blocks and put them side by side; a missing block is zeros, its mean in training.

    Parameters
    ----------
    blocks : Blocks
        What was read.
    scalers : mapping of str to Scaler
        One a block of `fit`.
    cuts : mapping of str to slice
        The columns of each block.
    dtype : str
        Of the result.

    Returns
    -------
    ndarray of shape (n_samples, n_features)
        The columns of `fit`, C-contiguous.
    """
    width = max(cut.stop for cut in cuts.values())
    joined = np.zeros((len(blocks), width), dtype=dtype)
    for name, block in blocks.arrays.items():
        joined[:, cuts[name]] = scalers[name](block)
    return joined


def mix_groups(names: list[str], widths: list[int], layer: str | None) -> list[list[int]]:
    """Group the blocks that are layers of one model with one pooling.

    Parameters
    ----------
    names : list of str
        Names of the blocks; `EmbedderUnion` calls them ``{model}_layer{k}_{pooling}``.
    widths : list of int
        Their columns.
    layer : {"mix", None}
        None leaves every block to itself.

    Returns
    -------
    list of list of int
        Positions of the blocks of each group, groups in the order of their first block.

    Raises
    ------
    ValueError
        If no block has such a name, or the blocks of a group differ in width.
    """
    if layer is None:
        return [[i] for i in range(len(names))]
    groups: dict[tuple[str | None, ...], list[int]] = {}
    for i, name in enumerate(names):
        found = _LAYER.match(name)
        key = (found["model"], found["pooling"]) if found else (name,)
        groups.setdefault(key, []).append(i)
    mixed = list(groups.values())
    if all(len(group) == 1 for group in mixed):
        raise ValueError(
            f"layer='mix' mixes the layers of a model, but no two of the blocks "
            f"{', '.join(names)} are layers of one model. Use EmbedderUnion with "
            f"LLMLayerEmbedder(..., layer=[...]), whose blocks are named "
            f"'model_layer3_mean', or layer=None."
        )
    for group in mixed:
        if len({widths[i] for i in group}) > 1:
            listed = ", ".join(f"{names[i]}: {widths[i]}" for i in group)
            raise ValueError(f"layer='mix' needs layers of one width, got {listed}.")
    return mixed


def _present_blocks(estimator: Any, X: EmbeddingBlocks) -> list[str]:
    """Give the names of `X` where they are some of those of `fit`, with the same widths."""
    cuts = estimator.block_indices_
    fitted = {name: cut.stop - cut.start for name, cut in cuts.items()}
    if not X.block_sizes.items() <= fitted.items() or len(X.names) == len(fitted):
        return list(cuts)  # all of them, or wrong ones, which reading tells
    if not estimator.view_dropout:
        missing = ", ".join(name for name in fitted if name not in X.names)
        raise ValueError(
            f"X lacks the blocks {missing} of fit. {type(estimator).__name__} was not trained to "
            f"do without: set view_dropout (0.2, say) before fit, or hand over all blocks "
            f"{', '.join(fitted)}."
        )
    return [name for name in cuts if name in X.names]
