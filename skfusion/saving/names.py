"""Which classes and functions a saved model may name, and how they are found again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import is_dataclass
from importlib import import_module
from types import FunctionType
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

from ..embed.store import VectorStore

#: Method that gives what is saved of an object, and class method that makes it again; see `save`.
SAVE_HOOK, RESTORE_HOOK = "__skfusion_save__", "__skfusion_restore__"

_ROOTS = ("sklearn", "skfusion")
#: Classes of scikit-learn whose objects may be saved, those derived from them too. By name, as
#: some are private: none is imported for the sake of this list.
_SKLEARN_KINDS = frozenset(
    {
        "sklearn.base:BaseEstimator",
        "sklearn.calibration:_CalibratedClassifier",
        "sklearn.gaussian_process.kernels:Kernel",
        "sklearn.metrics._scorer:_MultimetricScorer",
        "sklearn.neural_network._stochastic_optimizers:BaseOptimizer",
        "sklearn.utils._metadata_requests:_MetadataRequester",  # scorers and splitters
        "sklearn.utils._metadata_requests:MetadataRequest",
        "sklearn.utils._metadata_requests:MethodMetadataRequest",
    }
)
#: Modules whose public functions may be named: of the first two the ufuncs, of scikit-learn its
#: own functions of arrays. None of these reads a file or calls what it is given.
_FUNCTION_MODULES = (
    "numpy",
    "scipy.special",
    "sklearn.metrics",
    "sklearn.metrics.pairwise",
    "sklearn.feature_selection",
    "sklearn.preprocessing",
)
_PLAIN_TYPES = {
    f"builtins:{cls.__name__}": cls
    for cls in (bool, int, float, complex, str, bytes, list, tuple, dict, set)
}


class LoadError(ValueError):
    """A saved model is refused, or cannot be read."""


Trusted = dict[str, Any]


def name_of(thing: Any) -> str:
    """Name a class or function.

    Parameters
    ----------
    thing : type or function
        The class or function.

    Returns
    -------
    str
        ``module:qualified_name``; of numpy's and scipy's functions the public name.
    """
    if not isinstance(thing, type):
        for module in _FUNCTION_MODULES:
            if _public_function(module, thing.__name__) is thing:
                return f"{module}:{thing.__name__}"
    return f"{getattr(thing, '__module__', '<none>')}:{thing.__qualname__}"


def read_trusted(trusted: Iterable[type | Callable[..., Any]]) -> Trusted:
    """Give what the user trusts by name.

    Parameters
    ----------
    trusted : iterable of type or function
        The parameter of `load`.

    Returns
    -------
    dict of str to type or function
        Each by its name.

    Raises
    ------
    TypeError
        If it is something else.
    """
    things = list(trusted)
    if not all(callable(thing) for thing in things):
        raise TypeError(
            f"trusted must be a list of classes and functions, got {trusted!r}. Import them and "
            f"pass them themselves, for example trusted=[MyTransformer]."
        )
    return {name_of(thing): thing for thing in things}


def is_known(cls: type) -> bool:
    """Tell whether objects of a class are restored without being trusted by name.

    Parameters
    ----------
    cls : type
        The class.

    Returns
    -------
    bool
        True for scikit-learn's estimators, splitters, scorers and kernels, and for skfusion's
        estimators, dataclasses, stores and classes with hooks.
    """
    root = cls.__module__.partition(".")[0]
    if root == "sklearn":
        return any(f"{b.__module__}:{b.__qualname__}" in _SKLEARN_KINDS for b in cls.__mro__)
    if root == "skfusion":
        values = issubclass(cls, BaseEstimator | VectorStore) or is_dataclass(cls)
        return values or has_hooks(cls)
    return False


def has_hooks(cls: type) -> bool:
    """Tell whether a class says itself what is saved of its objects.

    Parameters
    ----------
    cls : type
        The class.

    Returns
    -------
    bool
        Whether it has both methods.
    """
    return hasattr(cls, SAVE_HOOK) and hasattr(cls, RESTORE_HOOK)


def find_class(name: str, trusted: Trusted) -> type[Any]:
    """Find the class of an object that is to be restored.

    Parameters
    ----------
    name : str
        As `name_of` gives it.
    trusted : dict
        What the user trusts.

    Returns
    -------
    type
        The class.

    Raises
    ------
    LoadError
        If it is neither known nor trusted.
    """
    found = trusted.get(name) or _import_known(name)
    if not isinstance(found, type):
        raise LoadError(
            f"The model holds an object of {name!r}, which is no class that may be restored: "
            f"known are estimators of scikit-learn and skfusion. If it is yours, or you trust who "
            f"saved the model, import the class and pass it: load(path, "
            f"trusted=[{name.rpartition(':')[2]}])."
        )
    return found


def find_type(name: str, trusted: Trusted) -> type:
    """Find a class that is itself a value, such as ``dtype=np.float64``.

    Parameters
    ----------
    name : str
        As `name_of` gives it.
    trusted : dict
        What the user trusts.

    Returns
    -------
    type
        A type of Python or a scalar type of numpy, or as `find_class`.

    Raises
    ------
    LoadError
        If it is none of these.
    """
    module, _, attribute = name.partition(":")
    scalar = getattr(np, attribute, None) if module == "numpy" else None
    if isinstance(scalar, type) and issubclass(scalar, np.generic):
        return scalar
    return _PLAIN_TYPES.get(name) or find_class(name, trusted)


def find_function(name: str, trusted: Trusted) -> Any:
    """Find a function that is a value, such as a scorer's metric.

    Parameters
    ----------
    name : str
        As `name_of` gives it.
    trusted : dict
        What the user trusts.

    Returns
    -------
    callable
        The function.

    Raises
    ------
    LoadError
        If it is neither known nor trusted.
    """
    if name in trusted:
        return trusted[name]
    module, _, attribute = name.partition(":")
    found = _public_function(module, attribute) if module in _FUNCTION_MODULES else None
    if found is None:
        raise LoadError(
            f"The model names the function {name!r}. Only numpy's and scipy.special's ufuncs and "
            f"functions of arrays of scikit-learn are known. If it is yours, or you trust who "
            f"saved the model, import it and pass it: load(path, trusted=[{attribute}])."
        )
    return found


def _import_known(name: str) -> type | None:
    """Import a class of scikit-learn or skfusion, which must be where its name says it is."""
    module, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in [*module.split("."), attribute]):
        return None
    if module.partition(".")[0] not in _ROOTS:
        return None
    try:
        found = getattr(import_module(module), attribute, None)
    except ImportError:
        return None
    # An attribute may be anything that the module imports: os, a function, another's class.
    if isinstance(found, type) and name_of(found) == name and is_known(found):
        return found
    return None


def _public_function(module: str, name: str) -> Any:
    names = vars(import_module(module))
    found = None if name.startswith("_") else names.get(name)
    own = isinstance(found, FunctionType) and found.__module__.startswith("sklearn.")
    public = "__all__" not in names or name in names["__all__"]
    return found if public and (own or isinstance(found, np.ufunc)) else None
