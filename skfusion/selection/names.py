"""What several models are called that are given without names."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from itertools import chain, count
from pathlib import PurePath
from typing import Any

from ..embed.embedder import LLMLayerEmbedder


def name_models(models: Mapping[str, Any] | Iterable[Any]) -> dict[str, Any]:
    """Return models by name; those without one are named by their id, folder or class.

    >>> list(name_models(["org/some-model", "folder/model.gguf", ("words", None), "other/model"]))
    ['some-model', 'model', 'words', 'model-2']
    """
    if isinstance(models, Mapping):
        named = dict(models)
    else:
        named = {}
        for entry in models:
            if isinstance(entry, list | tuple) and len(entry) == 2:
                name, model = entry
            else:
                name, model = _unique(_default_name(entry), named), entry
            if name in named:
                raise ValueError(f"Two models have the name {name!r}. Give each its own.")
            named[name] = model
    if not named:
        raise ValueError("There are no models. Give one at least.")
    return named


def _default_name(model: Any) -> str:
    """Return the end of an id or path, or the name of the class; no "__" is in it."""
    if isinstance(model, LLMLayerEmbedder):
        model = model.model
    if not isinstance(model, str | os.PathLike):
        return type(model).__name__.lower()
    path = PurePath(os.fspath(model).replace("\\", "/"))
    name = path.stem if path.suffix == ".gguf" else path.name
    return re.sub(r"__+", "_", name) or "model"


def _unique(name: str, taken: Mapping[str, Any]) -> str:
    tries = chain([name], (f"{name}-{i}" for i in count(2)))
    return next(one for one in tries if one not in taken)
