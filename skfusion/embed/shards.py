"""One immutable file of stored vectors: written once, found by key, read by column and row.

A shard is a safetensors file with the tensors ``keys`` (n, 16), sorted, ``truncated`` (n,), one
``{layer}.{pooling}`` (n, width) per column, in float16 where that loses nothing and in float32
elsewhere, and ``checksums``, one crc32 for every `CHUNK` rows of every column. Any safetensors
reader opens it. Here it is read with plain reads, not through a memory map: a mapped file that
another process truncates kills the reader with SIGBUS, a short read is only a miss.

Every file of a store begins with `MARK`, which in a shard stands in safetensors' metadata. What
does not is somebody else's: it is never read, rewritten or removed.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import threading
import uuid
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import save_file

from .texts import KEY_BYTES

Column = tuple[int, str]  # (layer, pooling)
Keys = NDArray[np.bytes_]  # from `text_keys`
Mask = NDArray[np.bool_]
Rows = NDArray[np.intp]
Vectors = NDArray[np.float32]
_Chunk = tuple[Path, str, Column, int]  # file, its head, column, number

FORMAT = 2
#: What every file of a store begins with, and the name of the folder that holds them.
MARK = f"skfusion-{FORMAT}"
#: Rows under one checksum: the least that a read of one row has to touch.
CHUNK = 64
#: Most bytes of chunks read lately that a process keeps in memory.
RECENT_BYTES = 64 * 2**20
SUFFIX = ".safetensors"
SHARD_NAME = re.compile(rf"[0-9a-f]{{32}}{re.escape(SUFFIX)}")
TEMPORARY_NAME = re.compile(r"skfusion-[0-9a-f]{32}\.tmp")
OWN_NAME = re.compile(rf"{SHARD_NAME.pattern}|{TEMPORARY_NAME.pattern}|about\.json")
_MARK_BYTES = f'"{MARK}":'.encode()
_BEGIN_BYTES = 64  # the mark stands in these; safetensors writes the metadata first
_ENTRY_BYTES = 512  # about what Python takes for a remembered chunk beside its values
_SMALL = ("keys", "truncated", "checksums")
_DTYPES: dict[str, type[np.floating[Any]]] = {"F16": np.float16, "F32": np.float32}


class DamagedShardError(Exception):
    """A shard's content is not what was written."""


class UnmarkedError(DamagedShardError):
    """A file does not begin as a shard does: another's, or one whose first bytes are lost."""


def list_files(folder: Path, names: re.Pattern[str] = SHARD_NAME) -> list[Path]:
    """Return the files with names of our own; none where there is no such folder."""
    try:
        with os.scandir(folder) as entries:
            ours = (entry for entry in entries if names.fullmatch(entry.name))
            return [Path(entry.path) for entry in ours if entry.is_file(follow_symlinks=False)]
    except OSError:
        return []


def is_own(path: Path) -> bool:
    """Whether a store has written a file: it begins with the mark. Ours may be empty till then."""
    try:
        with open(path, "rb", buffering=0) as file:
            begin = file.read(_BEGIN_BYTES)
    except OSError:
        return False
    return _MARK_BYTES in begin or (not begin and bool(TEMPORARY_NAME.fullmatch(path.name)))


def remove_own(path: Path) -> None:
    """Remove a file that a store has written; the only place that removes what is published."""
    if is_own(path):
        path.unlink(missing_ok=True)


def clear_folder(folder: Path) -> None:
    """Remove what a store has written for one model, and the folder if nothing else is there."""
    for path in list_files(folder, OWN_NAME):
        with contextlib.suppress(OSError):
            remove_own(path)
    with contextlib.suppress(OSError):
        folder.rmdir()
    RECENT.forget(folder)


