"""`save` and `load`: a fitted estimator as a folder that skops writes, without pickle.

An estimator becomes its class's name and its state, down to what skops keeps exactly: numbers,
text, lists, dicts, arrays and compiled objects; a tuple is a value of another kind, ``(kind,
content)``. skops makes no estimator: `load` does, out of names and values that it has looked at,
and it imports nothing for a name that the file holds.
"""

from __future__ import annotations

import inspect
import json
import os
import platform
import warnings
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pathlib import Path
from types import BuiltinFunctionType, FunctionType
from typing import Any

import joblib
import numpy as np
import sklearn
import torch
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.exceptions import InconsistentVersionWarning
from sklearn.utils import Bunch
from sklearn.utils._optional_dependencies import check_pandas_support

from . import _files
from ._files import SCALARS, find, flat, is_compiled, is_plain, name_of
from .embed.backbone import Backbone
from .embed.embedder import LLMLayerEmbedder
from .embed.store import VectorStore
from .embed.stored import Memory, StoredEmbedder
from .embed.union import EmbedderUnion
from .fusion.registry import OPERATORS
from .selection.optuna_search import OptunaSearchCV
from .selection.recipe_base import BaseFusion

FORMAT = 1
_MAGIC, _ABOUT, _MODEL = "skfusion model", "skfusion.json", "model.skops"
_SAVE, _RESTORE = "__skfusion_save__", "__skfusion_restore__"
_VERSION = "_sklearn_version"  # what scikit-learn adds to a state; the folder has it once
_OPERATORS = "_own_operators"  # functions of the user, in a state made for pickle
_FUNCTIONS = (FunctionType, BuiltinFunctionType, np.ufunc, type(np.mean))


class LoadError(ValueError):
    """A saved model is refused, or cannot be read."""


def save(estimator: BaseEstimator, path: str | os.PathLike[str]) -> None:
    """Write a fitted estimator into a folder, without pickle.

    The folder is complete or not there at all: it is written beside `path` and renamed. Kept are
    pipelines and searches of any estimators of scikit-learn and skfusion, and of own ones, which
    `load` then wants to be named. Language models are not: an embedder keeps the hub id or path
    that it was given, and the vectors that it has stored stay where they are. An operator of
    `register_operator` is a function of yours; register it before `load`.

    Parameters
    ----------
    estimator : estimator
        Usually a fitted `Pipeline`.
    path : path-like
        The folder. One that `save` has made is replaced; an empty one is filled.

    Raises
    ------
    TypeError
        If something cannot be saved, such as a lambda or a `Backbone`. Nothing is written then.
    FileExistsError
        If there is something else at `path`.
    ValueError
        If a list or dict holds itself.

    Notes
    -----
    An object that holds what cannot be saved (a compiled network, a handle) says itself what is
    kept of it: ``__skfusion_save__(self)`` returns plain values, arrays and estimators, of which
    the class method ``__skfusion_restore__(cls, value)`` makes it again.

    Examples
    --------
    >>> import tempfile
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.pipeline import make_pipeline
    >>> from skfusion import LLMLayerEmbedder, load, save
    >>> pipe = make_pipeline(LLMLayerEmbedder(tiny_model), LogisticRegression())
    >>> pipe = pipe.fit(["a good film", "a bad film"], ["pos", "neg"])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(pipe, folder)
    ...     load(folder).predict(["a good film"])
    array(['pos'], dtype='<U3')
    """
    if isinstance(estimator, type) or not hasattr(estimator, "get_params"):
        raise TypeError(f"save takes an estimator, got {estimator!r}.")
    target, name = Path(os.path.realpath(path)), type(estimator).__name__
    names = {file.name for file in target.iterdir()} if target.is_dir() else set()
    if target.is_file() or (names and not {_ABOUT} <= names <= {_ABOUT, _MODEL}):
        raise FileExistsError(
            f"{target} exists and is no folder that skfusion.save made. Choose another path, or "
            f"remove it."
        )
    try:
        content = _files.write(_Encoder().encode(estimator, name))
        _files.check(content)  # so that `load` refuses nothing of it for its form
    except ValueError as error:
        raise TypeError(f"{name} cannot be saved: {error}.") from error
    except RecursionError:
        message = f"{name} cannot be saved: a list or dict in it holds itself, or lies too deep."
        raise ValueError(message) from None
    about = {"magic": _MAGIC, "format": FORMAT, "versions": _versions()}
    _files.publish({_ABOUT: json.dumps(about, indent=1).encode("ascii"), _MODEL: content}, target)


