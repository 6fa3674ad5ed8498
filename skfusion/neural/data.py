"""Inputs as blocks, and training rows as tensors."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from .._blocks import EmbeddingBlocks
from .._boundaries import check_block, read_blocks

_LAYER = re.compile(r"^(?:(?P<model>.+)_)?layer\d+_(?P<pooling>.+)$")


@dataclass(frozen=True)
class Rows(Dataset[Any]):
    """Training rows, scaled, with their targets."""

    X: Tensor  # (n_samples, n_features): blocks side by side
    target: Tensor  # (n_samples, n_outputs): what the loss compares with
    weights: Tensor  # (n_samples,), of mean 1
    balanced: Tensor  # (n_samples,): weights in the loss that says when to stop; see `balance`
    codes: Tensor  # (n_samples,): classes that a split shares out

    def __len__(self) -> int:
        return len(self.X)

    def __getitem__(self, index: Any) -> Rows:
        tensors = (self.X, self.target, self.weights, self.balanced, self.codes)
        return Rows(*[tensor[index] for tensor in tensors])

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


def merge_rows(
    arrays: Sequence[NDArray[Any]], weights: NDArray[np.float64]
) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Return the positions and weights of rows after making one of equal ones.

    A row of weight 2 is then the same as two rows, one of weight 0 is left out, and texts that
    stand twice in a data set are never on both sides of a split. The order is that of the rows'
    digests, so what is learnt does not depend on the order in which rows are given.
    """
    arrays = [np.ascontiguousarray(array) for array in arrays]
    merged: dict[bytes, tuple[int, float]] = {}
    for i in np.flatnonzero(weights):
        digest = hashlib.blake2b(digest_size=16)
        for array in arrays:
            digest.update(array[i].tobytes())
        first, weight = merged.get(digest.digest(), (int(i), 0.0))
        merged[digest.digest()] = (first, weight + float(weights[i]))
    entries = [merged[digest] for digest in sorted(merged)]
    return (
        np.array([entry[0] for entry in entries], dtype=np.intp),
        np.array([entry[1] for entry in entries], dtype=np.float64),
    )


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