@contextlib.contextmanager
def publishing(path: Path) -> Iterator[Path]:
    """Yield a temporary path, renamed when the block ends well and removed when it does not."""
    temporary = path.with_name(f"skfusion-{uuid.uuid4().hex}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


class Recent:
    """Chunks that were read lately and found intact; the least recently used go first."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin anew, with a lock that no other thread holds."""
        self._lock = threading.Lock()
        self._chunks: OrderedDict[_Chunk, Vectors] = OrderedDict()
        self._bytes = 0

    def get(self, key: _Chunk) -> Vectors | None:
        """Return a chunk, if it is remembered."""
        with self._lock:
            if key in self._chunks:
                self._chunks.move_to_end(key)
            return self._chunks.get(key)

    def put(self, key: _Chunk, vectors: Vectors) -> None:
        """Remember a chunk in place of those that were not used for longest."""
        with self._lock:
            if key not in self._chunks:
                self._chunks[key] = vectors
                self._bytes += vectors.nbytes + _ENTRY_BYTES
            while self._bytes > RECENT_BYTES:
                self._drop(next(iter(self._chunks)))

    def forget(self, folder: Path) -> None:
        """Forget what was read from a folder."""
        with self._lock:
            for key in [key for key in self._chunks if key[0].parent == folder]:
                self._drop(key)

    def _drop(self, key: _Chunk) -> None:
        self._bytes -= self._chunks.pop(key).nbytes + _ENTRY_BYTES


#: One for all stores of this process; no part of any pickle.
RECENT = Recent()
if hasattr(os, "register_at_fork"):
    # Another thread may hold the lock at the moment of a fork: the child would wait for ever.
    os.register_at_fork(after_in_child=RECENT.reset)


@dataclass(frozen=True)
class Shard:
    """An opened shard: everything but the vectors."""

    path: Path
    head: str  # checksum of keys and checksums, and so of all that the shard holds
    keys: Keys
    truncated: Mask
    columns: dict[Column, tuple[type[np.floating[Any]], int, int]]  # dtype, width, offset
    checksums: dict[Column, NDArray[np.uint32]]

    def find(self, keys: Keys) -> tuple[Rows, Mask]:
        """Return each key's row, and whether it is there at all."""
        rows = np.searchsorted(self.keys, keys)
        rows[rows == len(self.keys)] = 0
        return rows, self.keys[rows] == keys

    def read(self, file: FileIO, column: Column, rows: Rows) -> tuple[Vectors, Mask]:
        """Return one column's vectors of some rows, and which of them are intact."""
        values = np.zeros((len(rows), self.columns[column][1]), dtype=np.float32)
        good = np.zeros(len(rows), dtype=bool)
        for here, vectors in self.chunks(file, column, rows):
            if vectors is not None:
                values[here], good[here] = vectors, True
        return values, good

    def chunks(
        self, file: FileIO, column: Column, rows: Rows, recent: Recent | None = None
    ) -> Iterator[tuple[Rows, Vectors | None]]:
        """Yield places in `rows` and their vectors, None for those of a damaged chunk."""
        order = np.argsort(rows, kind="stable")
        cuts = np.flatnonzero(np.diff(rows[order] // CHUNK)) + 1
        for here in filter(len, np.split(order, cuts)):
            number = int(rows[here[0]]) // CHUNK
            key = self.path, self.head, column, number
            chunk = None if recent is None else recent.get(key)
            if chunk is None:
                chunk = self._read_chunk(file, column, number)
                if chunk is not None and recent is not None:
                    recent.put(key, chunk)
            yield here, None if chunk is None else chunk[rows[here] - number * CHUNK]

    def _read_chunk(self, file: FileIO, column: Column, number: int) -> Vectors | None:
        dtype, width, offset = self.columns[column]
        row_bytes, start = width * np.dtype(dtype).itemsize, number * CHUNK
        raw = np.empty(min(CHUNK, len(self.keys) - start) * row_bytes, dtype=np.uint8)
        file.seek(offset + start * row_bytes)
        intact = _fill(file, raw) and _checksum(raw.data, column) == self.checksums[column][number]
        return raw.view(dtype).reshape(-1, width).astype(np.float32) if intact else None


def write_shard(
    folder: Path, keys: Keys, truncated: Mask, columns: dict[Column, NDArray[np.floating[Any]]]
) -> Path:
    """Publish different keys and their vectors as a new file, whole or not at all (OSError)."""
    folder.mkdir(parents=True, exist_ok=True)
    order = np.argsort(keys)
    tensors: dict[str, NDArray[Any]] = {
        "keys": np.frombuffer(keys[order].tobytes(), np.uint8).reshape(-1, KEY_BYTES),
        "truncated": truncated[order].astype(np.uint8),
    }
    sums = []
    for column, vectors in sorted(columns.items()):
        stored = _smallest_exact(np.ascontiguousarray(vectors[order]))
        tensors["{}.{}".format(*column)] = stored
        raw, step = stored.reshape(-1).view(np.uint8).data, CHUNK * stored[:1].nbytes
        sums.append([_checksum(raw[i : i + step], column) for i in range(0, len(raw), step)])
    tensors["checksums"] = np.array(sums, dtype=np.uint32)
    path = folder / f"{uuid.uuid4().hex}{SUFFIX}"
    with publishing(path) as temporary:
        try:
            save_file(tensors, temporary, metadata={MARK: _head_checksum(tensors)})
        except SafetensorError as error:
            raise OSError(f"cannot write {temporary}: {error}") from error
    return path


def open_shard(path: Path) -> Shard:
    """Read a shard's keys and layout, from memory where the same file was opened before."""
    info = os.stat(path)
    return _open(path, info.st_ino, info.st_size, info.st_mtime_ns)


@functools.lru_cache(maxsize=1024)
def _open(path: Path, inode: int, size: int, mtime_ns: int) -> Shard:
    try:
        with open(path, "rb", buffering=0) as file:
            return _parse(path, file, size)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise DamagedShardError(f"{path}: {error}") from error


def _parse(path: Path, file: FileIO, size: int) -> Shard:
    begin = file.read(_BEGIN_BYTES)
    if _MARK_BYTES not in begin:
        raise UnmarkedError(f"{path} does not begin as a shard does: it is ignored and left alone")
    header_bytes = int.from_bytes(begin[:8], "little")
    if not 0 < header_bytes < size:
        raise ValueError("no header")
    file.seek(8)
    header = json.loads(file.read(header_bytes))
    head = header.pop("__metadata__")[MARK]
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

    small = {n: load(n, np.uint32 if n == "checksums" else np.uint8) for n in _SMALL}
    n_rows = len(small["keys"])
    columns: dict[Column, tuple[type[np.floating[Any]], int, int]] = {}
    for name in header.keys() - small.keys():
        layer, _, pooling = name.partition(".")
        (rows, width), dtype = header[name]["shape"], _DTYPES[header[name]["dtype"]]
        start, stop = header[name]["data_offsets"]
        if rows != n_rows or stop - start != rows * width * np.dtype(dtype).itemsize:
            raise ValueError(f"{name} has another shape")
        columns[int(layer), pooling] = dtype, width, base + start
    shape = len(columns), -(-n_rows // CHUNK)
    if _head_checksum(small) != head or small["checksums"].shape != shape:
        raise ValueError("its keys fail their checksum")
    return Shard(
        path=path,
        head=head,
        keys=small["keys"].view(f"S{KEY_BYTES}").reshape(-1),
        truncated=small["truncated"].astype(bool),
        columns=columns,
        checksums=dict(zip(sorted(columns), small["checksums"], strict=True)),
    )


def merge_shards(shards: Sequence[Shard], folder: Path) -> tuple[Path | None, int]:
    """Write the intact rows of shards with the same columns into one; return how many were not."""
    # Every row is verified on the way, so that damage is never given a fresh checksum.
    keys = np.concatenate([shard.keys for shard in shards])
    truncated = np.concatenate([shard.truncated for shard in shards])
    good: list[Mask] = []
    columns: dict[Column, list[NDArray[np.floating[Any]]]] = {c: [] for c in shards[0].columns}
    for shard in shards:
        good.append(np.ones(len(shard.keys), dtype=bool))
        with open(shard.path, "rb", buffering=0) as file:
            for column, parts in columns.items():
                values, intact = shard.read(file, column, np.arange(len(shard.keys)))
                # Narrow again at once: all columns of all shards are in memory together.
                parts.append(values.astype(shard.columns[column][0]))
                good[-1] &= intact
    rows = np.flatnonzero(np.concatenate(good))
    n_dropped = len(keys) - len(rows)
    if not len(rows):
        return None, n_dropped
    kept = rows[np.unique(keys[rows], return_index=True)[1]]
    merged = {column: np.concatenate(parts)[kept] for column, parts in columns.items()}
    return write_shard(folder, keys[kept], truncated[kept], merged), n_dropped


def _smallest_exact(vectors: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
    """Narrow to float16 where every value stays the same."""
    if vectors.dtype == np.float16:
        return vectors
    with np.errstate(over="ignore"):
        half = vectors.astype(np.float16)
    return half if np.array_equal(half, vectors) else vectors.astype(np.float32, copy=False)


def _checksum(chunk: memoryview, column: Column) -> int:
    """Return a chunk's crc32, seeded with the column's name so that none can be mixed up."""
    return zlib.crc32(chunk, zlib.crc32("{}.{}".format(*column).encode()))


def _head_checksum(tensors: dict[str, NDArray[Any]]) -> str:
    total = 0
    for name in _SMALL:
        total = zlib.crc32(np.ascontiguousarray(tensors[name]).tobytes(), total)
    return str(total)


def _fill(file: FileIO, raw: NDArray[np.uint8]) -> bool:
    """Read until the array is full; False where the file ends before."""
    done = 0
    while done < len(raw) and (n := file.readinto(raw.data[done:])):
        done += n
    return done == len(raw)