def load(
    path: str | os.PathLike[str],
    *,
    trusted: Iterable[type | Callable[..., Any]] = (),
    memory: Memory = False,
) -> Any:
    """Read an estimator that `save` has written.

    Only known classes are restored and no code from the folder runs, so that a folder from
    elsewhere is refused rather than obeyed. A loaded embedder does read language models from
    the places that the folder names.

    Parameters
    ----------
    path : path-like
        The folder.
    trusted : iterable of type or function, default=()
        Your own classes and functions in the model, and what is refused because its content
        cannot be checked: ``sklearn.tree._tree.Tree``, which is in every forest;
        `LLMLayerEmbedder`, where a model may run code of its own (``trust_remote_code``, also
        among what a search tries); a `Pipeline` with ``memory``, and `joblib.Memory` for any
        other, as such caches hold pickles; `OptunaSearchCV` with a ``storage``.
    memory : path-like, joblib.Memory, VectorStore, None, False or "saved", default=False
        Where its fitted embedders store vectors from now on, as `LLMLayerEmbedder` takes it.
        False keeps nothing of new texts, as is right for serving; "saved" is what they were
        saved with. The parameters by which it would be fitted again stay as they were.

    Returns
    -------
    estimator
        As it was saved, but for `memory`: the same numbers in the same memory order. A warning
        says if another version of scikit-learn or skfusion wrote it.

    Raises
    ------
    FileNotFoundError
        If there is no saved model at `path`.
    LoadError
        A ValueError: if the folder is damaged, of another format, or holds what is not trusted.
    TypeError
        If `trusted` holds something else than classes and functions.

    Examples
    --------
    >>> import tempfile
    >>> from sklearn.tree import DecisionTreeClassifier
    >>> from sklearn.tree._tree import Tree
    >>> from skfusion import load, save
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(DecisionTreeClassifier().fit([[0.0], [1.0]], ["a", "b"]), folder)
    ...     load(folder, trusted=[Tree]).predict([[0.9]])
    array(['b'], dtype='<U1')
    """
    things = list(trusted)
    if not all(callable(thing) for thing in things):
        raise TypeError(
            f"trusted must be a list of classes and functions, got {trusted!r}. Import them and "
            f"pass them themselves, for example trusted=[MyTransformer]."
        )
    folder = Path(path)
    if not (folder / _ABOUT).exists():
        raise FileNotFoundError(f"There is no model at {folder}: it has no {_ABOUT}.")
    try:
        contents = _files.contents(folder, (_ABOUT, _MODEL))
        for warning in _other_versions(contents[_ABOUT]):
            warnings.warn(warning, stacklevel=2)
        decoder = _Decoder({name_of(thing): thing for thing in things})
        loaded = decoder.read(contents[_MODEL])
    except Warning:  # of someone who wants them to be errors
        raise
    except Exception as error:  # a made-up file can bring up any, of any class it names
        why = f"It is damaged, or was changed since it was saved: {type(error).__name__}: {error}."
        why = str(error) if isinstance(error, LoadError) else why
        raise LoadError(f"{folder} is not loaded. {why}") from error
    if memory != "saved":
        for part in decoder.objects:
            if isinstance(part, StoredEmbedder) and part.__sklearn_is_fitted__():
                part.set_params(memory=memory)
    return loaded


def _versions() -> dict[str, str]:
    """Return the versions that decide what a state means."""
    own: str = import_module(__package__).__version__
    python, numpy = platform.python_version(), np.__version__
    return {"skfusion": own, "scikit-learn": sklearn.__version__, "numpy": numpy, "python": python}


