"""What a model is, for an estimator and its input, and the estimator with some models only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sklearn.base import clone
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.metadata_routing import get_routing_for_object

from .._blocks import EmbeddingBlocks
from .._boundaries import find_boundaries, frame_columns
from ..embed.union import EmbedderUnion, is_kept

SINGLE = "block0"


def split_estimator(estimator: Any) -> tuple[Pipeline | None, Any]:
    """Tell the embedding step from what is trained for each subset.

    Parameters
    ----------
    estimator : estimator
        A pipeline that begins with an `EmbedderUnion`, or anything else.

    Returns
    -------
    embed : Pipeline or None
        A pipeline of the union alone, so that parameters of `fit` find it by its name; None
        where the estimator has none.
    head : estimator
        The other steps, or the estimator itself.

    Raises
    ------
    ValueError
        If nothing comes after the union.
    """
    if not isinstance(estimator, Pipeline) or not isinstance(estimator.steps[0][1], EmbedderUnion):
        return None, estimator
    if len(estimator.steps) < 2:
        raise ValueError(
            "The pipeline has no step after its EmbedderUnion. Add a classifier or a regressor."
        )
    head = Pipeline(estimator.steps[1:], memory=estimator.memory, verbose=estimator.verbose)
    return Pipeline(estimator.steps[:1]), head


def as_blocks(X: Any) -> EmbeddingBlocks | None:
    """Read the blocks of an input.

    Parameters
    ----------
    X : EmbeddingBlocks, data frame or array-like of shape (n_samples, n_features)
        The input.

    Returns
    -------
    EmbeddingBlocks or None
        The blocks; None where nothing says that there are several.

    Raises
    ------
    ValueError
        If some columns of a frame are named ``block__feature`` and others are not.

    Examples
    --------
    >>> import pandas as pd
    >>> from skfusion.selection.subset_inputs import as_blocks
    >>> as_blocks(pd.DataFrame({"a__0": [1.0], "a__1": [2.0], "b__0": [3.0]}))
    EmbeddingBlocks(a: 2, b: 1; shape=(1, 3), dtype=float64)
    >>> as_blocks([[1.0, 2.0]])
    """
    if isinstance(X, EmbeddingBlocks):
        return X
    columns = frame_columns(X) or []
    if not any("__" in column for column in columns):
        return None
    values = X.to_numpy()
    return EmbeddingBlocks({name: values[:, cut] for name, cut in find_boundaries(X).items()})


def select_blocks(X: Any, names: Sequence[str]) -> EmbeddingBlocks:
    """Keep some blocks of an input.

    Parameters
    ----------
    X : EmbeddingBlocks or data frame of shape (n_samples, n_features)
        The blocks, others may be among them.
    names : sequence of str
        The blocks to keep.

    Returns
    -------
    EmbeddingBlocks
        Those blocks.

    Raises
    ------
    ValueError
        If a block is missing, or `X` has no blocks.

    Examples
    --------
    >>> import numpy as np
    >>> from skfusion import EmbeddingBlocks
    >>> from skfusion.selection.subset_inputs import select_blocks
    >>> select_blocks(EmbeddingBlocks({"a": np.ones((1, 2)), "b": np.ones((1, 3))}), ["b"])
    EmbeddingBlocks(b: 3; shape=(1, 3), dtype=float64)
    """
    blocks = as_blocks(X)
    if blocks is None:
        raise ValueError(
            f"X of type {type(X).__name__} does not say where its blocks are, but the search was "
            f"fitted on blocks and chose {', '.join(names)}. Pass EmbeddingBlocks, or a data "
            f"frame with columns 'block__feature'."
        )
    return blocks.select(names)


def model_names(embed: Pipeline | None, X: Any) -> tuple[str, ...]:
    """Name the models of a search.

    Parameters
    ----------
    embed : Pipeline or None
        The embedding step.
    X : EmbeddingBlocks, data frame or array-like
        The input, where there is no embedding step.

    Returns
    -------
    tuple of str
        The embedders that are not dropped, or the blocks of the input; "block0" where it has
        none.

    Raises
    ------
    ValueError
        If every embedder is dropped.
    """
    if embed is None:
        blocks = as_blocks(X)
        return (SINGLE,) if blocks is None else blocks.names
    kept = kept_models(embed.steps[0][1])
    if not kept:
        raise ValueError("Every embedder of the union is dropped. Keep at least one.")
    return tuple(kept)


def kept_models(union: EmbedderUnion) -> list[str]:
    """Name the embedders of a union that are not dropped.

    Parameters
    ----------
    union : EmbedderUnion
        The union.

    Returns
    -------
    list of str
        Names in their order.
    """
    return [name for name, embedder in union.embedders if is_kept(embedder)]


def keep_models(pipeline: Pipeline, names: Sequence[str]) -> Pipeline:
    """Clone a pipeline that begins with a union, and drop all other embedders.

    Parameters
    ----------
    pipeline : Pipeline
        The pipeline; it is not changed.
    names : sequence of str
        The embedders to keep.

    Returns
    -------
    Pipeline
        The clone.

    Examples
    --------
    >>> from sklearn.feature_extraction.text import TfidfVectorizer
    >>> from sklearn.pipeline import Pipeline
    >>> from skfusion import EmbedderUnion
    >>> from skfusion.selection.subset_inputs import keep_models
    >>> union = EmbedderUnion([("a", TfidfVectorizer()), ("b", TfidfVectorizer())])
    >>> keep_models(Pipeline([("embed", union)]), ["b"])["embed"].embedders
    [('a', 'drop'), ('b', TfidfVectorizer())]
    """
    step, union = pipeline.steps[0]
    others = set(kept_models(union)) - set(names)
    copied: Pipeline = clone(pipeline)
    return copied.set_params(**{f"{step}__{name}": "drop" for name in others})


def params_for(estimator: Any, params: Mapping[str, Any]) -> dict[str, Any]:
    """Keep the parameters of `fit` that are meant for a part of a pipeline.

    Parameters
    ----------
    estimator : estimator
        The part.
    params : mapping of str to object
        Parameters of the whole pipeline's `fit`.

    Returns
    -------
    dict of str to object
        Those that the part's steps ask for by metadata routing, or by ``{step}__`` where the
        part is a pipeline and routing is not enabled.
    """
    if not params or not isinstance(estimator, Pipeline):
        return dict(params)
    steps = {name for name, _ in estimator.steps}
    named = {key: value for key, value in params.items() if key.partition("__")[0] in steps}
    consumed = get_routing_for_object(estimator).consumes("fit", params.keys())
    return named | {key: params[key] for key in consumed}


def fit_subset(
    estimator: Any, X: Any, y: Any, names: Sequence[str], params: Mapping[str, Any]
) -> Any:
    """Fit an estimator with some of its models only; the others are never run.

    Parameters
    ----------
    estimator : estimator
        A pipeline that begins with an `EmbedderUnion`, or anything else.
    X : sequence of str, EmbeddingBlocks, data frame or array-like
        All rows.
    y : array-like or None
        Targets.
    names : sequence of str
        The models to keep.
    params : mapping of str to object
        Parameters of `fit`.

    Returns
    -------
    estimator
        The pipeline with the other embedders dropped, or a pipeline that takes the blocks it
        needs from any input that has them, or, where there are no blocks, the estimator.
    """
    embed, _ = split_estimator(estimator)
    if embed is not None:
        kept = keep_models(estimator, names)
        return kept.fit(X, y, **params_for(kept, params))
    if as_blocks(X) is None:
        return clone(estimator).fit(X, y, **params)
    select = FunctionTransformer(select_blocks, kw_args={"names": list(names)})
    # Fitted one by one, since `params` are named as the estimator alone names them.
    fitted = clone(estimator).fit(select.fit_transform(X), y, **params)
    return Pipeline([("select", select), ("estimator", fitted)])
