"""Gathers the vectors of one pass into shards, published also when the pass breaks off."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .shards import Column
from .store import StoreWarning, VectorStore

_FLUSH_BYTES = 64 * 2**20  # of a shard in memory, as float32
_FLUSH_SECONDS = 15.0  # what a killed pass may lose


class Writer:
    """Gathers vectors of one pass and publishes them as shards.

    Parameters
    ----------
    store : VectorStore
        A scoped store.
    columns : sequence of (layer, pooling)
        The order of the vectors handed to `add`.
    """

    def __init__(self, store: VectorStore, columns: Sequence[Column]) -> None:
        self._store, self._columns = store, columns
        self._parts: list[tuple[NDArray[Any], NDArray[Any], NDArray[Any]]] = []
        self._bytes, self._since = 0, time.monotonic()
        self._broken = False
        limit = store.limit_bytes()
        # Shards small enough that a size limit evicts in steps.
        self._flush_bytes = _FLUSH_BYTES if limit is None else min(_FLUSH_BYTES, limit // 4)

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.flush()

    def add(
        self,
        keys: NDArray[np.bytes_],
        truncated: NDArray[np.bool_],
        vectors: NDArray[np.float32],
    ) -> None:
        """Take vectors of shape (n, len(columns) * width); publish if there are enough."""
        if self._broken or not len(keys):
            return
        self._parts.append((keys, truncated, vectors))
        self._bytes += vectors.nbytes
        overdue = time.monotonic() - self._since > _FLUSH_SECONDS
        if overdue or self._bytes >= self._flush_bytes:
            self.flush()

    def flush(self) -> None:
        """Publish what was gathered. The first failure warns and ends storing for this pass."""
        parts, self._parts, self._bytes = self._parts, [], 0
        self._since = time.monotonic()
        if not parts:
            return
        keys, truncated, vectors = (np.concatenate(part) for part in zip(*parts, strict=True))
        try:
            self._store.write(keys, truncated, self._split(vectors))
        except OSError as error:
            self._broken = True
            warnings.warn(
                f"Vectors cannot be stored in {self._store.root()} ({error}); results are right "
                f"but will be computed again. Check permissions and free space, or choose another "
                f"folder with memory=.",
                StoreWarning,
                stacklevel=2,
            )

    def _split(self, vectors: NDArray[np.float32]) -> dict[Column, NDArray[np.float32]]:
        """Cut into columns, without those that hold a value that is not finite."""
        width = vectors.shape[1] // len(self._columns)
        split = {
            column: vectors[:, i * width : (i + 1) * width]
            for i, column in enumerate(self._columns)
        }
        if np.isfinite(vectors).all():
            return split
        return {column: part for column, part in split.items() if np.isfinite(part).all()}