def _other_versions(content: bytes) -> Iterator[Warning]:
    """Check what wrote a model, and yield a warning for each library that was another then."""
    about, here = json.loads(content), _versions()
    if about["magic"] != _MAGIC:
        raise LoadError(f"Its {_ABOUT} was not written by skfusion.save.")
    saved, now = about["versions"], here["scikit-learn"]
    then = saved.get("scikit-learn")
    if about["format"] != FORMAT:
        raise LoadError(
            f"It has format {about['format']!r}, and this skfusion reads {FORMAT}. Use the "
            f"skfusion that saved it, {saved['skfusion']}."
        )
    if then != now:
        yield InconsistentVersionWarning(
            estimator_name="(saved by skfusion)",
            current_sklearn_version=now,
            original_sklearn_version=then,
        )
    if saved["skfusion"] != here["skfusion"]:
        yield UserWarning(
            f"The model was saved by skfusion {saved['skfusion']} and this is "
            f"{here['skfusion']}: check its predictions, or fit it again."
        )


_Kind = tuple[Any, Callable[[Any], Any], Callable[[Any], Any]]


def _sparse(kind: Any) -> _Kind:
    def make(parts: list[Any]) -> Any:
        matrix = kind(tuple(parts[:3]), shape=parts[3])
        matrix.check_format(full_check=True)  # an index out of range reads any memory
        return matrix

    return kind, lambda v: [v.data, v.indices, v.indptr, list(v.shape)], make


def _frame_parts(frame: Any) -> list[Any]:
    columns = [[name, frame[name].to_numpy()] for name in frame.columns]
    return [frame.index.to_numpy(), frame.index.name, columns]


def _make_frame(parts: list[Any]) -> Any:
    pandas = check_pandas_support("Loading a model that holds a data frame")
    index, name, columns = parts
    return pandas.DataFrame(dict(columns), index=pandas.Index(index, name=name))


_COMPRESSED = (sparse.csr_array, sparse.csc_array, sparse.csr_matrix, sparse.csc_matrix)
_TORCH_DTYPES = {str(v)[6:]: v for v in vars(torch).values() if isinstance(v, torch.dtype)}
#: The type of the values, how one is taken apart, and how it is made of its parts again.
_KINDS: dict[str, _Kind] = {
    "tuple": (tuple, list, tuple),
    "set": (set, lambda v: sorted(v, key=repr), set),
    "frozenset": (frozenset, lambda v: sorted(v, key=repr), frozenset),
    "dict": (dict, lambda v: [list(item) for item in v.items()], dict),
    "Bunch": (Bunch, dict, lambda parts: Bunch(**parts)),
    "complex": (complex, lambda v: [v.real, v.imag], lambda parts: complex(*parts)),
    "bytes": (bytes, lambda v: np.frombuffer(v, np.uint8), lambda array: array.tobytes()),
    "path": (type(Path()), str, Path),
    "slice": (slice, lambda v: [v.start, v.stop, v.step], lambda parts: slice(*parts)),
    "objects": (
        np.ndarray,
        lambda v: [list(v.shape), v.ravel().tolist()],
        lambda parts: np.fromiter(parts[1], object, len(parts[1])).reshape(parts[0]),
    ),
    "masked": (
        np.ma.MaskedArray,
        lambda v: [v.data, v.mask, v.fill_value],
        lambda parts: np.ma.MaskedArray(parts[0], parts[1], fill_value=parts[2]),
    ),
    "scalar": (np.generic, np.asarray, lambda array: array[()]),
    "dtype": (np.dtype, np.lib.format.dtype_to_descr, np.lib.format.descr_to_dtype),
    "torch_dtype": (torch.dtype, lambda v: str(v)[6:], _TORCH_DTYPES.__getitem__),
    "torch_device": (torch.device, str, torch.device),
    "memory": (
        joblib.Memory,
        lambda v: {"location": v.location, "mmap_mode": v.mmap_mode, "verbose": v._verbose},
        lambda parts: joblib.Memory(**parts),
    ),
    **{kind.__name__: _sparse(kind) for kind in _COMPRESSED},
    "frame": (None, _frame_parts, _make_frame),  # no type, so that pandas is not imported
}
_KIND_OF = {kind: name for name, (kind, _, _) in _KINDS.items() if kind is not None}
#: End of a parameter's name: who is to be trusted, the values that need no trust, and why.
_CODE = "which runs code that comes with a language model"
_RISKS: dict[str, tuple[type, Callable[[Any], bool], str]] = {
    "trust_remote_code": (LLMLayerEmbedder, lambda v: v in (None, False), _CODE),
    "attn_implementation": (LLMLayerEmbedder, lambda v: "/" not in repr(v), _CODE),
    "model_kwargs": (LLMLayerEmbedder, lambda v: not v or {*v} == {"attn_implementation"}, _CODE),
    "memory": (
        joblib.Memory,
        lambda v: v is False or isinstance(v, VectorStore | None),
        "a cache of pickles",
    ),
    "storage": (OptunaSearchCV, lambda v: v is None, "where it would write a study"),
}


