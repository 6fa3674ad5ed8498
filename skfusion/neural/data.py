"""Inputs as blocks, and training rows as tensors."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import gen_batches
from torch import Tensor
from torch.utils.data import Dataset

from .._blocks import EmbeddingBlocks
from .._boundaries import check_block, read_blocks
from ..linear.scaling import fit_scaler

CHUNK = 4096  # rows that are worked on at the same time
_N_KEYS = 8
_TIE = 1e-5  # relative: gaps that are the same but for rounding, as between counts
_BLUR = 1e-3  # of a column's standard deviation: rounding that is as good as none
_MOST_CUTS = 64  # enough for 10⁸ rows, were each cut the least even that is allowed
_LAYER = re.compile(r"^(?:(?P<model>.+)_)?layer\d+_(?P<pooling>.+)$")


@dataclass(frozen=True)
class Rows(Dataset[Any]):
    """Training rows, scaled, with their targets."""

    X: Tensor  # (n_samples, n_features): blocks side by side
    target: Tensor  # (n_samples, n_outputs): what the loss compares with
    weights: Tensor  # (n_samples,), of mean 1
    balanced: Tensor  # (n_samples,): weights in the loss that says when to stop; see `balance`
    codes: Tensor  # (n_samples,): classes that a split shares out
    evened: Tensor  # (n_samples,): the factor in `weights` that brings classes closer together

    def __len__(self) -> int:
        return len(self.X)

    def __getitem__(self, index: Any) -> Rows:
        return Rows(*[getattr(self, field.name)[index] for field in fields(self)])

    def reweighted(self) -> Rows:
        """Return the rows with a mean weight of 1, and balanced ones that add up to 1, again."""
        weights, balanced = self.weights / self.weights.mean(), self.balanced / self.balanced.sum()
        return replace(self, weights=weights, balanced=balanced)


def balance(
    counts: NDArray[np.float64], codes: NDArray[np.intp], factors: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return weights by which classes count the same whatever their size, times `factors`."""
    weights = factors * counts / np.bincount(codes, weights=counts)[codes]
    balanced: NDArray[np.float64] = weights / weights.sum()
    return balanced


def to_dtype(block: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Return a block in the network's dtype, or as it is where rounding would blur a column.

    A row in double precision is then the same row as in single precision.
    """
    if block.dtype == dtype:
        return block
    with np.errstate(over="ignore"):
        cast = block.astype(dtype)
        blur = np.abs(cast - block).max(axis=0)
    std = fit_scaler(block, "standard").std
    assert std is not None
    return cast if np.isfinite(blur).all() and (blur <= _BLUR * std).all() else block


def merge_rows(
    arrays: Sequence[NDArray[Any]], weights: NDArray[np.float64]
) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Return the positions and weights of rows after making one of equal ones.

    A row of weight 2 is then the same as two rows, one of weight 0 is left out, and texts that
    stand twice in a data set are never on both sides of a split. The order is that of
    `stable_order`, so what is learnt does not depend on the order in which rows are given.
    """
    arrays = [np.ascontiguousarray(array) for array in arrays]
    merged: dict[bytes, tuple[int, float]] = {}
    for i in np.flatnonzero(weights):
        digest = hashlib.blake2b(digest_size=16)
        for array in arrays:
            digest.update((array[i] + 0).tobytes())  # + 0 makes 0.0 of -0.0
        first, weight = merged.get(digest.digest(), (int(i), 0.0))
        merged[digest.digest()] = (first, weight + float(weights[i]))
    positions = np.array([first for first, _ in merged.values()], dtype=np.intp)
    sums = np.array([weight for _, weight in merged.values()], dtype=np.float64)
    order = stable_order([array[positions] for array in arrays])
    return positions[order], sums[order]


def stable_order(arrays: Sequence[NDArray[Any]]) -> NDArray[np.intp]:
    """Return an order of different rows that neither their order nor rounding moves.

    Rows are cut at the widest gap that a random projection has in their middle half, and so are
    the parts, each time by another projection, until each row is alone. Sorted by one projection,
    two rows in many would lie within rounding of each other.
    """
    keys = _random_projections(arrays)
    n = len(keys)
    group = np.zeros(n, dtype=np.intp)  # of each row; groups are in order
    for key in np.tile(keys.T, (_MOST_CUTS // _N_KEYS, 1)):
        order = np.lexsort((key, group))
        ends = np.flatnonzero(np.diff(group[order], append=n))
        sizes = np.diff(ends, prepend=-1)
        if len(sizes) == n:
            break
        starts = ends - sizes + 1
        size, before = np.repeat(sizes, sizes), np.arange(n) - np.repeat(starts, sizes) + 1
        gaps = np.diff(key[order], append=0.0)
        gaps[(before < np.maximum(size // 4, 1)) | (before > size - np.maximum(size // 4, 1))] = 0
        widest = np.repeat(np.maximum.reduceat(gaps, starts), sizes)
        is_end = (gaps >= (1 - _TIE) * widest) & (gaps > 0)
        is_end[ends] = True
        group[order] = np.cumsum(is_end) - is_end
    return np.argsort(group, kind="stable")


def _random_projections(arrays: Sequence[NDArray[Any]]) -> NDArray[np.float64]:
    """Return projections (n_samples, n_keys) of the standardised columns of all arrays."""
    rng, n = np.random.default_rng(0), len(arrays[0])
    keys = np.zeros((n, _N_KEYS))
    for array in arrays if n else ():
        scale = fit_scaler(array, "standard")
        assert scale.mean is not None and scale.std is not None
        weights = rng.normal(size=(array.shape[1], _N_KEYS)) / scale.std[:, None]
        for rows in gen_batches(n, CHUNK):
            keys[rows] += (array[rows] - scale.mean) @ weights
    return keys


def read_present_blocks(estimator: Any, X: Any, *, reset: bool) -> dict[str, NDArray[Any]]:
    """Return the blocks of an input, which after a `fit` with `block_dropout` may lack some."""
    if reset or not isinstance(X, EmbeddingBlocks):
        return read_blocks(estimator, X, estimator.block_sizes, reset=reset)
    fitted = {name: cut.stop - cut.start for name, cut in estimator.block_indices_.items()}
    if len(X.names) == len(fitted) or not X.block_sizes.items() <= fitted.items():
        return read_blocks(estimator, X, estimator.block_sizes, reset=False)  # or an error
    if not estimator.block_dropout:
        missing = ", ".join(name for name in fitted if name not in X.names)
        raise ValueError(
            f"X lacks the blocks {missing} of fit. {type(estimator).__name__} was not trained to "
            f"do without: set block_dropout (0.2, say) before fit, or hand over all blocks "
            f"{', '.join(fitted)}."
        )
    return {name: check_block(estimator, X, name) for name in fitted if name in X.names}


def mix_groups(names: list[str], widths: list[int], layer: str | None) -> list[list[int]]:
    """Return the positions of the blocks that are layers of one model with one pooling.

    They are known by the names that `EmbedderUnion` gives, ``{model}_layer{k}_{pooling}``; with
    ``layer=None`` every block stays by itself.
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
