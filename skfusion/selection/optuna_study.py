"""Where trials of `OptunaSearchCV` are kept, and whether a kept study is of the same search."""

from __future__ import annotations

import json
import logging
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pickle import PicklingError
from types import FunctionType
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

import joblib
from sklearn.base import clone

if TYPE_CHECKING:
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler
    from optuna.storages import BaseStorage
    from optuna.study import Study

Direction = Literal["maximize", "minimize"]

_FINGERPRINT = "skfusion:fingerprint"
#: Parameters that change no score.
_IDLE = ("memory", "n_jobs", "verbose")
_JOURNALS = (".log", ".journal")
_JOURNAL_MARK = b'{"op_code"'  # what each line begins with
_VERBOSITY = threading.Lock()


def open_storage(
    storage: str | os.PathLike[str] | BaseStorage | None, *, n_jobs: int = 1
) -> str | BaseStorage | None:
    """Return what Optuna takes for the parameter `storage`; None is memory."""
    if n_jobs > 1 and str(getattr(storage, "url", storage)).startswith("sqlite"):
        warnings.warn(
            f"storage is SQLite, which locks its whole file at each write, and n_jobs={n_jobs}. "
            f"Searches that share it at the same time may stop with 'database is locked'. Use a "
            f"Journal file, storage='search.journal'.",
            UserWarning,
            stacklevel=2,
        )
    if not isinstance(storage, str | os.PathLike) or "://" in os.fspath(storage):
        backend: Any = getattr(storage, "_backend", None)
        if hasattr(backend, "_file_path"):
            _mend_journal(backend._file_path, backend._lock)
        return storage  # type: ignore[return-value]  # a path has no "://"
    path = os.fspath(storage)
    if not path.endswith(_JOURNALS):
        raise ValueError(
            f"storage={path!r} is neither the URL of a database, such as 'sqlite:///search.db', "
            f"nor a Journal file, whose name ends in {' or '.join(_JOURNALS)}."
        )
    return _open_journal(path)


def _open_journal(path: str) -> BaseStorage:
    from optuna.storages import JournalStorage
    from optuna.storages.journal import (
        JournalFileBackend,
        JournalFileOpenLock,
        JournalFileSymlinkLock,
    )

    # Windows lets few users make the link that locks a file elsewhere.
    lock = (JournalFileOpenLock if os.name == "nt" else JournalFileSymlinkLock)(path)
    if os.path.exists(path):
        _mend_journal(path, lock)
    mending: Any = _MendingLock(lock, path)
    try:
        return JournalStorage(JournalFileBackend(path, lock_obj=mending))
    except Exception as error:
        raise ValueError(_explain_journal(path, error)) from error


class _MendingLock:
    """A lock of Optuna's that leaves out a cut last line first, or the next would go on to it."""

    def __init__(self, lock: Any, path: str) -> None:
        self.lock, self.path = lock, path

    def acquire(self) -> bool:
        """Wait for the file."""
        self.lock.acquire()
        try:
            with open(self.path, "r+b") as file:
                end, size = _find_end(file), file.seek(0, os.SEEK_END)
                if end < size:
                    file.truncate(end)
                    warnings.warn(
                        f"The last line of the Journal file {self.path!r} is not whole: the "
                        f"process that wrote it was killed. It is left out ({size - end} bytes), "
                        f"and what it told of one trial is lost.",
                        UserWarning,
                        stacklevel=2,
                    )
        except BaseException:
            self.lock.release()
            raise
        return True

    def release(self) -> None:
        """Let others write."""
        self.lock.release()


def _mend_journal(path: str, lock: Any) -> None:
    """Leave out a cut last line. Who writes holds the lock, so it is nobody's that goes on."""
    with open(path, "rb") as file:
        begin = file.read(len(_JOURNAL_MARK))
        if not _JOURNAL_MARK.startswith(begin):
            raise ValueError(
                f"storage={path!r} is there but no Journal file of Optuna's: it begins with "
                f"{begin!r}. Give the name of another file, or of one that is not there yet."
            )
        is_cut = _find_end(file) < file.seek(0, os.SEEK_END)
    if is_cut:
        mending = _MendingLock(lock, path)
        mending.acquire()
        mending.release()


def _find_end(file: BinaryIO) -> int:
    """Return where the last line ends that is whole and can be read."""
    size, length, lines = file.seek(0, os.SEEK_END), 0, [b""]
    while len(lines) < 3 and length < size:
        length = min(size, 4 * length + 4096)
        file.seek(size - length)
        lines = file.read(length).split(b"\n")
    end = size - len(lines[-1])
    if len(lines) > 1 and not _is_record(lines[-2]):
        end -= len(lines[-2]) + 1
    return end


