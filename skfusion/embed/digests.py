"""Content digests of model files, remembered while a file's size and times stay the same."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import uuid
from pathlib import Path

import platformdirs

#: What can change a vector. Weights in formats that are not loaded, read-mes and pictures cannot.
_MODEL_SUFFIXES = frozenset(
    {".json", ".txt", ".model", ".safetensors", ".bin", ".jinja", ".tiktoken", ".vocab", ".bpe"}
    | {".spm", ".codes", ".tokenizer"}
)

# Path, size, mtime, ctime, inode. ctime is there because a tool may restore mtime; nothing
# restores ctime.
_Key = tuple[str, int, int, int, int]
_REMEMBERED: dict[_Key, str] = {}  # per process


def cache_folder() -> Path:
    """Return the folder for converted models and digests: ``$SKFUSION_CACHE`` or the user's."""
    override = os.environ.get("SKFUSION_CACHE")
    return Path(override) if override else platformdirs.user_cache_path("skfusion")


def file_digest(path: str | os.PathLike[str]) -> str:
    """Return the sha256 of a file's content, computed again only when the file was written."""
    real = os.path.realpath(path)
    stat = os.stat(real)
    key = (real, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)
    digest = _REMEMBERED.get(key) or _recall(key)
    if digest is None:
        with open(real, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        _record(key, digest)
    _REMEMBERED[key] = digest
    return digest


def folder_digest(folder: str | os.PathLike[str]) -> str:
    """Return a digest of all files of a model folder that can change its vectors, by content."""
    root = Path(folder)
    files = [p for p in root.iterdir() if p.suffix in _MODEL_SUFFIXES and p.is_file()]
    files += root.rglob("*.py")  # the code of a model with trust_remote_code
    total = hashlib.sha256()
    for name, path in sorted((path.relative_to(root).as_posix(), path) for path in files):
        total.update(f"{name}\0{file_digest(path)}\n".encode())
    return total.hexdigest()


def _recall_path(key: _Key) -> Path:
    name = hashlib.sha256(key[0].encode("utf-8", "surrogateescape")).hexdigest()
    return cache_folder() / "digests" / f"{name}.json"


def _recall(key: _Key) -> str | None:
    """Read what an earlier process recorded; large models take seconds to digest anew."""
    try:
        recorded = json.loads(_recall_path(key).read_text(encoding="utf-8"))
        if recorded["key"] == list(key[1:]):
            return str(recorded["digest"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return None


def _record(key: _Key, digest: str) -> None:
    path = _recall_path(key)
    # A cache folder that cannot be written costs time in the next process, nothing else.
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
        temporary.write_text(json.dumps({"key": key[1:], "digest": digest}), encoding="utf-8")
        temporary.replace(path)
