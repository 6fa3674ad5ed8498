"""What an embedder's parameters and targets settle, checked against its model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._targets import Targets
from ..linear.criteria import CRITERIA
from ..linear.layer_scores import read_criterion_targets
from .backbone import Backbone, Source
from .encoding import Spec
from .loading import resolve_device, resolve_dtype

if TYPE_CHECKING:
    from .embedder import LLMLayerEmbedder


def read_spec(embedder: LLMLayerEmbedder, source: Source) -> Spec:
    """Fix all that changes a vector, so that later `set_params` cannot mix up the store.

    Parameters
    ----------
    embedder : LLMLayerEmbedder
        Whose parameters are read.
    source : Source
        Its model.

    Returns
    -------
    Spec
        What the vectors are made with.

    Raises
    ------
    ValueError
        If a parameter does not go with the model.
    """
    dtype = resolve_dtype(embedder.dtype, resolve_device(embedder.device), source.saved_dtype)
    if isinstance(embedder.model, Backbone):
        dtype = _check_backbone(embedder, embedder.model)
    if embedder.max_length is not None and source.fixed_positions:
        limit = source.max_positions
        if limit is not None and embedder.max_length > limit:
            raise ValueError(
                f"max_length={embedder.max_length} is more than the {limit} positions that "
                f"{source.name!r} has. Use at most {limit}, or None for that."
            )
    return Spec(
        source=source,
        prompt=embedder.prompt or None,
        max_length=embedder.max_length,
        dtype=dtype,
        attn_implementation=embedder.attn_implementation,
        store_dtype=embedder.store_dtype,
    )


def _check_backbone(embedder: LLMLayerEmbedder, backbone: Backbone) -> str:
    """Refuse to move or cast a model that the user made."""
    if embedder.device is not None:
        device, wanted = backbone.device, resolve_device(embedder.device)
        if wanted not in (str(device), device.type):
            raise ValueError(
                f"device={embedder.device!r}, but the Backbone's model is on {device}. Move it "
                f"yourself with model.to(...), or leave device=None."
            )
    wanted = resolve_dtype(embedder.dtype, "cpu", backbone.dtype)
    if embedder.dtype is not None and wanted != backbone.dtype:
        raise ValueError(
            f"dtype={embedder.dtype!r}, but the Backbone's model is in {backbone.dtype}. Cast it "
            f"yourself with model.to(...), or leave dtype=None."
        )
    if embedder.attn_implementation is not None:
        raise ValueError(
            f"attn_implementation={embedder.attn_implementation!r} cannot be changed on a "
            f"Backbone. Load its model with it."
        )
    return backbone.dtype


def read_targets(embedder: LLMLayerEmbedder, y: Any, n_texts: int) -> Targets | None:
    """Check the targets by which "auto" chooses, before the texts pass through the model.

    Parameters
    ----------
    embedder : LLMLayerEmbedder
        Whose ``layer_criterion`` is read.
    y : array-like or None
        What it was fitted with.
    n_texts : int
        How many there must be.

    Returns
    -------
    Targets or None
        None for a criterion that takes none.

    Raises
    ------
    ValueError
        If the criterion cannot use them.
    """
    if y is None and CRITERIA[embedder.layer_criterion].kinds:
        raise ValueError(
            f"This {type(embedder).__name__} estimator requires y to be passed, but the target y "
            f"is None: 'auto' chooses by it. Pass y to fit, or use layer='mean', the mean over "
            f"layers, which needs none."
        )
    return read_criterion_targets(embedder.layer_criterion, y, n_texts)