class _Encoder:
    """Turns values into what skops keeps exactly."""

    def __init__(self) -> None:
        self.numbers: dict[int, int] = {}
        self.kept: list[Any] = []  # alive, so that no other object gets the same id

    def encode(self, value: Any, where: str) -> Any:
        """Encode a value; `where` it was found is for messages."""
        cls = type(value)
        if is_plain(value):
            text = json.dumps(value)  # raises for an integer too long to be read again
            return value if cls in SCALARS else ("json", text)
        if cls is list:
            return [self.encode(part, f"{where}[{i}]") for i, part in enumerate(value)]
        if cls is dict and all(type(key) is str for key in value):
            return {key: self.encode(part, f"{where}[{key!r}]") for key, part in value.items()}
        if isinstance(value, (type, *_FUNCTIONS)):
            if "<" in name_of(value):
                raise TypeError(
                    f"{where} is {value!r}, which cannot be saved, as it is without a name of its "
                    f"own. Define it with `def` or `class` in a module."
                )
            return ("name", name_of(value))
        if id(value) in self.numbers:
            return ("same", self.numbers[id(value)])
        native = cls in (np.ndarray, np.memmap) and value.dtype != object
        base = next((base for base in (np.generic, np.dtype) if isinstance(value, base)), cls)
        frame = cls.__name__ == "DataFrame" and cls.__module__.startswith("pandas")
        kind = "frame" if frame else _KIND_OF.get(base)
        if kind is not None and not native:
            return (kind, self.encode(_KINDS[kind][1](value), where))
        self.numbers[id(value)] = len(self.numbers)
        self.kept.append(value)
        if native and (value.dtype.hasobject or value.dtype.kind not in "biufcSUmMV"):
            raise TypeError(f"{where} is an array of dtype {value.dtype}: it cannot be saved.")
        return np.asarray(value) if native else self._encode_object(value, where)

    def _encode_object(self, value: Any, where: str) -> Any:
        cls, name = type(value), name_of(type(value))
        if isinstance(value, Backbone):
            raise TypeError(
                f"{where} is a Backbone, a model in memory, and weights are no part of a saved "
                f"pipeline. Save the model and its tokenizer in a folder with save_pretrained, "
                f"and give LLMLayerEmbedder the folder."
            )
        if hasattr(cls, _SAVE) and hasattr(cls, _RESTORE):
            state = getattr(value, _SAVE)()
            return ("object", [json.dumps({"class": name}), self.encode(state, where)])
        if isinstance(value, VectorStore):
            state = {key: getattr(value, key) for key in inspect.signature(cls).parameters}
        elif isinstance(value, BaseEstimator) or find(name) is cls:
            state = value.__getstate__() or {}
        elif is_compiled(cls):
            return value
        else:
            raise TypeError(
                f"{where} is a {cls.__module__}.{cls.__qualname__}, which cannot be saved without "
                f"pickle. Saved are estimators, plain values, arrays, and objects with the "
                f"methods that skfusion.save documents. Change this parameter, save a part (of a "
                f"search its best_estimator_), or use joblib.dump."
            )
        if not isinstance(state, dict):
            raise TypeError(f"{where} cannot be saved: the state of a {cls.__name__} is no dict.")
        own = {state.get("operator"), state.get("_operator")} & state.get(_OPERATORS, {}).keys()
        state = {key: part for key, part in state.items() if key not in (_VERSION, _OPERATORS)}
        plain = {key: part for key, part in state.items() if is_plain(part)}
        text = json.dumps({"class": name, "operators": sorted(own), "state": plain})
        parts = {k: self.encode(v, f"{where}.{k}") for k, v in state.items() if k not in plain}
        return ("object", [text, parts])


