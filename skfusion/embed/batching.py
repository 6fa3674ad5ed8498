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
    *,
    equal: bool = False,
) -> list[NDArray[np.intp]]:
    """Group texts, longest first, into batches whose padded size is within a token budget.

    With the longest first, running out of memory shows in the first batch. A text longer than
    the budget is a batch of its own. With `equal`, only texts of one length are in a batch.

    Examples
    --------
    >>> [batch.tolist() for batch in plan_batches([3, 9, 2, 5], batch_tokens=10)]
    [[1], [3, 0], [2]]
    """
    order = np.argsort(-np.asarray(lengths, dtype=np.int64), kind="stable")
    ascending = np.sort(lengths)
    limit = len(order) if max_rows is None else max_rows
    batches = []
    start = 0
    while start < len(order):
        longest = max(int(lengths[order[start]]), 1)
        stop = start + max(1, min(batch_tokens // longest, limit))
        if equal:
            shorter = int(np.searchsorted(ascending, lengths[order[start]]))
            stop = min(stop, len(order) - shorter)
        batches.append(order[start:stop])
        start = stop
    return batches


def pad(rows: Sequence[Sequence[int]], fill: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return token rows of unequal length as one array padded on the right, and its mask."""
    lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
    mask = np.arange(lengths.max()) < lengths[:, None]
    ids = np.full(mask.shape, fill, dtype=np.int64)
    ids[mask] = np.concatenate([np.asarray(row, dtype=np.int64) for row in rows])
    return ids, mask
