"""`save` and `load`: a fitted estimator as a folder of JSON and arrays, without pickle."""

from __future__ import annotations

import json
import os
import platform
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import sklearn
from sklearn.base import BaseEstimator
from sklearn.exceptions import InconsistentVersionWarning

from .foreign import dump_foreign, load_foreign
from .names import LoadError, Trusted, read_trusted
from .tree import Reader, Writer

FORMAT = 1
_MODEL, _ARRAYS, _OBJECTS = "skfusion.json", "arrays.safetensors", "objects.skops"
_FILES = frozenset({_MODEL, _ARRAYS, _OBJECTS})
_MAGIC = "skfusion model"


def save(estimator: BaseEstimator, path: str | os.PathLike[str]) -> None:
    """Write a fitted estimator into a folder, without pickle.

    The folder holds ``skfusion.json`` (classes, parameters, structure and versions),
    ``arrays.safetensors`` (all arrays), and ``objects.skops`` where there are compiled objects
    of scikit-learn, numpy or scipy, such as trees and random states. It is complete or not there
    at all: it is written beside `path` and renamed.

    Kept are pipelines and searches of any estimators of scikit-learn and skfusion, and of own
    ones, which `load` then wants to be named. Language models are not: an embedder keeps the hub
    id or path that it was given, and the vectors that it has stored stay where they are. An
    operator of `register_operator` is a function of yours; register it before `load`.

    Parameters
    ----------
    estimator : estimator
        Usually a fitted `Pipeline`.
    path : path-like
        The folder. One that `save` has made is replaced; an empty one is filled.

    Raises
    ------
    TypeError
        If something cannot be saved, such as a lambda or a `Backbone`. The message says where it
        is. Nothing is written then.
    FileExistsError
        If there is something else at `path`.
    ValueError
        If a list or dict holds itself.

    See Also
    --------
    load : Reads it again.

    Notes
    -----
    An object that holds what cannot be saved (a compiled network, a handle) says itself what is
    kept of it: ``__skfusion_save__(self)`` gives a value made of plain Python values, arrays and
    estimators, and the class method ``__skfusion_restore__(cls, value)`` makes the object again.
    Both must be there; they take the place of ``__getstate__`` and ``__setstate__``.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.pipeline import make_pipeline
    >>> from skfusion import FusionTransformer, LLMLayerEmbedder
    >>> from skfusion.saving.folder import load, save
    >>> texts, labels = ["a good film", "a bad film", "good", "bad"], ["pos", "neg"] * 2
    >>> embedder = LLMLayerEmbedder(tiny_model, layer=[1, 2])
    >>> pipe = make_pipeline(embedder, FusionTransformer(block_sizes=[16, 16]),
    ...                      LogisticRegression()).fit(texts, labels)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(pipe, Path(folder) / "model")
    ...     loaded = load(Path(folder) / "model")
    >>> (loaded.predict_proba(texts) == pipe.predict_proba(texts)).all()
    np.True_
    """
    if isinstance(estimator, type) or not hasattr(estimator, "get_params"):
        raise TypeError(f"save takes an estimator, got {estimator!r}.")
    target = Path(os.path.realpath(path))
    _check_target(target)
    writer = Writer()
    try:
        tree = writer.encode(estimator, type(estimator).__name__)
        model = {"magic": _MAGIC, "format": FORMAT, "versions": _versions(), "model": tree}
        text = json.dumps(model, indent=1, allow_nan=False)
    except RecursionError:
        raise ValueError(
            f"{type(estimator).__name__} cannot be saved: a list or dict in it holds itself, or "
            f"lies too deep."
        ) from None
    contents = {_MODEL: text.encode("ascii"), _ARRAYS: safetensors.numpy.save(writer.tensors)}
    if writer.foreign:
        contents[_OBJECTS] = dump_foreign(writer.foreign)
    _publish(contents, target)


