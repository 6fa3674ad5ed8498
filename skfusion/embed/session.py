"""The folder behind ``memory=None``: one for a process and its joblib workers, gone at exit."""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import shutil
import stat
import tempfile
from pathlib import Path

_PREFIX = "skfusion-session"
_OWN: dict[int, Path] = {}  # by process id: a forked child must not take its parent's for its own


def session_folder() -> Path:
    """Give this session's folder, making it on first use.

    A worker process uses the folder of the process that started it, found through the process
    id, so that no path has to travel in a pickle (where it would change joblib's hash of an
    estimator from one session to the next).

    Returns
    -------
    pathlib.Path
        A folder that only this user can read. It is removed when its process exits.
    """
    pid = os.getpid()
    if pid not in _OWN:
        shared = _parents_folder()
        _OWN[pid] = shared if shared is not None else _make(pid)
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
    return Path(tempfile.gettempdir()) / f"{_PREFIX}-{user}-{pid}"


def _is_ours(path: Path) -> bool:
    """Tell whether it is a real folder that this user owns and nobody else can write to."""
    try:
        info = os.lstat(path)
    except OSError:
        return False
    if not stat.S_ISDIR(info.st_mode):
        return False
    return not hasattr(os, "getuid") or (info.st_uid == os.getuid() and not info.st_mode & 0o022)


def _make(pid: int) -> Path:
    _remove_abandoned()
    path = _path(pid)
    # One left by a dead process with the same id: what it holds is found by content, thus right.
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    if not _is_ours(path):
        path = Path(tempfile.mkdtemp(prefix=_PREFIX))
    atexit.register(_remove, path, pid)
    return path


def _remove(path: Path, pid: int) -> None:
    if os.getpid() == pid:
        shutil.rmtree(path, ignore_errors=True)


def _remove_abandoned() -> None:
    """Clear away the folders of processes that were killed."""
    pattern = _path(0).name.removesuffix("0")
    for path in Path(tempfile.gettempdir()).glob(f"{pattern}*"):
        pid = path.name.removeprefix(pattern)
        if pid.isdigit() and _is_ours(path) and not _is_alive(int(pid)):
            shutil.rmtree(path, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    if os.name != "posix":
        return True  # os.kill would end the process there
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
