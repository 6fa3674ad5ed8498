"""One immutable file of stored vectors: written once, found by key, read by column and row.

A shard is a safetensors file with the tensors ``keys`` (n, 16), sorted, ``truncated`` (n,), one
``{layer}.{pooling}`` (n, width) per column, in float16 where that loses nothing and in float32
elsewhere, and ``checksums``, one crc32 for every `CHUNK` rows of every column. Any safetensors
reader opens it. Here it is read with plain reads, not through a memory map: a mapped file that
another process truncates kills the reader with SIGBUS, a short read is only a miss.

The header begins with the digest of itself, the digits taken for zeros. It holds the digest of
all tensors but the columns, and of the folder's name: vectors of one model are no other's.
Nothing that it says is believed, or memory taken for it, before the digest and the file's size
agree with it.

Every file of a store begins with `MARK`, which in a shard stands in safetensors' metadata. What
does not is somebody else's: it is never read, rewritten or removed. What is no regular file is
never opened.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import math
import os
import re
import stat
import threading
import uuid
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .texts import KEY_BYTES

Column = tuple[int, str]  # (layer, pooling)
Keys = NDArray[np.bytes_]  # from `text_keys`
Mask = NDArray[np.bool_]
Rows = NDArray[np.intp]
Vectors = NDArray[np.float32]
_Chunk = tuple[Path, str, Column, int]  # file, its head, column, number

FORMAT = 3
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
_BEGIN = f'{{"__metadata__":{{"{MARK}":"'  # of a header; its digest comes next
_DIGITS = 16
_HEADER_BYTES = 100_000_000  # the most that safetensors itself takes
_SMALL = ("keys", "truncated", "checksums")
_DTYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype(np.float32),
    "U32": np.dtype(np.uint32),
    "F16": np.dtype(np.float16),
    "U8": np.dtype(np.uint8),
}
_COLUMN_NAME = re.compile(r"(0|[1-9]\d*)\.(\w+)")
#: No line ends are translated, a FIFO is not waited for, a link is not followed.
_OPEN_FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_BINARY", 0)
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_CLOEXEC", 0)
)


class DamagedShardError(Exception):
    """A shard's content is not what was written."""


class UnmarkedError(DamagedShardError):
    """A file does not begin as a shard does: another's, or one whose first bytes are lost."""


def open_file(path: Path) -> FileIO:
    """Open a regular file for reading; OSError where it is none."""
    file = FileIO(path, opener=lambda name, _: os.open(name, _OPEN_FLAGS))
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise OSError(f"{path} is no regular file")


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
        with open_file(path) as file:
            begin = file.read(_BEGIN_BYTES)
    except OSError:
        return False
    return _MARK_BYTES in begin or (not begin and bool(TEMPORARY_NAME.fullmatch(path.name)))


def remove_own(path: Path) -> None:
    """Remove a file that a store has written; the only place that removes what is published."""
    if is_own(path):
        path.unlink(missing_ok=True)


def can_remove(path: Path) -> bool:
    """Whether the modes of a file and its folder let this user remove it, where modes say so."""
    try:
        folder, file = os.stat(path.parent), os.lstat(path)
    except OSError:
        return False
    if not os.access(path.parent, os.W_OK):
        return False
    kept = folder.st_mode & stat.S_ISVTX and hasattr(os, "geteuid")
    return not kept or os.geteuid() in (0, file.st_uid, folder.st_uid)


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
        with contextlib.suppress(OSError):  # what broke off is what is raised
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
    head: str  # digest of the header, and so of all that the shard holds
    keys: Keys
    truncated: Mask
    columns: dict[Column, tuple[np.dtype[Any], int, int]]  # dtype, width, offset
    checksums: dict[Column, NDArray[np.uint32]]

    def find(self, keys: Keys) -> tuple[Rows, Mask]:
        """Return each key's row, and whether it is there at all."""
        rows = np.searchsorted(self.keys, keys)
        rows[rows == len(self.keys)] = 0
        return rows, self.keys[rows] == keys

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
        raw = self.read_raw(file, column, number)
        return None if raw is None else raw.astype(np.float32)

    def read_raw(self, file: FileIO, column: Column, number: int) -> NDArray[Any] | None:
        """Return a chunk as it is stored, or None where it is damaged."""
        dtype, width, offset = self.columns[column]
        row_bytes, start = width * dtype.itemsize, number * CHUNK
        raw = np.empty(min(CHUNK, len(self.keys) - start) * row_bytes, dtype=np.uint8)
        file.seek(offset + start * row_bytes)
        intact = _fill(file, raw) and _checksum(raw.data, column) == self.checksums[column][number]
        return raw.view(dtype).reshape(-1, width) if intact else None