def load(
    path: str | os.PathLike[str], *, trusted: Iterable[type | Callable[..., Any]] = ()
) -> Any:
    """Read an estimator that `save` has written.

    Only known classes are restored and no code from the folder runs, so that a folder from
    elsewhere is refused rather than obeyed. A loaded embedder does read language models from,
    and store vectors in, the places that the folder names, and a search that is fitted again
    tries the parameters that the folder names.

    Parameters
    ----------
    path : path-like
        The folder.
    trusted : iterable of type or function, default=()
        Your own classes and functions in the model, and what is refused because its content
        cannot be checked: ``sklearn.tree._tree.Tree``, which is in every forest;
        `LLMLayerEmbedder`, where one has ``trust_remote_code=True``; a `Pipeline` with
        ``memory``, and `joblib.Memory`, whose caches hold pickles.

    Returns
    -------
    estimator
        As it was saved: the same numbers in the same memory order, so that it predicts the same
        on the same machine with the same libraries.

    Raises
    ------
    FileNotFoundError
        If there is no saved model at `path`.
    LoadError
        A ValueError: if the folder is damaged, of another format, or holds what is not trusted.
    TypeError
        If `trusted` holds something else than classes and functions.

    Warns
    -----
    InconsistentVersionWarning
        If another scikit-learn wrote the folder.
    UserWarning
        If another skfusion wrote it.

    See Also
    --------
    save : Writes it.

    Examples
    --------
    >>> import tempfile
    >>> from sklearn.tree import DecisionTreeClassifier
    >>> from sklearn.tree._tree import Tree
    >>> from skfusion.saving.folder import load, save
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(DecisionTreeClassifier().fit([[0.0], [1.0]], ["a", "b"]), folder)
    ...     load(folder, trusted=[Tree]).predict([[0.9]])
    array(['b'], dtype='<U1')
    """
    names = read_trusted(trusted)
    folder = Path(path)
    contents = _read(folder)
    with _one_kind_of_error(folder):
        model = _read_model(contents[_MODEL])
        older = _other_versions(model["versions"])
    for warning in older:
        warnings.warn(warning, stacklevel=2)
    with _one_kind_of_error(folder):
        return _restore(model["model"], contents, names)


@contextmanager
def _one_kind_of_error(folder: Path) -> Iterator[None]:
    """Say what folder it is; a made-up file can bring up any error, of any class it names."""
    try:
        yield
    except LoadError as error:
        raise LoadError(f"{folder} is not loaded. {error}") from error
    except Exception as error:
        raise LoadError(
            f"{folder} is not loaded: it is damaged, or was changed since skfusion.save wrote it "
            f"({type(error).__name__}: {error})."
        ) from error


def _read_model(content: bytes) -> dict[str, Any]:
    model: dict[str, Any] = json.loads(content)
    if model["magic"] != _MAGIC:
        raise LoadError(f"Its {_MODEL} was not written by skfusion.save.")
    if model["format"] != FORMAT:
        raise LoadError(
            f"It has format {model['format']!r}, and this skfusion reads {FORMAT}. Use the "
            f"skfusion that saved it, {model['versions']['skfusion']}."
        )
    return model


def _restore(tree: Any, contents: dict[str, bytes], trusted: Trusted) -> Any:
    tensors = safetensors.numpy.load(contents[_ARRAYS])
    foreign = load_foreign(contents[_OBJECTS], trusted) if _OBJECTS in contents else []
    return Reader(tensors, foreign, trusted).decode(tree)


def _versions() -> dict[str, str]:
    from .. import __version__  # skfusion imports this module before it has one

    return {
        "skfusion": __version__,
        "scikit-learn": sklearn.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def _other_versions(saved: dict[str, str]) -> list[Warning]:
    """Give a warning for each library whose version decides what a state means."""
    here = _versions()
    found: list[Warning] = []
    if saved["scikit-learn"] != here["scikit-learn"]:
        found.append(
            InconsistentVersionWarning(
                estimator_name="(saved by skfusion)",
                current_sklearn_version=here["scikit-learn"],
                original_sklearn_version=saved["scikit-learn"],
            )
        )
    if saved["skfusion"] != here["skfusion"]:
        found.append(
            UserWarning(
                f"The model was saved by skfusion {saved['skfusion']} and this is "
                f"{here['skfusion']}: check its predictions, or fit it again."
            )
        )
    return found


def _check_target(target: Path) -> None:
    """Refuse to replace what `save` has not made."""
    if not target.exists():
        return
    names = {file.name for file in target.iterdir()} if target.is_dir() else {""}
    if names and not {_MODEL} <= names <= _FILES:
        raise FileExistsError(
            f"{target} exists and is no folder that skfusion.save made. Choose another path, or "
            f"remove it."
        )


def _publish(contents: dict[str, bytes], target: Path) -> None:
    """Write files into a folder that appears complete, in the place of an older one."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".skfusion-", dir=target.parent) as work:
        new, old = Path(work) / "new", Path(work) / "old"
        new.mkdir()
        for name, content in contents.items():
            (new / name).write_bytes(content)
        if target.exists():
            os.rename(target, old)
        try:
            os.rename(new, target)
        except OSError:
            if old.exists():
                os.rename(old, target)
            raise


def _read(folder: Path) -> dict[str, bytes]:
    """Read the files of a saved model; what else lies there is a sign of foul play."""
    if not (folder / _MODEL).exists():
        raise FileNotFoundError(f"There is no model at {folder}: it has no {_MODEL}.")
    contents = {}
    for file in folder.iterdir():
        if file.name not in _FILES:
            raise LoadError(
                f"{folder} is not loaded: it holds {file.name!r}, which skfusion.save does not "
                f"write. If you know what it is, move it away."
            )
        if file.is_symlink() or not file.is_file():
            raise LoadError(
                f"{folder} is not loaded: {file.name} is a link or no file at all. A saved model "
                f"is all in its own folder."
            )
        contents[file.name] = file.read_bytes()
    return contents
