"""Per-text vectors on disk: found by the text's hash, written by many, never locked."""

from __future__ import annotations

import contextlib
import inspect
import json
import logging
import math
import os
import re
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

import joblib
import numpy as np

from . import shards, tidying
from .session import session_folder
from .shards import Column, DamagedShardError, Keys, Mask, Shard, UnmarkedError, Vectors
from .texts import KEY_BYTES

_LOG = logging.getLogger(__name__)
_FINGERPRINT = re.compile("[0-9a-f]{32}")  # what joblib.hash returns
_SIZE = re.compile(r"\s*(\d+\.?\d*|\.\d+)\s*(?:([KMGT])(?:i?B)?|B)?\s*", re.IGNORECASE)
_USED_SECONDS = 1.0  # how exact the time of last use is that eviction goes by
STORE_DTYPES = ("auto", "float32", "float16")
_MODES = ("rw", "r")
_TRIES = 10  # how often shards may vanish under a reader before it computes instead
_FLUSH_BYTES = 64 * 2**20  # of a shard in memory, as float32
_ABOUT_BYTES = 2**20  # of about.json that are read
_FLUSH_SECONDS = 15.0  # what a killed pass may lose
_WARNED: set[Path] = set()  # files left alone and folders left untidy that it has heard of


class StoreWarning(UserWarning):
    """Vectors could not be stored or were found damaged; results are right all the same."""


@dataclass
class Found:
    """What a store knows of some texts."""

    missing: Mask
    truncated: Mask


