"""One immutable file of stored vectors: written once, found by key, read by column and row.

A shard is a safetensors file with the tensors ``keys`` (n, 16), sorted, ``truncated`` (n,), one
``{layer}.{pooling}`` (n, width) a column, in float16 where that loses nothing and in float32
elsewhere, and ``checksums``, one crc32 for every `CHUNK` rows of every column. Any safetensors
reader opens it. Here it is read with plain reads, not through a memory map: a mapped file that
another process truncates kills the reader with SIGBUS, a short read is only a miss.
"""

from __future__ import annotations

import functools
import json
import os
import uuid
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from .texts import KEY_BYTES

Column = tuple[int, str]  # (layer, pooling)

SUFFIX = ".safetensors"
#: Rows under one checksum: the least that a read of one row has to touch.
CHUNK = 64
_DTYPES: dict[str, type[np.floating[Any]]] = {"F16": np.float16, "F32": np.float32}


class DamagedShardError(Exception):
    """A shard's content is not what was written."""


@dataclass(frozen=True)
class Shard:
    """An opened shard: everything but the vectors."""

    path: Path
    keys: NDArray[np.bytes_]
    truncated: NDArray[np.bool_]
    columns: dict[Column, tuple[type[np.floating[Any]], int, int]]  # dtype, width, offset
    checksums: dict[Column, NDArray[np.uint32]]

    def find(self, keys: NDArray[np.bytes_]) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        """Give each key's row, and whether it is there at all."""
        rows = np.searchsorted(self.keys, keys)
        rows[rows == len(self.keys)] = 0
        return rows, self.keys[rows] == keys

    def read(
        self, file: FileIO, column: Column, rows: NDArray[np.intp]
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Read some rows of one column, and no other bytes than their chunks'.

        Parameters
        ----------
        file : FileIO
            This shard's file, opened without a buffer.
        column : (layer, pooling)
            A key of `columns`.
        rows : ndarray of int, shape (n_rows,)
            Rows in any order.

        Returns
        -------
        values : ndarray of float32, shape (n_rows, width)
            The vectors; undefined where `good` is false.
        good : ndarray of bool, shape (n_rows,)
            False for rows whose checksum fails.
        """
        dtype, width, offset = self.columns[column]
        row_bytes = width * np.dtype(dtype).itemsize
        values = np.empty((len(rows), width), dtype=np.float32)
        good = np.zeros(len(rows), dtype=bool)
        for first, last in _runs(np.unique(rows // CHUNK)):
            start, stop = first * CHUNK, min(last * CHUNK, len(self.keys))
            raw = np.empty((stop - start) * row_bytes, dtype=np.uint8)
            file.seek(offset + start * row_bytes)
            if not _fill(file, raw):
                continue
            sums = _checksums(raw, row_bytes, column)
            intact = sums == self.checksums[column][first:last]
            here = np.flatnonzero((rows >= start) & (rows < stop))
            good[here] = intact[rows[here] // CHUNK - first]
            values[here] = raw.view(dtype).reshape(-1, width)[rows[here] - start]
        return values, good


def write_shard(
    folder: Path,
    keys: NDArray[np.bytes_],
    truncated: NDArray[np.bool_],
    columns: dict[Column, NDArray[np.floating[Any]]],
) -> Path:
    """Publish a shard under a new name, whole or not at all.

    Parameters
    ----------
    folder : pathlib.Path
        Made if it is not there.
    keys : ndarray of dtype S16, shape (n,)
        Different keys, in any order.
    truncated : ndarray of bool, shape (n,)
        Which texts were cut.
    columns : dict of (layer, pooling) to ndarray of shape (n, width)
        Vectors in float32 or float16.

    Returns
    -------
    pathlib.Path
        The new file.

    Raises
    ------
    OSError
        If it cannot be written. Nothing is left behind then.
    """
    folder.mkdir(parents=True, exist_ok=True)
    order = np.argsort(keys)
    tensors: dict[str, NDArray[Any]] = {
        "keys": np.frombuffer(keys[order].tobytes(), np.uint8).reshape(-1, KEY_BYTES),
        "truncated": truncated[order].astype(np.uint8),
    }
    sums = []
    for column, vectors in sorted(columns.items()):
        stored = _smallest_exact(np.ascontiguousarray(vectors[order]))
        tensors[_name(column)] = stored
        raw = stored.reshape(-1).view(np.uint8)
        sums.append(_checksums(raw, stored.shape[1] * stored.itemsize, column))
    tensors["checksums"] = np.array(sums, dtype=np.uint32)
    head = str(_head_checksum(tensors))
    path = folder / f"{uuid.uuid4().hex}{SUFFIX}"
    temporary = path.with_suffix(".tmp")
    try:
        save_file(tensors, temporary, metadata={"head": head})
        os.replace(temporary, path)
    except Exception as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise
        raise OSError(f"cannot write {temporary}: {error}") from error  # safetensors' own class
    return path


def open_shard(path: Path) -> Shard:
    """Read a shard's keys and layout, from memory where the same file was opened before.

    Raises
    ------
    FileNotFoundError
        If another process has merged or evicted it.
    DamagedShardError
        If it is cut, or its head is not what was written.
    """
    stat = os.stat(path)
    return _open(path, stat.st_ino, stat.st_size)


@functools.lru_cache(maxsize=1024)
def _open(path: Path, inode: int, size: int) -> Shard:
    try:
        with open(path, "rb", buffering=0) as file:
            return _parse(path, file, size)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise DamagedShardError(f"{path}: {error}") from error


def _parse(path: Path, file: FileIO, size: int) -> Shard:
    header_bytes = int.from_bytes(file.read(8), "little")
    if not 0 < header_bytes < size:
        raise ValueError("no header")
    header = json.loads(file.read(header_bytes))
    head = header.pop("__metadata__")["head"]
    base = 8 + header_bytes
    if base + max(entry["data_offsets"][1] for entry in header.values()) != size:
        raise ValueError("the file is cut")

    def load(name: str, dtype: type[np.generic]) -> NDArray[Any]:
        start, stop = header[name]["data_offsets"]
        raw = np.empty(stop - start, dtype=np.uint8)
        file.seek(base + start)
        if not _fill(file, raw):
            raise ValueError("the file is cut")
        return raw.view(dtype).reshape(header[name]["shape"])

    small: dict[str, NDArray[Any]] = {
        "keys": load("keys", np.uint8),
        "truncated": load("truncated", np.uint8),
        "checksums": load("checksums", np.uint32),
    }
    if str(_head_checksum(small)) != head:
        raise ValueError("its keys fail their checksum")
    columns: dict[Column, tuple[type[np.floating[Any]], int, int]] = {}
    for name in header.keys() - small.keys():
        layer, _, pooling = name.partition(".")
        rows, width = header[name]["shape"]
        if rows != len(small["keys"]):
            raise ValueError(f"{name} has {rows} rows")
        offset = base + header[name]["data_offsets"][0]
        columns[int(layer), pooling] = (_DTYPES[header[name]["dtype"]], width, offset)
    return Shard(
        path=path,
        keys=small["keys"].view(f"S{KEY_BYTES}").reshape(-1),
        truncated=small["truncated"].astype(bool),
        columns=columns,
        checksums=dict(zip(sorted(columns), small["checksums"], strict=True)),
    )


def merge_shards(shards: Sequence[Shard], folder: Path) -> tuple[Path | None, int]:
    """Write the rows of several shards with the same columns into one.

    Every row is verified on the way, so that damage is never given a fresh checksum.

    Parameters
    ----------
    shards : sequence of Shard
        At least one. They are left where they are.
    folder : pathlib.Path
        Where the new shard goes.

    Returns
    -------
    path : pathlib.Path or None
        The new shard; None where no intact row was left.
    n_dropped : int
        Damaged rows.
    """
    keys = np.concatenate([shard.keys for shard in shards])
    truncated = np.concatenate([shard.truncated for shard in shards])
    good = np.ones(len(keys), dtype=bool)
    columns: dict[Column, list[NDArray[np.floating[Any]]]] = {c: [] for c in shards[0].columns}
    start = 0
    for shard in shards:
        stop = start + len(shard.keys)
        with open(shard.path, "rb", buffering=0) as file:
            for column, parts in columns.items():
                values, intact = shard.read(file, column, np.arange(len(shard.keys)))
                # Narrow again at once: all columns of all shards are in memory together.
                parts.append(values.astype(shard.columns[column][0]))
                good[start:stop] &= intact
        start = stop
    intact_rows = np.flatnonzero(good)
    _, kept = np.unique(keys[intact_rows], return_index=True)
    kept = intact_rows[kept]
    n_dropped = len(keys) - len(intact_rows)
    if not len(kept):
        return None, n_dropped
    merged = {column: np.concatenate(parts)[kept] for column, parts in columns.items()}
    return write_shard(folder, keys[kept], truncated[kept], merged), n_dropped


def _name(column: Column) -> str:
    return f"{column[0]}.{column[1]}"


def _smallest_exact(vectors: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
    """Narrow to float16 where every value stays the same."""
    if vectors.dtype == np.float16:
        return vectors
    with np.errstate(over="ignore"):
        half = vectors.astype(np.float16)
    return half if np.array_equal(half, vectors) else vectors.astype(np.float32, copy=False)


def _checksums(raw: NDArray[np.uint8], row_bytes: int, column: Column) -> NDArray[np.uint32]:
    """Sum every chunk, seeded with the column's name, so that columns cannot be mixed up."""
    seed = zlib.crc32(_name(column).encode())
    view, step = raw.data, CHUNK * row_bytes
    return np.array(
        [zlib.crc32(view[i : i + step], seed) for i in range(0, len(raw), step)], dtype=np.uint32
    )


def _head_checksum(tensors: dict[str, NDArray[Any]]) -> int:
    total = 0
    for name in ("keys", "truncated", "checksums"):
        total = zlib.crc32(np.ascontiguousarray(tensors[name]).tobytes(), total)
    return total


def _runs(chunks: NDArray[np.intp]) -> Iterator[tuple[int, int]]:
    """Group consecutive chunks to (first, behind last)."""
    for run in np.split(chunks, np.flatnonzero(np.diff(chunks) > 1) + 1):
        if len(run):
            yield int(run[0]), int(run[-1]) + 1


def _fill(file: FileIO, raw: NDArray[np.uint8]) -> bool:
    """Read until the array is full; false where the file ends before."""
    view = raw.data
    while len(view):
        n = file.readinto(view)
        if not n:
            return False
        view = view[n:]
    return True