def write_shard(
    folder: Path, keys: Keys, truncated: Mask, columns: dict[Column, NDArray[np.floating[Any]]]
) -> Path:
    """Publish different keys and their vectors as a new file, whole or not at all (OSError)."""
    folder.mkdir(parents=True, exist_ok=True)
    order = np.argsort(keys)
    stored = {
        column: _smallest_exact(np.ascontiguousarray(vectors[order]))
        for column, vectors in columns.items()
    }
    layout = {column: (vectors.dtype, vectors.shape[1]) for column, vectors in stored.items()}

    def chunks(column: Column) -> Iterator[NDArray[Any]]:
        for start in range(0, len(order), CHUNK):
            yield stored[column][start : start + CHUNK]

    return _publish(folder, keys[order], truncated[order], layout, chunks)


def merge_shards(
    shards: Sequence[Shard], folder: Path, most_rows: int | None = None
) -> tuple[Path | None, int]:
    """Write the intact rows of shards with the same columns into one; return how many were not.

    One column of them all is in memory at a time.
    """
    keys = np.concatenate([shard.keys for shard in shards])
    truncated = np.concatenate([shard.truncated for shard in shards])
    good = np.ones(len(keys), dtype=bool)
    layout = {
        column: (np.result_type(*(shard.columns[column][0] for shard in shards)), place[1])
        for column, place in shards[0].columns.items()
    }
    path = None
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(open_file(shard.path)) for shard in shards]

        def load(column: Column) -> NDArray[Any]:
            dtype, width = layout[column]
            values, start = np.empty((len(keys), width), dtype), 0
            for shard, file in zip(shards, files, strict=True):
                for number in range(-(-len(shard.keys) // CHUNK)):
                    raw = shard.read_raw(file, column, number)
                    stop = start + min(CHUNK, len(shard.keys) - number * CHUNK)
                    # Verified on the way, so that damage is never given a fresh checksum.
                    if raw is None:
                        good[start:stop] = False
                    else:
                        values[start:stop] = raw
                    start = stop
            return values

        def chunks(column: Column) -> Iterator[NDArray[Any]]:
            values = load(column)
            if not good[rows].all():
                raise DamagedShardError
            for first in range(0, len(rows), CHUNK):
                yield values[rows[first : first + CHUNK]]

        while path is None and good.any():
            intact = np.flatnonzero(good)
            rows = intact[np.unique(keys[intact], return_index=True)[1]][:most_rows]
            try:
                path = _publish(folder, keys[rows], truncated[rows], layout, chunks)
            except DamagedShardError:
                for column in layout:  # find all that is damaged, then write once more
                    load(column)
    return path, int(len(good) - good.sum())


def _publish(
    folder: Path,
    keys: Keys,
    truncated: Mask,
    layout: dict[Column, tuple[np.dtype[Any], int]],
    chunks: Callable[[Column], Iterator[NDArray[Any]]],
) -> Path:
    """Write a shard of sorted keys, one column after the other, and publish it."""
    n_rows, columns = len(keys), sorted(layout)
    small: dict[str, NDArray[Any]] = {
        "keys": np.frombuffer(keys.tobytes(), np.uint8).reshape(-1, KEY_BYTES),
        "truncated": truncated.astype(np.uint8),
        "checksums": np.zeros((len(columns), -(-n_rows // CHUNK)), np.uint32),
    }
    shapes: dict[str, tuple[np.dtype[Any], tuple[int, ...]]]
    shapes = {name: (tensor.dtype, tensor.shape) for name, tensor in small.items()}
    shapes |= {_name(c): (dtype, (n_rows, width)) for c, (dtype, width) in layout.items()}
    entries = _entries(shapes)
    offsets = {name: entry["data_offsets"][0] for name, entry in entries.items()}
    path = folder / f"{uuid.uuid4().hex}{SUFFIX}"
    with publishing(path) as temporary, open(temporary, "wb") as file:
        base = file.write(_header(folder, small, entries))  # the mark before all else
        for i, column in enumerate(columns):
            file.seek(base + offsets[_name(column)])
            for number, chunk in enumerate(chunks(column)):
                raw = chunk.reshape(-1).view(np.uint8).data
                small["checksums"][i, number] = _checksum(raw, column)
                file.write(raw)
        for name, tensor in small.items():
            file.seek(base + offsets[name])
            file.write(tensor.tobytes())
        file.seek(0)
        file.write(_header(folder, small, entries))
    return path


def _name(column: Column) -> str:
    return "{}.{}".format(*column)


def _entries(shapes: dict[str, tuple[np.dtype[Any], tuple[int, ...]]]) -> dict[str, Any]:
    """Lay tensors out one after the other, the widest dtypes first, so that all are aligned."""
    entries, start = {}, 0
    for code, dtype in _DTYPES.items():
        for name, (own, shape) in sorted(shapes.items()):
            if own == dtype:
                stop = start + math.prod(shape) * dtype.itemsize
                entries[name] = {"dtype": code, "shape": shape, "data_offsets": (start, stop)}
                start = stop
    return entries


def _header(folder: Path, small: dict[str, NDArray[Any]], entries: dict[str, Any]) -> bytes:
    """Return a file's first bytes; those before the data, of the same length whatever they say."""
    where = os.fsencode(folder.name)
    about = {MARK: "0" * _DIGITS, "folder": _digest(where), "small": _small_digest(small)}
    text = json.dumps({"__metadata__": about, **entries}, separators=(",", ":"))
    text += " " * (-len(text) % 8)
    text = _BEGIN + _digest(text.encode()) + text[len(_BEGIN) + _DIGITS :]
    return len(text).to_bytes(8, "little") + text.encode()


def open_shard(path: Path) -> Shard:
    """Read a shard's keys and layout, from memory where the same file was opened before."""
    info = os.stat(path, follow_symlinks=False)
    # A tool may restore the time of writing; nothing restores ctime.
    times = info.st_mtime_ns, info.st_ctime_ns
    return _open(path, info.st_ino, info.st_size, times)


@functools.lru_cache(maxsize=1024)
def _open(path: Path, inode: int, size: int, times: tuple[int, int]) -> Shard:
    return read_shard(path)


def read_shard(path: Path) -> Shard:
    """Read a shard's keys and layout from the disk; what fails for any reason is damaged."""
    try:
        with open_file(path) as file:
            return _parse(path, file, os.fstat(file.fileno()).st_size)
    except (DamagedShardError, OSError, MemoryError):
        raise
    except Exception as error:
        raise DamagedShardError(f"{path}: {error}") from error


def open_all(
    folder: Path, opened: Callable[[Path], Shard]
) -> Iterator[tuple[Path, int, Shard | None]]:
    """Yield every shard of a folder with its size, None for one that is damaged."""
    for path in list_files(folder):
        size, shard = 0, None
        try:
            size = path.stat().st_size
            shard = opened(path)
        except (FileNotFoundError, UnmarkedError):
            continue
        except (OSError, MemoryError, DamagedShardError):
            pass
        yield path, size, shard


def _parse(path: Path, file: FileIO, size: int) -> Shard:
    begin = file.read(_BEGIN_BYTES)
    if _MARK_BYTES not in begin:
        raise UnmarkedError(f"{path} does not begin as a shard does: it is ignored and left alone")
    base = 8 + int.from_bytes(begin[:8], "little")
    if base > min(size, 8 + _HEADER_BYTES):
        raise ValueError("no header")
    text = _read_at(file, 8, base - 8).tobytes()
    digits = slice(len(_BEGIN), len(_BEGIN) + _DIGITS)
    blanked = text[: digits.start] + b"0" * _DIGITS + text[digits.stop :]
    if _digest(blanked) != text[digits].decode():
        raise ValueError("its header fails its checksum")
    entries = json.loads(text)
    about = entries.pop("__metadata__")
    if about["folder"] != _digest(os.fsencode(path.parent.name)):
        raise UnmarkedError(f"{path} is of another model's folder: it is ignored and left alone")
    tensors = _layout(entries, size - base)
    small = {}
    for name in _SMALL:
        dtype, shape, start, stop = tensors.pop(name)
        small[name] = _read_at(file, base + start, stop - start).view(dtype).reshape(shape)
    if _small_digest(small) != about["small"]:
        raise ValueError("its keys fail their checksum")
    n_rows = len(small["keys"])
    columns = {}
    for name, (dtype, (rows, width), start, _) in tensors.items():
        match = _COLUMN_NAME.fullmatch(name)
        if match is None or rows != n_rows or dtype.kind != "f":
            raise ValueError(f"{name} is no column of it")
        columns[int(match[1]), match[2]] = dtype, width, base + start
    shapes = (n_rows, KEY_BYTES), (n_rows,), (len(columns), -(-n_rows // CHUNK))
    if tuple(small[name].shape for name in _SMALL) != shapes:
        raise ValueError("its parts do not fit together")
    return Shard(
        path=path,
        head=text[digits].decode(),
        keys=small["keys"].view(f"S{KEY_BYTES}").reshape(-1),
        truncated=small["truncated"].astype(bool),
        columns=columns,
        checksums=dict(zip(sorted(columns), small["checksums"], strict=True)),
    )


class _Tensor(NamedTuple):
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int
    stop: int


def _layout(entries: dict[str, Any], n_bytes: int) -> dict[str, _Tensor]:
    """Return where tensors lie, which must fill the file to the byte, none of them empty."""
    found, end = {}, 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1]["data_offsets"]):
        dtype, shape = _DTYPES[entry["dtype"]], tuple(entry["shape"])
        start, stop = entry["data_offsets"]
        counts = all(type(size) is int and size > 0 for size in (*shape, stop))
        if not counts or start != end or stop - end != math.prod(shape) * dtype.itemsize:
            raise ValueError(f"{name} does not fit into the file")
        found[name] = _Tensor(dtype, shape, end, stop)
        end = stop
    if end != n_bytes:
        raise ValueError("the file is cut")
    return found


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


def _digest(*parts: bytes | memoryview) -> str:
    total = hashlib.blake2b(digest_size=_DIGITS // 2)
    for part in parts:
        total.update(part)
    return total.hexdigest()


def _small_digest(tensors: dict[str, NDArray[Any]]) -> str:
    return _digest(*(np.ascontiguousarray(tensors[name]).data for name in _SMALL))


def _read_at(file: FileIO, offset: int, n_bytes: int) -> NDArray[np.uint8]:
    """Read some bytes; the caller has compared their number with the file's size."""
    raw = np.empty(n_bytes, dtype=np.uint8)
    file.seek(offset)
    if not _fill(file, raw):
        raise ValueError("the file is cut")
    return raw


def _fill(file: FileIO, raw: NDArray[np.uint8]) -> bool:
    """Read until the array is full; False where the file ends before."""
    done = 0
    while done < len(raw) and (n := file.readinto(raw.data[done:])):
        done += n
    return done == len(raw)
