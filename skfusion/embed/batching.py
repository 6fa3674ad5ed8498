"""Token-budget batches: sorted by length, the order restored by whoever reads the indices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

#: ``batch_tokens="auto"`` by device type. A CPU is fastest while one batch's activations stay in
#: its caches (measured in benchmarks/extraction.py); a GPU needs many tokens to be busy.
AUTO_BATCH_TOKENS = {"cpu": 1024, "mps": 8192, "cuda": 32768}


def plan_batches(
    lengths: Sequence[int] | NDArray[np.integer],
    batch_tokens: int,
    max_rows: int | None = None,
) -> list[NDArray[np.intp]]:
    """Group texts into batches whose padded size stays within a token budget.

    Texts are taken from the longest to the shortest, so that a batch holds texts of like length
    and running out of memory shows in the first batch.

    Parameters
    ----------
    lengths : sequence of int of shape (n_texts,)
        Tokens of each text.
    batch_tokens : int
        Largest ``rows * longest text`` of a batch. A longer text makes a batch of its own.
    max_rows : int or None, default=None
        Largest number of texts in a batch.

    Returns
    -------
    list of ndarray of int
        The positions of each batch's texts; every position occurs once.

    Examples
    --------
    >>> from skfusion.embed.batching import plan_batches
    >>> [batch.tolist() for batch in plan_batches([3, 9, 2, 5], batch_tokens=10)]
    [[1], [3, 0], [2]]
    """
    order = np.argsort(-np.asarray(lengths, dtype=np.int64), kind="stable")
    limit = len(order) if max_rows is None else max_rows
    batches = []
    start = 0
    while start < len(order):
        longest = max(int(lengths[order[start]]), 1)
        stop = start + max(1, min(batch_tokens // longest, limit))
        batches.append(order[start:stop])
        start = stop
    return batches


def pad(rows: Sequence[Sequence[int]], fill: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Write token rows of unequal length into one array, padded on the right.

    Parameters
    ----------
    rows : sequence of sequences of int
        The token ids of each text.
    fill : int
        The id at padding.

    Returns
    -------
    ids : ndarray of int64, shape (n_rows, longest)
        The padded ids.
    mask : ndarray of bool, shape (n_rows, longest)
        True at real tokens.

    Examples
    --------
    >>> from skfusion.embed.batching import pad
    >>> ids, mask = pad([[5, 6], [7]], fill=0)
    >>> ids.tolist(), mask.tolist()
    ([[5, 6], [7, 0]], [[True, True], [True, False]])
    """
    lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
    mask = np.arange(lengths.max()) < lengths[:, None]
    ids = np.full(mask.shape, fill, dtype=np.int64)
    ids[mask] = np.concatenate([np.asarray(row, dtype=np.int64) for row in rows])
    return ids, mask