def _is_record(line: bytes) -> bool:
    try:
        return "op_code" in json.loads(line)
    except (ValueError, TypeError):
        return False


def _explain_journal(path: str, error: Exception) -> str:
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if not _is_record(line):
                return (
                    f"Line {number} of the Journal file {path!r} is damaged; it begins with "
                    f"{line[:40]!r}. Lines count on all before them, so none may be left out in "
                    f"the middle: keep the {number - 1} before it in a new file, go back to a "
                    f"copy, or give another storage."
                )
    return (
        f"The Journal file {path!r} cannot be read: {type(error).__name__}: {error}. Go back to "
        f"a copy, or give another storage."
    )


def fingerprint(parts: Mapping[str, Any]) -> dict[str, str]:
    """Hash what a study depends on, part by part, so that an error can name what is different.

    Functions count by their name, defaults and what they enclose, estimators without the
    parameters that change no score.
    """
    hashes = {}
    for name, part in parts.items():
        try:
            hashes[name] = str(joblib.hash(_to_hashable(part)))
        except PicklingError as error:
            raise ValueError(
                f"A kept study must know its {name}, but that cannot be hashed: {error.args[0]}. "
                f"Use functions that a module defines instead of lambdas, or storage=None."
            ) from error
    return hashes


def _to_hashable(part: Any) -> Any:
    if isinstance(part, Mapping):
        return {name: _to_hashable(value) for name, value in part.items()}
    if isinstance(part, FunctionType):
        enclosed = [_to_hashable(cell.cell_contents) for cell in part.__closure__ or ()]
        return [part.__module__, part.__qualname__, part.__defaults__, enclosed]
    if hasattr(part, "get_params") and not isinstance(part, type):
        idle = [name for name in part.get_params() if name.rpartition("__")[2] in _IDLE]
        return clone(part).set_params(**dict.fromkeys(idle))
    if isinstance(part, list | tuple) and any(map(callable, part)):
        return [_to_hashable(value) for value in part]
    return part


def open_study(
    storage: str | BaseStorage | None,
    name: str | None,
    identity: Mapping[str, str],
    *,
    directions: Sequence[Direction],
    sampler: BaseSampler | None,
    pruner: BasePruner | None,
) -> Study:
    """Start a study, or go on with the one of this name, unless it was made by another search.

    `identity` is the `fingerprint`, empty for a study that is not kept; "{data}" in the name
    stands for the hash of the data.
    """
    from optuna import create_study
    from optuna.pruners import NopPruner

    if name is not None and identity:
        name = name.replace("{data}", identity["data"][:12])
    with _quiet():
        study = create_study(
            storage=storage,
            study_name=name,
            directions=directions,
            sampler=sampler,
            pruner=pruner or NopPruner(),
            load_if_exists=True,
        )
    if identity:
        _check_identity(study, identity, directions)
    return study


def _check_identity(
    study: Study, identity: Mapping[str, str], directions: Sequence[Direction]
) -> None:
    """Mark a new study as this search's, and refuse one of another search."""
    known = study.user_attrs.get(_FINGERPRINT)
    fits = [direction.name.lower() for direction in study.directions] == list(directions)
    if known is None and fits and not study.get_trials(deepcopy=False):
        study.set_user_attr(_FINGERPRINT, dict(identity))
        return
    advice = "Give another study_name, or None for a new study."
    if known is None:
        raise ValueError(
            f"The study {study.study_name!r} was not made by OptunaSearchCV, which cannot go on "
            f"with it. {advice}"
        )
    other = [part for part, value in identity.items() if known.get(part) != value]
    if other:
        raise ValueError(
            f"The study {study.study_name!r} was made with another {', another '.join(other)} "
            f"than this search has, and their trials cannot be compared. {advice} In nested "
            f"cross-validation put '{{data}}' into study_name, so that each fold has its own."
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep Optuna from announcing a study."""
    logger = logging.getLogger("optuna")
    with _VERBOSITY:  # or another thread would take the level that is set here for the user's
        before = logger.level
        logger.setLevel(logging.WARNING)
        try:
            yield
        finally:
            logger.setLevel(before)


@contextmanager
def stoppable(study: Study) -> Iterator[Callable[[], bool]]:
    """Allow ``study.stop()``, which is for ``optimize`` alone; yield whether it was called."""
    study._stop_flag = False
    study._thread_local.in_optimize_loop = True
    try:
        yield lambda: study._stop_flag
    finally:
        study._thread_local.in_optimize_loop = False
