"""The folder behind ``memory=None``: one for a process and its joblib workers, gone at exit."""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import multiprocessing
import os
import platform
import stat
import tempfile
from pathlib import Path

from .shards import MARK, clear_folder

_PREFIX = "skfusion-session"
_OWN: dict[int, Path] = {}  # by process id: a forked child must not take its parent's for its own


def session_folder() -> Path:
    """Return this session's folder, readable by this user only, making it on first use."""
    # A worker finds its parent's folder by the process id, so that no path travels in a pickle,
    # where it would change joblib's hash of an estimator from one session to the next.
    pid = os.getpid()
    if pid not in _OWN:
        _OWN[pid] = _parents_folder() or _make(pid)
    return _OWN[pid]


def _parents_folder() -> Path | None:
    """In a worker process, the folder that its parent made before it sent out the work."""
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid is not None:
        candidates = [parent.pid, os.getppid()]
    elif multiprocessing.current_process().name != "MainProcess":  # loky names its workers
        candidates = [os.getppid()]
    else:
        return None
    return next((path for path in map(_path, candidates) if _is_ours(path)), None)


def _path(pid: int) -> Path:
    user = os.getuid() if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")
    return Path(tempfile.gettempdir()) / f"{_PREFIX}-{user}-{_where()}-{pid}"


@functools.cache
def _where() -> str:
    """Return what tells hosts and containers apart that share a folder: all have a process 1."""
    parts = [platform.node()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii"))
    with contextlib.suppress(OSError):
        parts.append(os.readlink("/proc/self/ns/pid"))
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=6).hexdigest()


def _is_ours(path: Path) -> bool:
    """Whether it is a real folder that this user owns and nobody else can write to."""
    try:
        info = os.lstat(path)
    except OSError:
        return False
    mine = not hasattr(os, "getuid") or (info.st_uid == os.getuid() and not info.st_mode & 0o022)
    return stat.S_ISDIR(info.st_mode) and mine


def _make(pid: int) -> Path:
    _remove_abandoned()
    path = _path(pid)
    # One left by a dead process with the same id: what it holds is found by content, thus right.
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    if not _is_ours(path):
        path = Path(tempfile.mkdtemp(prefix=_PREFIX))
    # A forked child is not the one whose exit ends the session.
    atexit.register(lambda: _remove(path) if os.getpid() == pid else None)
    return path


def _remove(path: Path) -> None:
    """Remove the vectors in a session's folder, and the folder if it is empty then."""
    with contextlib.suppress(OSError):
        for folder in (path / MARK).iterdir():
            clear_folder(folder)
        (path / MARK).rmdir()
    with contextlib.suppress(OSError):
        path.rmdir()


def _remove_abandoned() -> None:
    """Clear away the folders of processes that were killed here; of others nobody knows."""
    pattern = _path(0).name.removesuffix("0")
    for path in Path(tempfile.gettempdir()).glob(f"{pattern}*"):
        pid = path.name.removeprefix(pattern)
        if pid.isdigit() and _is_ours(path) and not _is_alive(int(pid)):
            _remove(path)


def _is_alive(pid: int) -> bool:
    if os.name != "posix":
        return True  # os.kill would end the process there
    try:
        os.kill(pid, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)
    return True
