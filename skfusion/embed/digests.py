"""Content digests of model files, remembered while a file's size and times stay the same."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import uuid
from collections.abc import Iterable
from pathlib import Path

import platformdirs

#: What can change a vector. Weights in formats that are not loaded, read-mes and pictures cannot.
_MODEL_SUFFIXES = frozenset(
    {".json", ".txt", ".model", ".safetensors", ".bin", ".jinja", ".tiktoken", ".vocab", ".bpe"}
)

# Per process: (path, size, mtime, ctime, inode) -> digest. ctime is there because a tool may
# restore mtime; nothing restores ctime.
_REMEMBERED: dict[tuple[str, int, int, int, int], str] = {}


def cache_folder() -> Path:
    """Give the folder for converted models and remembered digests, without making it.

    Returns
    -------
    pathlib.Path
        ``$SKFUSION_CACHE`` where it is set, otherwise the user's cache folder for skfusion.
    """
    override = os.environ.get("SKFUSION_CACHE")
    return Path(override) if override else platformdirs.user_cache_path("skfusion")


def file_digest(path: str | os.PathLike[str]) -> str:
    """Digest a file's content (sha256), computing it again only when the file was written.

    Parameters
    ----------
    path : path-like
        The file.

    Returns
    -------
    str
        64 hexadecimal digits.

    Raises
    ------
    OSError
        If the file cannot be read.
    """
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
    """Digest all files of a model folder that can change its vectors.

    Parameters
    ----------
    folder : path-like
        A folder as ``save_pretrained`` writes it. Its own name is no part of the digest.

    Returns
    -------
    str
        64 hexadecimal digits.
    """
    root = Path(folder)
    total = hashlib.sha256()
    for path in sorted(_model_files(root), key=lambda path: path.relative_to(root).as_posix()):
        name = path.relative_to(root).as_posix()
        total.update(f"{name}\0{file_digest(path)}\n".encode())
    return total.hexdigest()


def _model_files(root: Path) -> Iterable[Path]:
    yield from (
        path for path in root.iterdir() if path.suffix in _MODEL_SUFFIXES and path.is_file()
    )
    yield from root.rglob("*.py")  # the code of a model with trust_remote_code


def _recall_path(key: tuple[str, int, int, int, int]) -> Path:
    name = hashlib.sha256(key[0].encode("utf-8", "surrogateescape")).hexdigest()
    return cache_folder() / "digests" / f"{name}.json"


def _recall(key: tuple[str, int, int, int, int]) -> str | None:
    """Read what an earlier process recorded; large models take seconds to digest anew."""
    try:
        recorded = json.loads(_recall_path(key).read_text(encoding="utf-8"))
        if recorded["key"] == list(key[1:]):
            return str(recorded["digest"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return None


def _record(key: tuple[str, int, int, int, int], digest: str) -> None:
    path = _recall_path(key)
    # A cache folder that cannot be written costs time in the next process, nothing else.
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
        temporary.write_text(json.dumps({"key": key[1:], "digest": digest}), encoding="utf-8")
        temporary.replace(path)
