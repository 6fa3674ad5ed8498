"""Stores filled with vectors that follow from their keys."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from skfusion import VectorStore
from skfusion.embed.shards import Shard
from skfusion.embed.texts import text_keys

WIDTH = 6
ONE, OTHER = "a" * 32, "b" * 32
COLUMNS = [(0, "mean"), (1, "mean"), (1, "last")]


def values(keys: np.ndarray, n_columns: int = len(COLUMNS)) -> np.ndarray:
    """Vectors that follow from the key, in float16's range."""
    seeds = [int.from_bytes(key.ljust(16, b"\0")[:4], "little") for key in keys.tolist()]
    rows = [np.random.default_rng(seed).integers(-99, 99, n_columns * WIDTH) for seed in seeds]
    return np.array(rows, dtype=np.float32).reshape(len(keys), n_columns * WIDTH)


def columns_of(vectors: np.ndarray, columns: list = COLUMNS) -> dict:
    return {c: vectors[:, i * WIDTH : (i + 1) * WIDTH] for i, c in enumerate(columns)}


def keys_of(*numbers: int) -> np.ndarray:
    return text_keys([str(n) for n in numbers])


def fill(store: VectorStore, keys: np.ndarray, columns: list = COLUMNS) -> None:
    vectors = values(keys, 3)[:, : len(columns) * WIDTH]
    store._write(keys, np.zeros(len(keys), bool), columns_of(vectors, columns))


def read(store: VectorStore, keys: np.ndarray, columns: list = COLUMNS) -> tuple:
    out = np.full((len(keys), len(columns) * WIDTH), np.nan, dtype=np.float32)
    found = store._read(keys, columns, out)
    return out, found


def read_column(shard: Shard, column: tuple, rows: np.ndarray) -> tuple:
    """One column's vectors of some rows of a shard, and which of them are intact."""
    vectors = np.zeros((len(rows), WIDTH), dtype=np.float32)
    good = np.zeros(len(rows), dtype=bool)
    with open(shard.path, "rb", buffering=0) as file:
        for here, chunk in shard.chunks(file, column, rows):
            if chunk is not None:
                vectors[here], good[here] = chunk, True
    return vectors, good


def shard_files(store: VectorStore) -> list[Path]:
    return sorted(store._root().glob("*/*.safetensors"))


def stored_bytes(store: VectorStore) -> int:
    return sum(path.stat().st_size for path in shard_files(store))


def assert_complete(store: VectorStore, keys: np.ndarray) -> None:
    out, found = read(store, keys)
    assert not found.missing.any()
    np.testing.assert_array_equal(out, values(keys))