class VectorStore:
    """A folder of pooled vectors, for the `memory` parameter of an embedder, which checks it.

    A path as `memory` makes a store with the defaults. Several processes, and hosts on a shared
    folder, may use one store at the same time: its files are immutable and appear by an atomic
    rename. Other people's files in the folder are left alone. A process keeps up to 64 MB of
    what it read lately in memory.

    Parameters
    ----------
    location : path-like, joblib.Memory or None, default=None
        The folder; made when the first vectors are stored. Of a `joblib.Memory` its location is
        taken. None is a temporary folder of this process and its joblib workers, removed at
        exit.
    size_limit : int, str or None, default=None
        Most bytes on disk, or a size such as ``"500M"``, ``"1.5 GB"`` or ``"10GiB"``: the units
        K, M, G and T are powers of 1024, with B or iB behind them too. Whenever vectors are
        stored, the least recently used ones are removed until the rest fits; at least three
        quarters stay in use. Reading removes nothing.
    layers : "all", "requested" or list, default="all"
        Layers that a pass stores. "requested" keeps only what the embedder's `layer` and
        `pooling` ask for, and the pass stops behind the deepest of these layers. A list is of
        the form of the embedder's `layer`. With ``layer="auto"``, `fit` asks for all layers and
        `transform` for the chosen one: "requested" saves time on texts that are never trained
        on, but in a cross-validation, where the test rows of one fold are the training rows of
        another, "all" runs every text only once.
    poolings : "all", "requested" or list of str, default="all"
        Poolings that a pass stores, where `layers` is not "requested".
    dtype : {"auto", "float32", "float16"}, default="auto"
        "auto" rounds a vector to float16 where the error is at most 1e-3 of its norm and no value
        reaches 6e4; others stay float32. What is returned is what is stored, cold or warm.
    mode : {"rw", "r"}, default="rw"
        "r" reads and changes nothing: vectors that are not stored are computed, and kept nowhere.

    Examples
    --------
    >>> from skfusion import LLMLayerEmbedder, VectorStore
    >>> store = VectorStore(size_limit="10M", poolings=["mean", "last"])
    >>> store
    VectorStore(size_limit='10M', poolings=['mean', 'last'])
    >>> embedder = LLMLayerEmbedder(tiny_model, memory=store)
    >>> embedder.fit_transform(["good film", "bad film"]).shape
    (2, 16)
    >>> embedder.store_.verify()["damaged"]
    []
    """

    _fingerprint: str | None = None
    _about: dict[str, Any] = {}

    def __init__(
        self,
        location: str | os.PathLike[str] | joblib.Memory | None = None,
        *,
        size_limit: int | str | None = None,
        layers: str | list[int | float] = "all",
        poolings: str | list[str] = "all",
        dtype: str = "auto",
        mode: str = "rw",
    ) -> None:
        self.location = location
        self.size_limit = size_limit
        self.layers = layers
        self.poolings = poolings
        self.dtype = dtype
        self.mode = mode

    def __repr__(self) -> str:
        shown = {name: repr(getattr(self, name)) for name in self._defaults()}
        changed = [f"{k}={v}" for k, v in shown.items() if v != repr(self._defaults()[k])]
        return f"{type(self).__name__}({', '.join(changed)})"

    def __getstate__(self) -> dict[str, Any]:
        if self._root_location() is None:
            session_folder()  # workers look for it, so it must exist before they are sent this
        # Which folder is written to is found anew, never taken from a file.
        return {name: getattr(self, name) for name in self._defaults()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({k: state.get(k, v) for k, v in self._defaults().items()})

    def __sklearn_clone__(self) -> VectorStore:
        return self

    @classmethod
    def _defaults(cls) -> dict[str, Any]:
        return {k: v.default for k, v in inspect.signature(cls).parameters.items()}

    def info(self) -> dict[str, Any]:
        """Describe what is stored.

        Returns
        -------
        dict
            ``location``, ``n_texts`` (rows, a text under two models counted twice), ``n_shards``,
            ``n_bytes``, ``size_limit`` (bytes or None) and ``models``, one dict per model and
            setting.
        """
        models = []
        for folder in self._folders():
            found = list(shards.open_all(folder, shards.open_shard))
            opened = [shard for _, _, shard in found if shard is not None]
            columns = {column for shard in opened for column in shard.columns}
            models.append(
                {
                    **_read_about(folder),
                    "n_texts": len(set().union(*(shard.keys.tolist() for shard in opened))),
                    "n_shards": len(found),
                    "n_bytes": sum(size for _, size, _ in found),
                    "layers": sorted({layer for layer, _ in columns}),
                    "poolings": sorted({pooling for _, pooling in columns}),
                }
            )
        totals = {n: sum(m[n] for m in models) for n in ("n_texts", "n_shards", "n_bytes")}
        limit = self._limit_bytes()
        return {"location": str(self._root()), **totals, "size_limit": limit, "models": models}

    def clear(self) -> None:
        """Remove the stored vectors: of one model for ``embedder.store_``, otherwise all.

        Files in the folder that no store has written stay where they are.
        """
        for folder in self._folders():
            shards.clear_folder(folder)

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
            for path, _, shard in shards.open_all(folder, shards.read_shard):
                intact = False
                try:
                    intact = shard is not None and _is_intact(shard)
                except FileNotFoundError:
                    continue  # merged or evicted just now
                except OSError:
                    pass
                n_shards += 1
                n_texts += 0 if shard is None else len(shard.keys)
                if not intact:
                    damaged.append(str(path))
        return {"n_shards": n_shards, "n_texts": n_texts, "damaged": damaged}

    def _scoped(self, fingerprint: str, about: dict[str, Any]) -> VectorStore:
        """Return this store as seen by one model and setting, and what `info` says of these."""
        scoped = object.__new__(type(self))
        scoped.__dict__.update(self.__dict__)
        scoped._fingerprint, scoped._about = fingerprint, about
        return scoped

    def _check(self) -> None:
        """Refuse parameters that would fail when something is stored; `fit` calls it."""
        self._limit_bytes()
        if self.dtype not in STORE_DTYPES:
            raise ValueError(
                f"VectorStore(dtype=...): dtype must be one of {', '.join(STORE_DTYPES)}; got "
                f"{self.dtype!r}."
            )
        if self.mode not in _MODES:
            raise ValueError(
                f"VectorStore(mode=...): mode must be 'rw' (read and write) or 'r' (read only); "
                f"got {self.mode!r}."
            )
        location = self._root_location()
        if location is not None and (not isinstance(location, str) or "\0" in location):
            raise ValueError(
                f"VectorStore(location=...): location must be the path of a folder, a "
                f"joblib.Memory or None; got {location!r}."
            )

    @property
    def _writes(self) -> bool:
        """Whether what is computed is kept."""
        return self.mode != "r"

    def _root_location(self) -> str | None:
        """Return the folder that was asked for, or None for the session's."""
        location = getattr(self.location, "location", self.location)  # of a joblib.Memory
        return location.__fspath__() if isinstance(location, os.PathLike) else location

    def _root(self) -> Path:
        """Return the folder that holds all models' folders."""
        location = self._root_location()
        return (session_folder() if location is None else Path(location)) / shards.MARK

    def _read(self, keys: Keys, columns: Sequence[Column], out: Vectors) -> Found:
        """Read vectors into (n, len(columns) * width); rows without all columns are missing."""
        found = Found(np.ones((len(columns), len(keys)), bool), np.zeros(len(keys), bool))
        seen: set[Path] = set()
        damaged: set[Path] = set()
        # Shards may be merged while we look: what they held is then in one that is new.
        for attempt in range(_TRIES):
            fresh = [path for path in shards.list_files(self._folder()) if path not in seen]
            for path in fresh:
                if not found.missing.any():
                    break
                seen.add(path)
                with contextlib.suppress(FileNotFoundError):
                    if not self._read_shard(path, keys, columns, out, found):
                        damaged.add(path)
            if not found.missing.any() or (attempt and not fresh):
                break
        if damaged:
            self._repair(damaged)
        return Found(np.any(found.missing, axis=0, keepdims=True)[0], found.truncated)

    def _read_shard(
        self, path: Path, keys: Keys, columns: Sequence[Column], out: Vectors, found: Found
    ) -> bool:
        """Read what a shard has of what is missing; return whether it is intact."""
        intact, width = True, out.shape[1] // len(columns)
        try:
            shard = shards.open_shard(path)
            wanted = [i for i, column in enumerate(columns) if column in shard.columns]
            if any(shard.columns[columns[i]][1] != width for i in wanted):
                raise UnmarkedError(f"{path} has vectors of another width: it is left alone")
            left = np.flatnonzero(found.missing[wanted].any(axis=0))
            rows, hit = shard.find(keys[left])
            left, rows = left[hit], rows[hit]
            if not len(left):
                return True
            found.truncated[left] = shard.truncated[rows]
            with shards.open_file(path) as file:
                for i in wanted:
                    here = np.flatnonzero(found.missing[i, left])
                    for part, vectors in shard.chunks(file, columns[i], rows[here], shards.RECENT):
                        if vectors is None:
                            intact = False
                            continue
                        target = left[here[part]]
                        out[target, i * width : (i + 1) * width] = vectors
                        found.missing[i, target] = False
            with contextlib.suppress(OSError):
                if self._writes and abs(time.time() - path.stat().st_mtime) > _USED_SECONDS:
                    os.utime(path)  # used now: eviction goes by this time
        except UnmarkedError as error:
            _warn_once(path, str(error))
        except DamagedShardError:
            return False
        except FileNotFoundError:
            raise
        except (OSError, MemoryError):
            pass  # unreadable for whatever reason is a miss
        return intact

    def _width(self, column: Column) -> int | None:
        """Return the width of a column as it is stored, or None where it is not."""
        for path in shards.list_files(self._folder()):
            with contextlib.suppress(OSError, MemoryError, UnmarkedError, DamagedShardError):
                shard = shards.open_shard(path)
                if column in shard.columns:
                    return shard.columns[column][1]
        return None

    def _write(self, keys: Keys, truncated: Mask, columns: dict[Column, Vectors]) -> None:
        """Store vectors as one shard; raises OSError where that cannot be."""
        folder = self._folder()
        shards.write_shard(folder, keys, truncated, columns)
        _LOG.info("stored %d texts, %d vectors each, in %s", len(keys), len(columns), folder)
        about = folder / "about.json"
        if not os.path.lexists(about):
            # Only for people: nothing is decided by it.
            content = json.dumps({shards.MARK: "about", **self._about}, default=str)
            with contextlib.suppress(OSError), shards.publishing(about) as temporary:
                temporary.write_text(content, encoding="utf-8")
        with contextlib.suppress(OSError):
            self._evict()

    def _tidy(self) -> None:
        """Keep to the size limit, remove what killed writers left, and merge small shards.

        It comes after the result, which is right whatever fails here.
        """
        if not self._writes:
            return
        folder = self._folder()
        try:
            tidying.remove_abandoned(folder)
            self._evict()
            tidying.merge_small(folder, self._limit_bytes())
        except OSError:
            pass  # others remove files too, or the disk is full
        except Exception as error:
            _warn_once(folder, f"The store in {folder} stays untidy for now: {error!r}")

    def _evict(self) -> None:
        limit = self._limit_bytes()
        if limit is not None:
            tidying.evict(VectorStore(self.location)._folders(), limit)

    def _repair(self, damaged: set[Path]) -> None:
        for path in damaged if self._writes else ():
            tidying.keep_intact(path)
        left = {path for path in damaged if os.path.lexists(path)}
        if left and left <= _WARNED:
            return  # they cannot be removed, and it was said
        _WARNED.update(left)
        names = ", ".join(sorted(path.name for path in damaged))
        warnings.warn(
            f"{len(damaged)} damaged shard(s) in {self._folder()}: {names}. What they held is "
            f"computed again.",
            StoreWarning,
            stacklevel=2,
        )

    def _limit_bytes(self) -> int | None:
        """Return the size limit as a number of bytes."""
        limit: Any = self.size_limit
        n_bytes = math.nan
        if limit is None:
            return None
        if isinstance(limit, str) and (match := _SIZE.fullmatch(limit)):
            n_bytes = float(match[1]) * 1024 ** (" KMGT".index((match[2] or " ").upper()))
        elif isinstance(limit, Real) and limit is not True:
            n_bytes = float(limit)
        if not 1 <= n_bytes < math.inf:
            raise ValueError(
                f"VectorStore(size_limit=...): size_limit must be None, a number of bytes of at "
                f"least 1, or a size such as '500M', '1.5 GB' or '10GiB' (K, M, G and T are "
                f"powers of 1024); got {limit!r}."
            )
        return int(n_bytes)

    def _folder(self) -> Path:
        """Return the folder of one model and setting, which can lie nowhere but in the root."""
        name = self._fingerprint
        if not isinstance(name, str) or not _FINGERPRINT.fullmatch(name):
            raise ValueError(
                f"The fingerprint of a store must be 32 lowercase hexadecimal digits, as "
                f"joblib.hash returns; got {name!r}. Use the `store_` of a fitted embedder."
            )
        return self._root() / name

    def _folders(self) -> list[Path]:
        if self._fingerprint is not None:
            return [self._folder()]
        try:
            found = sorted(self._root().iterdir())
        except OSError:
            return []
        names = (path for path in found if _FINGERPRINT.fullmatch(path.name))
        return [path for path in names if os.path.isdir(path)]


class NoStore(VectorStore):
    """What ``memory=False`` stands for: nothing is found, and nothing kept."""

    _writes = False

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def info(self) -> dict[str, Any]:
        """Describe that nothing is stored."""
        totals = dict.fromkeys(("n_texts", "n_shards", "n_bytes"), 0)
        return {"location": None, **totals, "size_limit": None, "models": []}

    def _folders(self) -> list[Path]:
        return []

    def _width(self, column: Column) -> int | None:
        return None

    def _read(self, keys: Keys, columns: Sequence[Column], out: Vectors) -> Found:
        return Found(np.ones(len(keys), bool), np.zeros(len(keys), bool))


class Writer:
    """Gathers the vectors of one pass into shards, published also when the pass breaks off."""

    def __init__(self, store: VectorStore, columns: Sequence[Column]) -> None:
        self._store, self._columns = store, columns
        self._parts: list[tuple[Keys, Mask, Vectors]] = []
        self._bytes, self._since = 0, time.monotonic()
        self._broken, self._limit = False, store._limit_bytes()
        # Shards small enough that a size limit evicts in steps.
        limit = _FLUSH_BYTES if self._limit is None else self._limit // 8
        self._flush_bytes = min(_FLUSH_BYTES, limit)

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self.flush()

    def add(self, keys: Keys, truncated: Mask, vectors: Vectors) -> None:
        """Take vectors of shape (n, len(columns) * width); publish if there are enough."""
        if self._broken or not self._store._writes or not len(keys):
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
        try:
            keys, truncated, vectors = (np.concatenate(part) for part in zip(*parts, strict=True))
            step = self._rows_per_shard(len(keys), vectors[0].nbytes)
            for start in range(0, len(keys) if step else 0, step or 1):
                rows = slice(start, start + step)
                split = np.split(vectors[rows], len(self._columns), axis=1)
                named = zip(self._columns, split, strict=True)
                columns = {column: part for column, part in named if np.isfinite(part).all()}
                if columns:
                    self._store._write(keys[rows], truncated[rows], columns)
        except (OSError, MemoryError) as error:
            self._broken = True
            warnings.warn(
                f"Vectors cannot be stored in {self._store._root()} ({error}); results are right "
                f"but will be computed again. Check permissions and free space, or choose another "
                f"folder with memory=.",
                StoreWarning,
                stacklevel=2,
            )

    def _rows_per_shard(self, n_rows: int, row_bytes: int) -> int:
        """Return how many rows keep a shard in a quarter of the limit; 0 if it takes not one."""
        if self._limit is None:
            return n_rows
        head = 1000 + 150 * len(self._columns)  # of the header, and a checksum per column
        fits = (self._limit // 4 - head) // (row_bytes + 2 * KEY_BYTES)
        return max(fits, int(row_bytes // 2 < self._limit))


def _is_intact(shard: Shard) -> bool:
    rows = np.arange(len(shard.keys))
    with shards.open_file(shard.path) as file:
        return all(
            chunk is not None for c in shard.columns for _, chunk in shard.chunks(file, c, rows)
        )


def _warn_once(path: Path, message: str) -> None:
    if path not in _WARNED:
        _WARNED.add(path)
        warnings.warn(message, StoreWarning, stacklevel=3)


def _read_about(folder: Path) -> dict[str, Any]:
    about: dict[str, Any] = {}
    # For people only, so that what is wrong with it, of whatever kind, is worth no word.
    with contextlib.suppress(Exception), shards.open_file(folder / "about.json") as file:
        if shards.is_own(folder / "about.json"):
            about = dict(json.loads(file.read(_ABOUT_BYTES)))
    about.pop(shards.MARK, None)
    return {**about, "fingerprint": folder.name}
