"""Per-text vectors on disk: found by the text's hash, written by many, never locked."""

from __future__ import annotations

import contextlib
import copy
import inspect
import json
import os
import re
import time
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import joblib
import numpy as np
from joblib.disk import memstr_to_bytes

from . import shards
from .session import session_folder
from .shards import Column, DamagedShardError, Keys, Mask, Shard, UnmarkedError, Vectors

_FINGERPRINT = re.compile("[0-9a-f]{32}")  # what joblib.hash returns
_MERGE_COUNT = 8  # shards of like size that are made one
_MERGE_BELOW = 32 * 2**20  # larger ones are left alone
_ABANDONED_SECONDS = 3600.0  # a temporary file older than this has no writer any more
_USED_SECONDS = 1.0  # how exact the time of last use is that eviction goes by
_TRIES = 10  # how often shards may vanish under a reader before it computes instead
_FLUSH_BYTES = 64 * 2**20  # of a shard in memory, as float32
_FLUSH_SECONDS = 15.0  # what a killed pass may lose
_WARNED: set[Path] = set()  # files without a mark that this process has heard of


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
        Most bytes on disk, or a size such as ``"500M"`` or ``"10G"``. After every call the least
        recently used files are removed until the rest fits.
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
    ) -> None:
        self.location = location
        self.size_limit = size_limit
        self.layers = layers
        self.poolings = poolings
        self.dtype = dtype

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
            found = list(_open_all(folder))
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
            for path, _, shard in _open_all(folder):
                n_shards += 1
                intact = False
                if shard is not None:
                    n_texts += len(shard.keys)
                    rows = np.arange(len(shard.keys))
                    with contextlib.suppress(OSError), open(path, "rb", buffering=0) as file:
                        intact = all(shard.read(file, c, rows)[1].all() for c in shard.columns)
                if not intact:
                    damaged.append(str(path))
        return {"n_shards": n_shards, "n_texts": n_texts, "damaged": damaged}

    def _scoped(self, fingerprint: str, about: dict[str, Any]) -> VectorStore:
        """Return this store as seen by one model and setting, and what `info` says of these."""
        scoped = copy.copy(self)
        scoped._fingerprint, scoped._about = fingerprint, about
        return scoped

    def _root_location(self) -> str | None:
        """Return the folder that was asked for, or None for the session's."""
        location = getattr(self.location, "location", self.location)  # of a joblib.Memory
        return None if location is None else os.fspath(location)

    def _root(self) -> Path:
        """Return the folder that holds all models' folders."""
        location = self._root_location()
        return (session_folder() if location is None else Path(location)) / shards.MARK

    def _read(self, keys: Keys, columns: Sequence[Column], out: Vectors) -> Found:
        """Read vectors into (n, len(columns) * width); rows without all columns are missing."""
        damaged: set[Path] = set()
        for _ in range(_TRIES):
            found = Found(np.ones((len(columns), len(keys)), bool), np.zeros(len(keys), bool))
            try:
                for path in shards.list_files(self._folder()):
                    if not found.missing.any():
                        break
                    known = path in damaged or self._read_shard(path, keys, columns, out, found)
                    if not known:
                        damaged.add(path)
                break
            except FileNotFoundError:
                continue  # merged or evicted by another process just now: look again
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
            left = np.flatnonzero(found.missing[wanted].any(axis=0))
            rows, hit = shard.find(keys[left])
            left, rows = left[hit], rows[hit]
            if not len(left):
                return True
            with open(path, "rb", buffering=0) as file:
                for i in wanted:
                    here = np.flatnonzero(found.missing[i, left])
                    for part, vectors in shard.chunks(file, columns[i], rows[here], shards.RECENT):
                        if vectors is None:
                            intact = False
                            continue
                        target = left[here[part]]
                        out[target, i * width : (i + 1) * width] = vectors
                        found.missing[i, target] = False
            found.truncated[left] = shard.truncated[rows]
            with contextlib.suppress(OSError):
                if abs(time.time() - path.stat().st_mtime) > _USED_SECONDS:
                    os.utime(path)  # used now: eviction goes by this time
        except UnmarkedError as error:
            if path not in _WARNED:
                _WARNED.add(path)
                warnings.warn(str(error), StoreWarning, stacklevel=2)
        except DamagedShardError:
            return False
        except FileNotFoundError:
            raise
        except OSError:
            pass  # unreadable for whatever reason is a miss
        return intact

    def _write(self, keys: Keys, truncated: Mask, columns: dict[Column, Vectors]) -> None:
        """Store vectors as one shard; raises OSError where that cannot be."""
        folder = self._folder()
        shards.write_shard(folder, keys, truncated, columns)
        about = folder / "about.json"
        if not os.path.lexists(about):
            # Only for people: nothing is decided by it.
            content = json.dumps({shards.MARK: "about", **self._about}, default=str)
            with shards.publishing(about) as temporary:
                temporary.write_text(content, encoding="utf-8")

    def _tidy(self) -> None:
        """Merge small shards, remove what killed writers left, and keep to the size limit."""
        with contextlib.suppress(OSError):
            self._merge_small()
            oldest = time.time() - _ABANDONED_SECONDS
            for path in shards.list_files(self._folder(), shards.TEMPORARY_NAME):
                if path.stat().st_mtime < oldest:
                    shards.remove_own(path)
        self._evict()

    def _merge_small(self) -> None:
        groups: dict[Any, list[Shard]] = defaultdict(list)
        for _, size, shard in _open_all(self._folder()):
            if size < _MERGE_BELOW and shard is not None:
                layout = tuple(sorted((c, v[0].__name__) for c, v in shard.columns.items()))
                # Shards of like size only, so that a row is copied log(n) times, not n times.
                groups[layout, (size.bit_length() + 2) // 3].append(shard)
        for group in groups.values():
            if len(group) >= _MERGE_COUNT:
                self._replace(group)

    def _replace(self, group: list[Shard]) -> None:
        used = max(shard.path.stat().st_mtime for shard in group)
        merged, _ = shards.merge_shards(group, self._folder())
        if merged is not None:
            os.utime(merged, (used, used))
        for shard in group:
            shards.remove_own(shard.path)

    def _evict(self) -> None:
        limit, found = self._limit_bytes(), []
        if limit is None:
            return
        for folder in VectorStore(self.location)._folders():
            for path in shards.list_files(folder):
                with contextlib.suppress(OSError):
                    info = path.stat()
                    found.append((info.st_mtime_ns, info.st_size, path))
        total = sum(size for _, size, _ in found)
        own = sorted(entry for entry in found if total > limit and shards.is_own(entry[2]))
        excess = sum(size for _, size, _ in own) - limit
        for _, size, path in own:
            if excess > 0:
                with contextlib.suppress(OSError):
                    shards.remove_own(path)
                    excess -= size

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
                    shards.merge_shards([shards.open_shard(path)], self._folder())
                shards.remove_own(path)

    def _limit_bytes(self) -> int | None:
        """Return the size limit as a number of bytes."""
        limit = self.size_limit
        return int(memstr_to_bytes(limit)) if isinstance(limit, str) else limit

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
        return [path for path in found if path.is_dir() and _FINGERPRINT.fullmatch(path.name)]


class Writer:
    """Gathers the vectors of one pass into shards, published also when the pass breaks off."""

    def __init__(self, store: VectorStore, columns: Sequence[Column]) -> None:
        self._store, self._columns = store, columns
        self._parts: list[tuple[Keys, Mask, Vectors]] = []
        self._bytes, self._since = 0, time.monotonic()
        self._broken, limit = False, store._limit_bytes()
        # Shards small enough that a size limit evicts in steps.
        self._flush_bytes = _FLUSH_BYTES if limit is None else min(_FLUSH_BYTES, limit // 4)

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self.flush()

    def add(self, keys: Keys, truncated: Mask, vectors: Vectors) -> None:
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
            split = np.split(vectors, len(self._columns), axis=1)
            named = zip(self._columns, split, strict=True)
            columns = {column: part for column, part in named if np.isfinite(part).all()}
            self._store._write(keys, truncated, columns)
        except OSError as error:
            self._broken = True
            warnings.warn(
                f"Vectors cannot be stored in {self._store._root()} ({error}); results are right "
                f"but will be computed again. Check permissions and free space, or choose another "
                f"folder with memory=.",
                StoreWarning,
                stacklevel=2,
            )


def _open_all(folder: Path) -> Iterator[tuple[Path, int, Shard | None]]:
    """Yield every shard of a folder with its size, None for one that is damaged."""
    for path in shards.list_files(folder):
        size, shard = 0, None
        try:
            size = path.stat().st_size
            shard = shards.open_shard(path)
        except (FileNotFoundError, UnmarkedError):
            continue
        except (OSError, DamagedShardError):
            pass
        yield path, size, shard


def _read_about(folder: Path) -> dict[str, Any]:
    path = folder / "about.json"
    about: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        about = json.loads(path.read_text(encoding="utf-8")) if shards.is_own(path) else {}
    return {"fingerprint": folder.name, **{k: v for k, v in about.items() if k != shards.MARK}}
