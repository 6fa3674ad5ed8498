"""Where trials of `OptunaSearchCV` are kept, and whether a kept study is of the same search."""

from __future__ import annotations

import importlib
import logging
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pickle import PicklingError
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Literal

import joblib
import numpy as np
from joblib.func_inspect import get_func_code
from sklearn.base import clone

if TYPE_CHECKING:
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler
    from optuna.storages import BaseStorage
    from optuna.study import Study

Direction = Literal["maximize", "minimize"]

_FINGERPRINT = "skfusion:fingerprint"
_IDLE = ("memory", "n_jobs", "verbose")
_JOURNALS = (".log", ".journal")
_ANNOUNCERS = (
    "study.study",
    "storages._in_memory",
    "storages._rdb.storage",
    "storages.journal._storage",
)


def import_optuna() -> ModuleType:
    """Import Optuna, or say how to install it.

    Returns
    -------
    module
        Optuna.

    Raises
    ------
    ImportError
        If it is not installed.
    """
    try:
        return importlib.import_module("optuna")
    except ImportError as error:
        raise ImportError(
            "OptunaSearchCV needs Optuna, which is not installed. Run: "
            "pip install skfusion[optuna]"
        ) from error


def open_storage(
    storage: str | os.PathLike[str] | BaseStorage | None, *, n_jobs: int = 1
) -> str | BaseStorage | None:
    """Turn the parameter `storage` into what Optuna takes.

    Parameters
    ----------
    storage : str, path-like, optuna storage or None
        A database URL, the path of a Journal file, or a storage.
    n_jobs : int, default=1
        How many workers the search has.

    Returns
    -------
    str, optuna storage or None
        None is memory.

    Raises
    ------
    ValueError
        If a path is neither a URL nor ends in ".log" or ".journal".

    Warns
    -----
    UserWarning
        If it is SQLite and there is more than one worker.

    Examples
    --------
    >>> from skfusion.selection.optuna_study import open_storage
    >>> open_storage("sqlite:///study.db")
    'sqlite:///study.db'
    """
    if n_jobs > 1 and str(getattr(storage, "url", storage)).startswith("sqlite"):
        warnings.warn(
            f"storage is SQLite, which locks its whole file at each write, and n_jobs={n_jobs}. "
            f"Searches that share it at the same time may stop with 'database is locked'. Use a "
            f"Journal file, storage='search.journal'.",
            UserWarning,
            stacklevel=2,
        )
    if not isinstance(storage, str | os.PathLike) or "://" in os.fspath(storage):
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
    from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

    # Windows lets few users make the link that locks a file elsewhere.
    lock = JournalFileOpenLock(path) if os.name == "nt" else None
    return JournalStorage(JournalFileBackend(path, lock_obj=lock))


def essence(estimator: Any) -> Any:
    """Copy an estimator without what changes no score, such as where vectors are stored.

    Parameters
    ----------
    estimator : estimator
        It is not changed.

    Returns
    -------
    estimator
        A clone to be hashed.
    """
    names = [name for name in estimator.get_params() if name.rpartition("__")[2] in _IDLE]
    return clone(estimator).set_params(**dict.fromkeys(names))


def fingerprint(parts: Mapping[str, Any]) -> dict[str, str]:
    """Hash what a study depends on, part by part.

    Parameters
    ----------
    parts : mapping of str to object
        The parts by name. Functions count by their source code and what they enclose.

    Returns
    -------
    dict of str to str
        The hashes.

    Raises
    ------
    ValueError
        If a part cannot be hashed.

    Examples
    --------
    >>> from skfusion.selection.optuna_study import fingerprint
    >>> a, b = fingerprint({"data": [1, 2]}), fingerprint({"data": [1, 3]})
    >>> a == b
    False
    """
    hashes = {}
    for name, part in parts.items():
        try:
            hashes[name] = _digest(part)
        except PicklingError as error:
            raise ValueError(
                f"A kept study must know its {name}, but that cannot be hashed: {error.args[0]}. "
                f"Use functions that a module defines instead of lambdas, or storage=None."
            ) from error
    return hashes


def _digest(thing: Any) -> str:
    content = thing
    if isinstance(thing, FunctionType):
        enclosed = [_digest(cell.cell_contents) for cell in thing.__closure__ or ()]
        content = [get_func_code(thing)[0], _digest(thing.__defaults__), enclosed]
    elif isinstance(thing, Mapping):
        content = {name: _digest(part) for name, part in thing.items()}
    elif isinstance(thing, list | tuple) and any(map(callable, thing)):
        content = [_digest(part) for part in thing]
    hashed: str = joblib.hash(content)
    return hashed


def open_study(
    storage: str | BaseStorage | None,
    name: str | None,
    identity: Mapping[str, str],
    *,
    directions: Sequence[Direction],
    sampler: BaseSampler | None,
    pruner: BasePruner | None,
) -> Study:
    """Start a study, or go on with one that is in the storage by this name.

    Parameters
    ----------
    storage : str, optuna storage or None
        As `open_storage` gives it.
    name : str or None
        Its name; "{data}" in it stands for the hash of the data. None is a new study.
    identity : mapping of str to str
        As `fingerprint` gives it; empty for a study that is not kept.
    directions : sequence of str
        "maximize" or "minimize" for each objective.
    sampler, pruner : optuna sampler and pruner, or None
        None are Optuna's sampler and no pruning.

    Returns
    -------
    Study
        The study.

    Raises
    ------
    ValueError
        If the study that is there was made by another search.
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
        _claim(study, identity, directions)
    return study


def _claim(study: Study, identity: Mapping[str, str], directions: Sequence[Direction]) -> None:
    """Mark a new study as this search's, and refuse one that is another's."""
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
    """Keep Optuna from announcing a study, in this thread only."""
    thread = threading.get_ident()

    def wanted(record: logging.LogRecord) -> bool:
        return record.thread != thread or record.levelno > logging.INFO

    loggers = [logging.getLogger(f"optuna.{name}") for name in _ANNOUNCERS]
    for logger in loggers:
        logger.addFilter(wanted)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(wanted)


@contextmanager
def stoppable(study: Study) -> Iterator[Callable[[], bool]]:
    """Let callbacks and samplers call ``study.stop()``, which is for ``optimize`` alone.

    Parameters
    ----------
    study : Study
        The study.

    Yields
    ------
    callable
        Whether it was stopped.
    """
    study._stop_flag = False
    study._thread_local.in_optimize_loop = True
    try:
        yield lambda: study._stop_flag
    finally:
        study._thread_local.in_optimize_loop = False


def make_sampler(seed: int | None, n_trials: int) -> BaseSampler:
    """Make the default sampler for the next trial.

    Parameters
    ----------
    seed : int or None
        The search's seed.
    n_trials : int
        How many trials the study has. A search that is resumed, or runs beside another one, must
        not draw again what was drawn with the same seed before.

    Returns
    -------
    TPESampler
        The sampler.

    Examples
    --------
    >>> from skfusion.selection.optuna_study import make_sampler
    >>> make_sampler(0, 3)
    <optuna.samplers._tpe.sampler.TPESampler object at ...>
    """
    from optuna.samplers import TPESampler

    if seed is None:
        return TPESampler()
    return TPESampler(seed=int(np.random.SeedSequence([seed, n_trials]).generate_state(1)[0]))
