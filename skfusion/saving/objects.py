"""Estimators and the objects they are made of: a class by name, and its state."""

from __future__ import annotations

from types import BuiltinFunctionType, FunctionType
from typing import TYPE_CHECKING, Any

import joblib
import numpy as np
import sklearn
import torch
from sklearn.base import BaseEstimator

from ..embed.backbone import Backbone
from ..embed.embedder import LLMLayerEmbedder
from ..fusion.registry import OPERATORS
from .foreign import decode_foreign, encode_foreign
from .names import (
    RESTORE_HOOK,
    SAVE_HOOK,
    LoadError,
    find_class,
    find_function,
    find_type,
    has_hooks,
    is_known,
    name_of,
)
from .plain import Decode, Encode

if TYPE_CHECKING:
    from .tree import Reader, Writer

_VERSION = "_sklearn_version"  # what scikit-learn adds to a state; the file has it once
_OWN_OPERATORS = "_own_operators"  # functions of the user, in a state made for pickle


def encode_object(writer: Writer, value: Any, where: str) -> Any:
    """Encode an estimator or another object whose class may be named.

    Parameters
    ----------
    writer : Writer
        Encodes its state, and knows it when it comes again.
    value : object
        The object.
    where : str
        Where in the model it was found, for messages.

    Returns
    -------
    dict
        Its class and state, or the number of the object that it is.

    Raises
    ------
    TypeError
        If it cannot be saved.
    """
    if id(value) in writer.numbers:
        return {"same": writer.numbers[id(value)]}
    cls = type(value)
    if not (is_known(cls) or issubclass(cls, BaseEstimator) or has_hooks(cls)):
        return encode_foreign(writer, value, where)
    node: dict[str, Any] = {"class": name_of(cls), "number": writer.add_object(value)}
    if has_hooks(cls):
        node["saved"] = writer.encode(getattr(value, SAVE_HOOK)(), where)
        return {"object": node}
    state = value.__getstate__() or {}
    if not isinstance(state, dict):
        raise TypeError(f"{where} cannot be saved: the state of a {cls.__name__} is no dict.")
    state = {key: part for key, part in state.items() if key != _VERSION}
    own = state.pop(_OWN_OPERATORS, {})
    needed = sorted({state.get("operator"), state.get("_operator")} & own.keys())
    if needed:
        node["operators"] = needed
    node["state"] = {key: writer.encode(part, f"{where}.{key}") for key, part in state.items()}
    return {"object": node}


def _decode_object(reader: Reader, node: dict[str, Any]) -> Any:
    cls = find_class(node["class"], reader.trusted)
    if has_hooks(cls):
        reader.objects[node["number"]] = getattr(cls, RESTORE_HOOK)(reader.decode(node["saved"]))
        return reader.objects[node["number"]]
    _check_operators(node.get("operators", []))
    value: Any = object.__new__(cls)
    reader.objects[node["number"]] = value  # before its state, which may refer to it
    state = {key: reader.decode(part) for key, part in node["state"].items()}
    _check_runs_no_code(cls, state, reader)
    if hasattr(value, "__setstate__"):
        if cls.__module__.startswith("sklearn."):
            state[_VERSION] = sklearn.__version__  # `load` has warned already
        value.__setstate__(state)
    else:
        value.__dict__.update(state)
    return value


def _check_operators(names: list[str]) -> None:
    missing = [name for name in names if name not in OPERATORS]
    if missing:
        raise LoadError(
            f"The model uses the operator {missing[0]!r}, a function of yours that is no part of "
            f"the folder. Call register_operator({missing[0]!r}, function) before load."
        )


def _check_runs_no_code(cls: type, state: dict[str, Any], reader: Reader) -> None:
    """Refuse parameters that make an honest class run code from elsewhere."""
    trusted = reader.trusted.values()
    if state.get("trust_remote_code") and LLMLayerEmbedder not in trusted:
        raise LoadError(
            "The model has an embedder with trust_remote_code=True, which runs code that comes "
            "with a language model. If you trust who saved it, use load(path, "
            "trusted=[LLMLayerEmbedder])."
        )
    caches = cls.__module__.startswith("sklearn.") and state.get("memory") is not None
    if caches and cls not in trusted:
        raise LoadError(
            f"The model has a {cls.__name__} with memory={state['memory']!r}, a cache of pickles "
            f"that it would read when fitted. If you trust who saved the model and wrote there, "
            f"use load(path, trusted=[{cls.__name__}])."
        )


def _refuse_backbone(writer: Writer, value: Backbone, where: str) -> Any:
    raise TypeError(
        f"{where} is a Backbone, a model in memory, and weights are no part of a saved pipeline. "
        f"Save the model and its tokenizer in a folder with save_pretrained, and give "
        f"LLMLayerEmbedder the folder."
    )


def _type(writer: Writer, value: type, where: str) -> Any:
    return {"type": name_of(value)}


def _function(writer: Writer, value: Any, where: str) -> Any:
    name = name_of(value)
    if "<" in name:
        raise TypeError(
            f"{where} is {value!r}, a function without a name of its own, which cannot be saved. "
            f"Define it with `def` in a module."
        )
    return {"function": name}


def _memory(writer: Writer, value: joblib.Memory, where: str) -> Any:
    options = {"location": value.location, "mmap_mode": value.mmap_mode}
    return {"memory": writer.encode(options | {"verbose": value._verbose}, where)}


def _decode_memory(reader: Reader, options: Any) -> joblib.Memory:
    if joblib.Memory not in reader.trusted.values():
        raise LoadError(
            "The model has a joblib.Memory, which makes a folder and reads pickles from it. If "
            "you trust who saved the model and wrote there, use load(path, "
            "trusted=[joblib.Memory]). An embedder's memory may be a path instead."
        )
    return joblib.Memory(**reader.decode(options))


def _torch_dtype(writer: Writer, value: torch.dtype, where: str) -> Any:
    return {"torch_dtype": str(value).removeprefix("torch.")}


def _decode_torch_dtype(reader: Reader, name: str) -> torch.dtype:
    dtype = getattr(torch, name)
    if not isinstance(dtype, torch.dtype):
        raise LoadError(f"The model has the dtype {name!r}, which torch does not have.")
    return dtype


ENCODERS: dict[type, Encode] = {
    FunctionType: _function,
    BuiltinFunctionType: _function,
    np.ufunc: _function,
    joblib.Memory: _memory,
    torch.dtype: _torch_dtype,
    torch.device: lambda writer, value, where: {"torch_device": str(value)},
}
#: For any class derived from these.
KIND_ENCODERS: dict[type, Encode] = {Backbone: _refuse_backbone, type: _type}

DECODERS: dict[str, Decode] = {
    "object": _decode_object,
    "same": lambda reader, number: reader.objects[number],
    "skops": decode_foreign,
    "type": lambda reader, name: find_type(name, reader.trusted),
    "function": lambda reader, name: find_function(name, reader.trusted),
    "memory": _decode_memory,
    "torch_dtype": _decode_torch_dtype,
    "torch_device": lambda reader, name: torch.device(name),
}
