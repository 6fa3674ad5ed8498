"""Per-text vectors on disk: found by the text's hash, written by many, never locked."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import shutil
import time
import warnings
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import joblib
import numpy as np
from joblib.disk import memstr_to_bytes
from numpy.typing import NDArray

from .session import session_folder
from .shards import (
    SUFFIX,
    Column,
    DamagedShardError,
    Shard,
    merge_shards,
    open_shard,
    write_shard,
)

FORMAT = 1
_ROOT = f"skfusion-{FORMAT}"
_MERGE_COUNT = 8  # shards of like size that are made one
_MERGE_BELOW = 32 * 2**20  # larger ones are left alone
_ABANDONED_SECONDS = 3600.0  # a temporary file older than this has no writer any more
_TRIES = 10  # how often shards may vanish under a reader before it computes instead


_FLUSH_BYTES = 64 * 2**20  # of a shard in memory, as float32
_FLUSH_SECONDS = 15.0  # what a killed pass may lose


class StoreWarning(UserWarning):
    """Vectors could not be stored or were found damaged; results are right all the same."""


@dataclass
class Found:
    """What a store knows of some texts."""

    missing: NDArray[np.bool_]
    truncated: NDArray[np.bool_]


class VectorStore:
    """A folder of pooled vectors, for the `memory` parameter of an embedder.

    A path as `memory` makes the same store without a limit. Several processes, and hosts on a
    shared folder, may use one store at the same time: shards are immutable and appear by an
    atomic rename.

    Parameters
    ----------
    location : path-like, joblib.Memory or None, default=None
        The folder; made when the first vectors are stored. Of a `joblib.Memory` its location is
        taken. None is a temporary folder of this process and its joblib workers, removed at
        exit.
    size_limit : int, str or None, default=None
        Most bytes on disk, or a size such as ``"500M"`` or ``"10G"``. After every call the least
        recently used shards are removed until the rest fits.

    Examples
    --------
    >>> from skfusion import VectorStore
    >>> store = VectorStore(size_limit="10M")
    >>> store.info()["n_texts"]
    0
    """

    def __init__(
        self,
        location: str | os.PathLike[str] | joblib.Memory | None = None,
        *,
        size_limit: int | str | None = None,
        layers: str | list[int | float] = "all",
        poolings: str | list[str] = "all",
        dtype: str = "auto",
    ) -> None:
        self.location = location
        self.size_limit = size_limit
        self.layers = layers
        self.poolings = poolings
        self.dtype = dtype
        self._fingerprint: str | None = None
        self._about: dict[str, Any] = {}

    def __repr__(self) -> str:
        limit = "" if self.size_limit is None else f", size_limit={self.size_limit!r}"
        return f"VectorStore({self.location!r}{limit})"

    def __getstate__(self) -> dict[str, Any]:
        if self._root_location() is None:
            session_folder()  # workers look for it, so it must exist before they are sent this
        return self.__dict__.copy()

    def __sklearn_clone__(self) -> VectorStore:
        return self

    # --- what users call ----------------------------------------------------------------------

    def info(self) -> dict[str, Any]:
        """Describe what is stored.

        Returns
        -------
        dict
            ``location``, ``n_texts`` (rows, a text under two models counted twice), ``n_shards``,
            ``n_bytes``, ``size_limit`` (bytes or None) and ``models``, a list with one dict a
            model and setting.
        """
        models = []
        for folder in self._folders():
            paths = _list(folder)
            shards = [shard for path in paths if (shard := _try_open(path)) is not None]
            columns = sorted({column for shard in shards for column in shard.columns})
            models.append(
                {
                    **_read_about(folder),
                    "n_texts": len(set().union(*(shard.keys.tolist() for shard in shards))),
                    "n_shards": len(paths),
                    "n_bytes": sum(map(_size, paths)),
                    "layers": sorted({layer for layer, _ in columns}),
                    "poolings": sorted({pooling for _, pooling in columns}),
                }
            )
        totals = {
            name: sum(m[name] for m in models) for name in ("n_texts", "n_shards", "n_bytes")
        }
        limit = self._limit_bytes()
        return {"location": str(self._root()), **totals, "size_limit": limit, "models": models}

    def clear(self) -> None:
        """Remove the stored vectors: of one model for ``embedder.store_``, otherwise all."""
        for folder in self._folders():
            shutil.rmtree(folder, ignore_errors=True)

    def verify(self) -> dict[str, Any]:
        """Read every stored vector and compare it with its checksum.

        Returns
        -------
        dict
            ``n_shards`` and ``n_texts`` that were read, and ``damaged``, the paths of damaged
            shards. Nothing is changed: a damaged shard is repaired when it is next used.
        """
        n_shards = n_texts = 0
        damaged = []
        for folder in self._folders():
            for path in _list(folder):
                n_shards += 1
                try:
                    shard = open_shard(path)
                    n_texts += len(shard.keys)
                    intact = _is_intact(shard)
                except FileNotFoundError:
                    n_shards -= 1
                    continue
                except (DamagedShardError, OSError):
                    intact = False
                if not intact:
                    damaged.append(str(path))
        return {"n_shards": n_shards, "n_texts": n_texts, "damaged": damaged}

    # --- what an embedder calls ----------------------------------------------------------------

    def _scoped(self, fingerprint: str, about: dict[str, Any]) -> VectorStore:
        """Give this store as seen by one model and setting.

        Parameters
        ----------
        fingerprint : str
            Changes with all that changes a vector.
        about : dict
            What the fingerprint stands for, kept beside the vectors for `info`.
        """
        scoped = copy.copy(self)
        scoped._fingerprint, scoped._about = fingerprint, about
        return scoped

    def _root_location(self) -> str | None:
        """Give the folder that was asked for, or None for the session's."""
        location = self.location
        if isinstance(location, joblib.Memory):
            location = location.location
        return None if location is None else os.fspath(location)

    def _root(self) -> Path:
        """Give the folder that holds all models' folders."""
        location = self._root_location()
        return (session_folder() if location is None else Path(location)) / _ROOT

    def _read(
        self, keys: NDArray[np.bytes_], columns: Sequence[Column], out: NDArray[np.float32]
    ) -> Found:
        """Read the vectors that are there.

        Parameters
        ----------
        keys : ndarray of dtype S16, shape (n,)
            From `text_keys`.
        columns : sequence of (layer, pooling)
            A text counts as found only if all of them are.
        out : ndarray of float32, shape (n, len(columns) * width)
            Filled in the order of `columns`. Rows that are missing are undefined.

        Returns
        -------
        Found
            Which texts are missing, and which of the others were cut.
        """
        damaged: set[Path] = set()
        for _ in range(_TRIES):
            absent = np.ones((len(columns), len(keys)), dtype=bool)
            truncated = np.zeros(len(keys), dtype=bool)
            try:
                for path in _list(self._folder()):
                    if not absent.any():
                        break
                    if path not in damaged:
                        self._read_shard(path, keys, columns, out, absent, truncated, damaged)
                break
            except FileNotFoundError:
                continue  # merged or evicted by another process just now: look again
        if damaged:
            self._repair(damaged)
        return Found(np.any(absent, axis=0, keepdims=True)[0], truncated)

    def _read_shard(
        self,
        path: Path,
        keys: NDArray[np.bytes_],
        columns: Sequence[Column],
        out: NDArray[np.float32],
        absent: NDArray[np.bool_],
        truncated: NDArray[np.bool_],
        damaged: set[Path],
    ) -> None:
        try:
            shard = open_shard(path)
            wanted = [i for i, column in enumerate(columns) if column in shard.columns]
            candidates = (
                np.flatnonzero(absent[wanted].any(axis=0)) if wanted else np.array([], int)
            )
            rows, hit = shard.find(keys[candidates])
            candidates, rows = candidates[hit], rows[hit]
            if not len(candidates):
                return
            with open(path, "rb", buffering=0) as file:
                for i in wanted:
                    here = absent[i, candidates]
                    values, good = shard.read(file, columns[i], rows[here])
                    if not good.all():
                        damaged.add(path)
                    target = candidates[here][good]
                    width = values.shape[1]
                    out[target, i * width : (i + 1) * width] = values[good]
                    absent[i, target] = False
            truncated[candidates] = shard.truncated[rows]
            with contextlib.suppress(OSError):
                os.utime(path)  # used now: eviction goes by this time
        except DamagedShardError:
            damaged.add(path)
        except FileNotFoundError:
            raise
        except OSError:
            pass  # unreadable for whatever reason is a miss

    def _write(
        self,
        keys: NDArray[np.bytes_],
        truncated: NDArray[np.bool_],
        columns: dict[Column, NDArray[np.floating[Any]]],
    ) -> None:
        """Store vectors as one shard; raises OSError where that cannot be."""
        folder = self._folder()
        write_shard(folder, keys, truncated, columns)
        about = folder / "about.json"
        if not about.exists():
            # Written whole or not at all, but only for people: nothing is decided by it.
            temporary = folder / f"about.{os.getpid()}.tmp"
            temporary.write_text(json.dumps(self._about, default=str), encoding="utf-8")
            os.replace(temporary, about)

    def _tidy(self) -> None:
        """Merge small shards, remove what killed writers left, and keep to the size limit."""
        with contextlib.suppress(OSError):
            self._merge_small()
            self._remove_abandoned()
        self._evict()

    def _merge_small(self) -> None:
        groups: dict[Any, list[Shard]] = defaultdict(list)
        for path in _list(self._folder()):
            size = _size(path)
            if size < _MERGE_BELOW and (shard := _try_open(path)) is not None:
                layout = tuple(sorted((c, v[0].__name__) for c, v in shard.columns.items()))
                # Shards of like size only, so that a row is copied log(n) times, not n times.
                groups[layout, (size.bit_length() + 2) // 3].append(shard)
        for shards in groups.values():
            if len(shards) >= _MERGE_COUNT:
                self._replace(shards)

    def _replace(self, shards: list[Shard]) -> None:
        used = max(shard.path.stat().st_mtime for shard in shards)
        merged, _ = merge_shards(shards, self._folder())
        if merged is not None:
            os.utime(merged, (used, used))
        for shard in shards:
            shard.path.unlink(missing_ok=True)

    def _remove_abandoned(self) -> None:
        oldest = time.time() - _ABANDONED_SECONDS
        for path in self._folder().glob("*.tmp"):
            if path.stat().st_mtime < oldest:
                path.unlink(missing_ok=True)

    def _evict(self) -> None:
        limit = self._limit_bytes()
        if limit is None:
            return
        shards = []
        for path in self._root().glob(f"*/*{SUFFIX}"):
            with contextlib.suppress(OSError):
                stat = path.stat()
                shards.append((stat.st_mtime_ns, stat.st_size, path))
        total = sum(size for _, size, _ in shards)
        for _, size, path in sorted(shards):
            if total <= limit:
                break
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
                total -= size

    def _repair(self, damaged: set[Path]) -> None:
        names = ", ".join(sorted(path.name for path in damaged))
        warnings.warn(
            f"{len(damaged)} damaged shard(s) in {self._folder()}: {names}. What they held is "
            f"computed again.",
            StoreWarning,
            stacklevel=2,
        )
        for path in damaged:
            # Keep what is intact. In a folder that cannot be written they stay a miss.
            with contextlib.suppress(OSError):
                with contextlib.suppress(DamagedShardError):
                    merge_shards([open_shard(path)], self._folder())
                path.unlink(missing_ok=True)

    def _limit_bytes(self) -> int | None:
        """Give the size limit as a number of bytes."""
        if self.size_limit is None:
            return None
        if isinstance(self.size_limit, str):
            return int(memstr_to_bytes(self.size_limit))
        return int(self.size_limit)

    def _folder(self) -> Path:
        assert self._fingerprint is not None, "scoped() gives a store that reads and writes"
        return self._root() / self._fingerprint

    def _folders(self) -> list[Path]:
        if self._fingerprint is not None:
            return [self._folder()]
        try:
            return sorted(path for path in self._root().iterdir() if path.is_dir())
        except OSError:
            return []


def _list(folder: Path) -> list[Path]:
    """Shards of a folder; none where there is no such folder."""
    try:
        with os.scandir(folder) as entries:
            return [Path(entry.path) for entry in entries if entry.name.endswith(SUFFIX)]
    except OSError:
        return []


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _try_open(path: Path) -> Shard | None:
    try:
        return open_shard(path)
    except (OSError, DamagedShardError):
        return None


def _is_intact(shard: Shard) -> bool:
    everything = np.arange(len(shard.keys))
    with open(shard.path, "rb", buffering=0) as file:
        return all(shard.read(file, column, everything)[1].all() for column in shard.columns)


def _read_about(folder: Path) -> dict[str, Any]:
    try:
        about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {"fingerprint": folder.name}
    return {"fingerprint": folder.name, **about} if isinstance(about, dict) else {}


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
        limit = store._limit_bytes()
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
            self._store._write(keys, truncated, self._split(vectors))
        except OSError as error:
            self._broken = True
            warnings.warn(
                f"Vectors cannot be stored in {self._store._root()} ({error}); results are right "
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
