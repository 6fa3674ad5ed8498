"""What `layer`, `pooling` and the store's `layers` and `poolings` mean for a model of L layers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from numbers import Integral, Real
from typing import Any

import numpy as np

from .pooling import POOLINGS
from .shards import Column

# How messages name what the store is asked to keep.
_STORE_LAYERS = "VectorStore(layers=...): layers"
_STORE_POOLINGS = "VectorStore(poolings=...): poolings"


def resolve_layers(layer: Any, n_layers: int, *, name: str) -> list[int]:
    """Return a layer, a depth or a list of these as different layers counted from 0.

    Examples
    --------
    >>> resolve_layers([0, -1, 0.5], 12, name="layer")
    [0, 12, 6]
    """
    if not isinstance(layer, Sequence | np.ndarray):
        return [_one_layer(layer, n_layers, name)]
    if len(layer) == 0:
        raise ValueError(f"{name} is an empty list. Name at least one layer.")
    layers = [_one_layer(entry, n_layers, name) for entry in layer]
    for i, k in enumerate(layers):
        if k in layers[:i]:
            raise ValueError(f"{name}={list(layer)!r} names layer {k} more than once.")
    return layers


def _one_layer(layer: Any, n_layers: int, name: str) -> int:
    valid = (
        f"Valid are the integers {-(n_layers + 1)} to {n_layers} (0 is the embedding output, "
        f"{n_layers} or -1 the last layer) and depths in (0, 1]."
    )
    if isinstance(layer, bool | np.bool_) or not isinstance(layer, Real):
        raise ValueError(f"{name} must be a number, got {layer!r}. {valid}")
    if isinstance(layer, Integral):
        k = int(layer)
        if not -(n_layers + 1) <= k <= n_layers:
            raise ValueError(f"{name}={k} is out of range. {valid}")
        return k if k >= 0 else k + n_layers + 1
    depth = float(layer)
    if not 0 < depth <= 1:
        raise ValueError(f"{name}={depth} is not a depth. {valid}")
    return round(depth * n_layers)


def resolve_poolings(pooling: str | Sequence[str], *, name: str) -> list[str]:
    """Return the names of one or several different poolings, checked."""
    poolings = [pooling] if isinstance(pooling, str) else list(pooling)
    unknown = [p for p in poolings if p not in POOLINGS]
    if unknown or not poolings or len(set(poolings)) < len(poolings):
        raise ValueError(
            f"{name}={pooling!r} must be one of {', '.join(POOLINGS)}, or a list of different "
            f"ones."
        )
    return poolings


def resolve_columns(
    layer: Any, pooling: Any, store_layers: Any, store_poolings: Any, n_layers: int
) -> tuple[list[int], list[str], list[Column]]:
    """Return the layers and poolings that are looked at, and what a pass stores beside them.

    "auto", "blend" and "mean" look at all that is kept.

    Examples
    --------
    >>> resolve_columns("auto", "mean", [1, -1], "requested", 3)
    ([1, 3], ['mean'], [(1, 'mean'), (3, 'mean')])
    """
    for value, name in ((store_layers, _STORE_LAYERS), (store_poolings, _STORE_POOLINGS)):
        named = isinstance(value, str) and value in ("all", "requested")
        if not named and not isinstance(value, list | tuple):
            raise ValueError(f"{name} must be 'all', 'requested' or a list; got {value!r}.")
    kept_layers, kept_poolings = list(range(n_layers + 1)), list(POOLINGS)
    if not isinstance(store_layers, str):
        kept_layers = resolve_layers(store_layers, n_layers, name=_STORE_LAYERS)
    if not isinstance(store_poolings, str):
        kept_poolings = resolve_poolings(store_poolings, name=_STORE_POOLINGS)
    layers, poolings = kept_layers, kept_poolings
    if not isinstance(layer, str):
        layers = resolve_layers(layer, n_layers, name="layer")
    if not is_word(pooling, "auto"):
        poolings = resolve_poolings(pooling, name="pooling")
    pairs = ((layer, pooling, poolings), (pooling, layer, layers))
    one_of_many = any(
        is_word(a, "auto") and not is_word(b, "auto") and len(blocks) > 1 for a, b, blocks in pairs
    )
    if one_of_many and not is_word(layer, "blend"):
        raise ValueError(
            f"layer={layer!r} with pooling={pooling!r}: 'auto' chooses one vector per text. Put "
            f"one layer or one pooling beside it, 'auto' for both, or layer='blend', which takes "
            f"several."
        )
    if store_layers == "requested":
        return layers, poolings, []
    if store_poolings == "requested":
        kept_poolings = poolings
    return layers, poolings, list(product(kept_layers, kept_poolings))


def is_word(value: Any, word: str) -> bool:
    """Whether a `layer` or `pooling`, which may be an array, is "auto", "blend" or "mean"."""
    return isinstance(value, str) and value == word