class _Decoder:
    """Turns what a `_Encoder` made into values again; skops makes no estimators for it."""

    def __init__(self, trusted: dict[str, Any]) -> None:
        self.trusted = trusted
        self.objects: list[Any] = []

    def read(self, content: bytes) -> Any:
        """Read a file of skops."""
        leaves = {name for name, thing in self.trusted.items() if is_compiled(thing)}
        if names := sorted(_files.check(content) - leaves):
            paths = [name.rpartition(".") for name in names]
            imports = "; ".join(f"from {module} import {name}" for module, _, name in paths)
            raise LoadError(
                f"The model holds {', '.join(names)}. What is in objects of these types is not "
                f"checked when they are read, so that a made-up file could crash the process. If "
                f"you trust who saved the model: {imports}; load(path, "
                f"trusted=[{', '.join(name for _, _, name in paths)}])."
            )
        return self.decode(_files.read(content, leaves))

    def decode(self, value: Any) -> Any:
        """Decode a value."""
        if type(value) is list:
            return [self.decode(part) for part in value]
        if type(value) is dict:
            made = {key: self.decode(part) for key, part in value.items()}
            return self._refuse_risks(dict, made)
        if type(value) is not tuple:
            if type(value) not in SCALARS:
                self.objects.append(value)
            return value
        kind, content = value
        if kind == "json":
            return self.decode(json.loads(content))
        if kind == "same":
            return self.objects[content]
        if kind == "name":
            return self._find(content)
        if kind == "object":
            return self._make(*content)
        parts = self.decode(content)
        if kind == "memory":
            self._refuse_risks(dict, {"memory": [joblib.Memory]})
        made = _KINDS[kind][2](parts)
        return self._refuse_risks(dict, made) if kind == "dict" else made

    def _make(self, text: str, parts: Any) -> Any:
        node, number = json.loads(text), len(self.objects)
        cls = self._find(node["class"])
        self.objects.append(None)
        if hasattr(cls, _RESTORE):  # instead of a __setstate__, which may read a pickle
            self.objects[number] = getattr(cls, _RESTORE)(self.decode(parts))
            return self.objects[number]
        for name in node["operators"]:
            if name not in OPERATORS:
                raise LoadError(
                    f"The model uses the operator {name!r}, a function of yours that is no part "
                    f"of the folder. Call register_operator({name!r}, function) before load."
                )
        value = self.objects[number] = object.__new__(cls)
        state = {key: self.decode(part) for key, part in (node["state"] | parts).items()}
        self._refuse_risks(cls, state)
        if _OPERATORS in state:
            raise LoadError("The model brings operators, which you alone register.")
        if isinstance(value, VectorStore):
            cls.__init__(value, **state)  # its parameters and nothing else
        elif hasattr(value, "__setstate__"):
            if cls.__module__.startswith("sklearn."):
                state[_VERSION] = sklearn.__version__  # `load` has warned already
            value.__setstate__(state)
        else:
            value.__dict__.update(state)
        return value

    def _find(self, name: str) -> Any:
        found = self.trusted.get(name) or find(name)
        if found is None:
            raise LoadError(
                f"The model names the function or class {name!r}, which is no class that may be "
                f"restored, of scikit-learn or skfusion, and no function of arrays. If it is "
                f"yours, or you trust who saved the model, import it and pass it: load(path, "
                f"trusted=[{name.rpartition('.')[2]}])."
            )
        return found

    def _refuse_risks(self, owner: type, state: dict[Any, Any]) -> dict[Any, Any]:
        """Refuse parameters that make an honest class run code, or write, elsewhere."""
        for key, value in state.items():
            for end in [end for end in _RISKS if isinstance(key, str) and key.endswith(end)]:
                needed, is_harmless, what = _RISKS[end]
                if end in ("memory", "storage") and owner is not dict:
                    if issubclass(owner, (LLMLayerEmbedder, EmbedderUnion, BaseFusion)):
                        continue  # a folder of vectors
                    needed = owner
                if not (needed in self.trusted.values() or all(map(is_harmless, flat(value)))):
                    name = "joblib.Memory" if needed is joblib.Memory else needed.__name__
                    raise LoadError(
                        f"The model has a {owner.__name__} with {key}={value!r:.80}, {what}. If "
                        f"you trust who saved it and wrote there: load(path, trusted=[{name}])."
                    )
        return state
