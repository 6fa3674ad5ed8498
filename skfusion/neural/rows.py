"""Training rows as tensors, and which of them stand for others."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset


@dataclass(frozen=True)
class Rows(Dataset[Any]):
    """Rows of scaled blocks with their targets.

    Parameters
    ----------
    X : Tensor of shape (n_samples, n_features)
        Blocks side by side.
    target : Tensor of shape (n_samples, n_outputs)
        What the loss compares with.
    weights : Tensor of shape (n_samples,)
        Weights with mean 1.
    balanced : Tensor of shape (n_samples,)
        What rows count in a loss that says when to stop; see `balance`.
    codes : Tensor of int, shape (n_samples,)
        Groups that a split shares out.
    """

    X: Tensor
    target: Tensor
    weights: Tensor
    balanced: Tensor
    codes: Tensor

    def __len__(self) -> int:
        return len(self.X)

    def __getitem__(self, index: Any) -> Rows:
        """Take rows."""
        return Rows(*[tensor[index] for tensor in self._tensors()])

    def reweighted(self) -> Rows:
        """Make the mean weight 1 again, and the sum of the balanced ones."""
        weights, balanced = self.weights / self.weights.mean(), self.balanced / self.balanced.sum()
        return replace(self, weights=weights, balanced=balanced)

    def _tensors(self) -> list[Tensor]:
        return [self.X, self.target, self.weights, self.balanced, self.codes]

    def digest(self) -> bytes:
        """Give a digest of all there is, the same for equal rows."""
        digest = hashlib.blake2b(digest_size=16)
        for tensor in self._tensors():
            digest.update(tensor.cpu().numpy().tobytes())
        return digest.digest()


def balance(
    counts: NDArray[np.float64], codes: NDArray[np.intp], factors: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Make classes count the same, whatever their size, or as the user says.

    Parameters
    ----------
    counts : ndarray of shape (n_samples,)
        How many rows each stands for.
    codes : ndarray of int, shape (n_samples,)
        Their classes.
    factors : ndarray of shape (n_samples,)
        What a row of its class is to count, compared with others.

    Returns
    -------
    ndarray of shape (n_samples,)
        Weights that add up to 1.
    """
    weights = factors * counts / np.bincount(codes, weights=counts)[codes]
    balanced: NDArray[np.float64] = weights / weights.sum()
    return balanced


def merge_rows(
    arrays: Sequence[NDArray[Any]], weights: NDArray[np.float64]
) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Make one row of equal ones, and drop those of weight 0.

    A row of weight 2 is then the same as two rows, and texts that stand twice in a data set are
    never on both sides of a split. The order is that of the rows' digests, so what is learnt does
    not depend on the order in which rows are given.

    Parameters
    ----------
    arrays : sequence of ndarray of shape (n_samples, ...)
        What rows must have in common to be one.
    weights : ndarray of shape (n_samples,)
        Their weights.

    Returns
    -------
    chosen : ndarray of int
        Positions of the rows that are left.
    weights : ndarray of float
        Their weights.
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
