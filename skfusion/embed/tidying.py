"""What keeps a store's folder small: merging shards, evicting them, clearing what is damaged.

Nothing is removed before all of it that is to stay is published elsewhere, so that a process may
be killed at any moment: what it leaves are two copies, which are as good as one.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import shards
from .shards import DamagedShardError, Shard

_MERGE_COUNT = 8  # shards of like size that are made one
_MERGE_FILES = 64  # so many are open together at most
_MERGE_BYTES = 64 * 2**20  # of what they are made; one of more than an eighth is left alone
_MERGE_SECONDS = 5.0  # after which a call begins no other merge: the next one goes on
_ABANDONED_SECONDS = 3600.0  # a temporary file older than this has no writer any more
_STUCK: set[Path] = set()  # files that this process could not remove: no second copy of them


def remove_abandoned(folder: Path) -> None:
    """Remove temporary files that killed writers have left."""
    for path in shards.list_files(folder, shards.TEMPORARY_NAME):
        with contextlib.suppress(OSError):
            # Those of a time to come, too: the clock was put back.
            if abs(time.time() - path.stat().st_mtime) > _ABANDONED_SECONDS:
                shards.remove_own(path)


def merge_small(folder: Path, limit: int | None) -> None:
    """Make small shards with the same columns one, a bounded number of bytes at a time."""
    until = time.monotonic() + _MERGE_SECONDS
    # With a limit, small enough that removing one leaves most of it.
    most = _MERGE_BYTES if limit is None else min(_MERGE_BYTES, limit // 8)
    groups: dict[Any, list[tuple[int, Shard]]] = defaultdict(list)
    for path, size, shard in shards.open_all(folder, shards.open_shard):
        if shard is None or size > most // _MERGE_COUNT or not _is_removable(path):
            continue
        layout = tuple(sorted((c, str(place[0]), place[1]) for c, place in shard.columns.items()))
        # Shards of like size only, so that a row is copied log(n) times, not n times.
        groups[layout, (size.bit_length() + 2) // 3].append((size, shard))
    for group in groups.values():
        while len(group) >= _MERGE_COUNT and time.monotonic() < until:
            free, part = most, list[Shard]()
            while group and len(part) < _MERGE_FILES and group[-1][0] <= free:
                size, shard = group.pop()
                free -= size
                part.append(shard)
            replace(part, folder)


def replace(group: Sequence[Shard], folder: Path) -> None:
    """Put one shard in the place of several."""
    paths = [shard.path for shard in group]
    used = max(path.stat().st_mtime_ns for path in paths)
    merged, _ = shards.merge_shards(group, folder)
    if merged is not None:
        os.utime(merged, ns=(used, used))
        if not all(map(os.path.lexists, paths)):
            shards.remove_own(merged)  # another process has made one of them, too
            return
    _remove_copied(paths, merged)


def evict(folders: Sequence[Path], limit: int) -> None:
    """Remove the least recently used shards until the rest fits, and no more than it takes."""
    # A time to come says nothing (the clock was put back): such files go first.
    latest, found = time.time_ns() + int(_ABANDONED_SECONDS * 1e9), []
    for folder in folders:
        for path in shards.list_files(folder):
            with contextlib.suppress(OSError):
                info = path.stat()
                used = info.st_mtime_ns if info.st_mtime_ns < latest else 0
                found.append((used, info.st_size, path))
    total = sum(size for _, size, _ in found)
    own = sorted(entry for entry in found if total > limit and shards.is_own(entry[2]))
    excess = sum(size for _, size, _ in own) - limit
    for used, size, path in own:
        if excess > 0 and shards.can_remove(path):
            with contextlib.suppress(OSError):
                # Of a shard that is large beside the limit some rows stay.
                large = size > excess + limit // 4 and path not in _STUCK
                kept = _copy_rows(path, size - excess, used) if large else None
                _remove_copied([path], kept)
                excess -= size - (kept.stat().st_size if kept else 0)


def keep_intact(path: Path) -> None:
    """Put what is intact of a damaged shard in its place, if that can be; else nothing changes."""
    with contextlib.suppress(OSError, MemoryError):
        if _is_removable(path):
            kept = None
            with contextlib.suppress(DamagedShardError):
                kept, _ = shards.merge_shards([shards.read_shard(path)], path.parent)
            _remove_copied([path], kept)


def _is_removable(path: Path) -> bool:
    return path not in _STUCK and shards.can_remove(path)


def _copy_rows(path: Path, most_bytes: int, used: int) -> Path | None:
    """Write as many rows of a shard as fit into so many bytes; None where that cannot be."""
    with contextlib.suppress(OSError, MemoryError, DamagedShardError):
        shard = shards.read_shard(path)
        head = min(offset for _, _, offset in shard.columns.values()) + 4 * len(shard.columns)
        n_rows = (most_bytes - head) * len(shard.keys) // (path.stat().st_size - head)
        if n_rows > 0:
            kept, _ = shards.merge_shards([shard], path.parent, n_rows)
            if kept is not None:
                os.utime(kept, ns=(used, used))
            return kept
    return None


def _remove_copied(paths: Sequence[Path], copy: Path | None) -> None:
    """Remove shards of which there is a copy; the copy if that fails, so that none is added."""
    for i, path in enumerate(paths):
        try:
            shards.remove_own(path)
        except OSError:
            _STUCK.update(paths)
            if copy is not None and i == 0:
                _STUCK.add(copy)
                shards.remove_own(copy)
            raise
