"""Compiled objects of scikit-learn, numpy and scipy, kept by skops in one file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import BaseEstimator

from .names import LoadError, Trusted

if TYPE_CHECKING:
    from .tree import Reader, Writer

_ROOTS = ("numpy", "scipy", "sklearn")


def encode_foreign(writer: Writer, value: Any, where: str) -> Any:
    """Keep an object for skops, or refuse it.

    Parameters
    ----------
    writer : Writer
        Collects these objects.
    value : object
        A tree, a loss, a random state, a spline.
    where : str
        Where in the model it was found, for messages.

    Returns
    -------
    dict
        ``{"skops": number}``.

    Raises
    ------
    TypeError
        If it is of no library that is known, or skops cannot keep it.
    """
    if not _is_foreign(value):
        raise _refusal(value, where, "which cannot be saved without pickle")
    untrusted = _untrusted(value, where)
    strange = [name for name in untrusted if name.partition(".")[0] not in _ROOTS]
    if strange:
        raise _refusal(value, where, f"and holds {', '.join(strange)}")
    writer.foreign.append(value)
    return {"skops": len(writer.foreign) - 1}


def _is_foreign(value: Any) -> bool:
    """Tell whether skops is the one to keep it; estimators and arrays have their own form."""
    root = type(value).__module__.partition(".")[0]
    return root in _ROOTS and not isinstance(value, BaseEstimator | np.ndarray)


def _refusal(value: Any, where: str, why: str) -> TypeError:
    cls = type(value)
    return TypeError(
        f"{where} is a {cls.__module__}.{cls.__qualname__}, {why}. Saved are estimators, plain "
        f"values, arrays, and objects with the methods that skfusion.save documents. Change this "
        f"parameter, save a part (of a search its best_estimator_), or use joblib.dump."
    )


def _untrusted(value: Any, where: str) -> list[str]:
    import skops.io

    try:
        names: list[str] = skops.io.get_untrusted_types(data=skops.io.dumps(value))
    except Exception as error:  # skops raises what the object's own methods raise
        raise TypeError(f"{where} cannot be saved: skops says {error!r}.") from error
    return names


def dump_foreign(values: Sequence[Any]) -> bytes:
    """Write objects in the format of skops, which holds no pickle.

    Parameters
    ----------
    values : sequence of object
        What `encode_foreign` collected.

    Returns
    -------
    bytes
        The content of the file.
    """
    import skops.io

    content: bytes = skops.io.dumps(list(values))
    return content


def load_foreign(content: bytes, trusted: Trusted) -> list[Any]:
    """Read objects that skops trusts by itself, or that the user trusts.

    Parameters
    ----------
    content : bytes
        The content of the file.
    trusted : dict
        What the user trusts.

    Returns
    -------
    list
        The objects.

    Raises
    ------
    LoadError
        If something else is in it.
    """
    import skops.io
    from skops.io.exceptions import UntrustedTypesFoundException

    try:
        values: list[Any] = skops.io.loads(content, trusted=list(trusted.values()))
    except UntrustedTypesFoundException as error:
        names = skops.io.get_untrusted_types(data=content)
        paths = [name.rpartition(".") for name in names]
        imports = "; ".join(f"from {module} import {cls}" for module, _, cls in paths)
        raise LoadError(
            f"The model holds {', '.join(names)}. What is in objects of these types is not "
            f"checked when they are read, so that a made-up file could crash the process. If you "
            f"trust who saved the model: {imports}; load(path, "
            f"trusted=[{', '.join(cls for _, _, cls in paths)}])."
        ) from error
    for value in values:
        if not _is_foreign(value):
            raise LoadError(f"The model's compiled objects hold a {type(value)}: it is refused.")
    return values


def decode_foreign(reader: Reader, number: int) -> Any:
    """Give one of the objects that skops kept.

    Parameters
    ----------
    reader : Reader
        Has read them.
    number : int
        Which.

    Returns
    -------
    object
        The object.
    """
    return reader.foreign[number]
