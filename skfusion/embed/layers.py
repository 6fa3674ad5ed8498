"""What the `layer`, `pooling` and `store_layers` parameters mean for a model of L layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .pooling import POOLINGS
from .shards import Column


def resolve_layers(layer: Any, n_layers: int, *, name: str) -> list[int]:
    """Turn a layer, a depth or a list of these into layers counted from 0.

    Parameters
    ----------
    layer : int, float or sequence of these
        Layer -(L+1) to L, or depth f in (0, 1], which is ``round(f * L)``.
    n_layers : int
        The model's number of blocks L.
    name : str
        The parameter's name, for messages.

    Returns
    -------
    list of int
        Different layers, in the order given.

    Raises
    ------
    ValueError
        If a layer is out of range, named twice, or not a number.

    Examples
    --------
    >>> from skfusion.embed.layers import resolve_layers
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
    """Check the names of one or several poolings.

    Parameters
    ----------
    pooling : str or sequence of str
        Keys of `POOLINGS`.
    name : str
        The parameter's name, for messages.

    Returns
    -------
    list of str
        Different poolings, in the order given.

    Raises
    ------
    ValueError
        If a name is unknown or stands there twice.
    """
    poolings = [pooling] if isinstance(pooling, str) else list(pooling)
    unknown = [p for p in poolings if p not in POOLINGS]
    if unknown or not poolings or len(set(poolings)) < len(poolings):
        raise ValueError(
            f"{name}={pooling!r} must be one of {', '.join(POOLINGS)}, or a list of different "
            f"ones."
        )
    return poolings


def resolve_wanted(
    layer: Any, pooling: Any, store_layers: Any, store_poolings: Any, n_layers: int
) -> tuple[list[int], list[str]]:
    """List the layers and poolings that are looked at: of "auto" and "mean", all that are kept.

    Parameters
    ----------
    layer, pooling, store_layers, store_poolings
        The parameters.
    n_layers : int
        The model's number of blocks L.

    Returns
    -------
    layers : list of int
        Layers counted from 0.
    poolings : list of str
        Their poolings.

    Raises
    ------
    ValueError
        If something is unknown or out of range, or one vector is to be chosen of several blocks.

    Examples
    --------
    >>> from skfusion.embed.layers import resolve_wanted
    >>> resolve_wanted("auto", "mean", [1, -1], "all", 3)
    ([1, 3], ['mean'])
    """
    layers, poolings = list(range(n_layers + 1)), list(POOLINGS)
    if not isinstance(layer, str):
        layers = resolve_layers(layer, n_layers, name="layer")
    elif not isinstance(store_layers, str):
        layers = resolve_layers(store_layers, n_layers, name="store_layers")
    if not is_auto(pooling):
        poolings = resolve_poolings(pooling, name="pooling")
    elif not isinstance(store_poolings, str):
        poolings = resolve_poolings(store_poolings, name="store_poolings")
    pairs = ((layer, pooling, poolings), (pooling, layer, layers))
    if any(is_auto(a) and not is_auto(b) and len(blocks) > 1 for a, b, blocks in pairs):
        raise ValueError(
            f"layer={layer!r} with pooling={pooling!r}: 'auto' chooses one vector a text. Put one "
            f"layer or one pooling beside it, or 'auto' for both."
        )
    return layers, poolings


def is_auto(value: Any) -> bool:
    """Tell whether a `layer` or `pooling`, which may be an array, is "auto"."""
    return isinstance(value, str) and value == "auto"


def resolve_stored(
    store_layers: Any,
    store_poolings: Any,
    layers: Sequence[int],
    poolings: Sequence[str],
    n_layers: int,
) -> list[Column]:
    """List what a pass stores beside what is asked for.

    Parameters
    ----------
    store_layers, store_poolings : "all", "requested" or list
        The parameters.
    layers, poolings : sequence
        What is asked for.
    n_layers : int
        The model's number of blocks L.

    Returns
    -------
    list of (layer, pooling)
        Empty where only the requested columns are kept.
    """
    if isinstance(store_layers, str) and store_layers == "requested":
        return []
    kept_layers: Sequence[int] = range(n_layers + 1)
    if not isinstance(store_layers, str):
        kept_layers = resolve_layers(store_layers, n_layers, name="store_layers")
    kept_poolings: Sequence[str] = list(POOLINGS)
    if not isinstance(store_poolings, str):
        kept_poolings = resolve_poolings(store_poolings, name="store_poolings")
    elif store_poolings == "requested":
        kept_poolings = poolings
    return [(layer, pooling) for layer in kept_layers for pooling in kept_poolings]


def feature_names(blocks: Mapping[str, slice]) -> NDArray[np.object_]:
    """Name the columns of named blocks ``{block}_{i}``.

    Parameters
    ----------
    blocks : mapping of str to slice
        The columns of each block.

    Returns
    -------
    ndarray of str objects
        One name a column.
    """
    names = [f"{name}_{i}" for name, cut in blocks.items() for i in range(cut.stop - cut.start)]
    return np.array(names, dtype=object)
