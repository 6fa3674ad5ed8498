"""What a subset of models is taken from: each model's vectors, and the estimator on top."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import clone
from sklearn.pipeline import Pipeline
from sklearn.utils import _safe_indexing
from sklearn.utils.parallel import Parallel, delayed
from sklearn.utils.validation import _check_method_params

from .._blocks import EmbeddingBlocks
from ..embed.embedder import LLMLayerEmbedder
from .subset_inputs import SINGLE, as_blocks, keep_models, kept_models, params_for

Rows = NDArray[np.intp]
Split = tuple[Rows, Rows]
Subset = tuple[str, ...]


@dataclass(frozen=True)
class Part:
    """The vectors of one model.

    Attributes
    ----------
    whole : EmbeddingBlocks, array-like or None
        Vectors of all rows, where the model learns nothing from them.
    folds : list of (EmbeddingBlocks, EmbeddingBlocks)
        Where it does, those of each fold's training and test rows, learnt from the former.
    """

    whole: Any
    folds: Sequence[tuple[EmbeddingBlocks, EmbeddingBlocks]] = ()


@dataclass(frozen=True)
class Task:
    """Rows on which heads are trained and scored: one X and y, and the splits of its rows."""

    X: Any
    y: Any
    splits: Sequence[Split]
    fit_params: dict[str, Any]
    score_params: dict[str, Any]


def make_parts(
    embed: Pipeline | None, X: Any, y: Any, splits: Sequence[Split], params: Mapping[str, Any]
) -> dict[str, Part]:
    """Give the vectors of each model.

    Parameters
    ----------
    embed : Pipeline or None
        The embedding step. Each embedder is a model; it runs once over all rows where it learns
        nothing, and is fitted on the training rows of every fold where it may.
    X : sequence of str, EmbeddingBlocks, data frame or array-like
        Texts where there is an embedding step. Otherwise each block is a model, and an input
        without blocks is one.
    y : array-like or None
        Targets.
    splits : sequence of (ndarray of int, ndarray of int)
        Training and test rows of each fold.
    params : mapping of str to object
        Parameters of the estimator's `fit`.

    Returns
    -------
    dict of str to Part
        By the models' names, in their order.
    """
    if embed is None:
        blocks = as_blocks(X)
        if blocks is None:
            return {SINGLE: Part(X)}
        return {name: Part(blocks.select([name])) for name in blocks.names}
    union = embed.steps[0][1]
    wanted = params_for(embed, params)
    made = Parallel(n_jobs=union.n_jobs)(
        delayed(_embed)(keep_models(embed, [name]), X, y, splits, wanted)
        for name in kept_models(union)
    )
    return dict(zip(kept_models(union), made, strict=True))


def make_tasks(
    parts: Iterable[Part],
    y: Any,
    splits: Sequence[Split],
    fit_params: dict[str, Any],
    score_params: dict[str, Any],
) -> list[Task]:
    """Put the vectors of a subset's models side by side.

    Parameters
    ----------
    parts : iterable of Part
        The models' vectors.
    y : array-like or None
        Targets of all rows.
    splits : sequence of (ndarray of int, ndarray of int)
        Training and test rows of each fold.
    fit_params, score_params : dict of str to object
        Parameters for the head and the scorer; those with one entry a row follow the rows.

    Returns
    -------
    list of Task
        One for all folds where no model learns, otherwise one for each fold.
    """
    chosen = list(parts)
    if all(part.whole is not None for part in chosen):
        return [Task(_join([part.whole for part in chosen]), y, splits, fit_params, score_params)]
    tasks = []
    for fold, (train, test) in enumerate(splits):
        rows = np.concatenate([train, test])
        tasks.append(
            Task(
                X=_join([_rows_of_fold(part, fold, rows) for part in chosen]),
                y=_safe_indexing(y, rows),
                splits=[(np.arange(len(train)), np.arange(len(train), len(rows)))],
                fit_params=_check_method_params(y, fit_params, indices=rows),
                score_params=_check_method_params(y, score_params, indices=rows),
            )
        )
    return tasks


def _embed(
    alone: Pipeline, X: Any, y: Any, splits: Sequence[Split], params: dict[str, Any]
) -> Part:
    """Run a union of which one embedder is left."""
    if not _may_learn(alone):
        return Part(_to_blocks(alone.fit_transform(X, y, **params)))
    folds = []
    for train, test in splits:
        fitted, targets = clone(alone), None if y is None else _safe_indexing(y, train)
        on_train = fitted.fit_transform(
            _safe_indexing(X, train), targets, **_check_method_params(X, params, indices=train)
        )
        on_test = fitted.transform(_safe_indexing(X, test))
        folds.append((_to_blocks(on_train), _to_blocks(on_test)))
    return Part(None, folds)


def _may_learn(alone: Pipeline) -> bool:
    """Tell whether vectors may depend on the rows that an embedder is fitted on."""
    union = alone.steps[0][1]
    (name,) = kept_models(union)
    embedder = dict(union.embedders)[name]
    if not isinstance(embedder, LLMLayerEmbedder):
        return True
    # Layers and poolings are settled by their values, or chosen ("auto", "mean") in `fit`.
    return isinstance(embedder.layer, str) or embedder.pooling == "auto"


def _to_blocks(output: Any) -> EmbeddingBlocks:
    """Read the output of a union, which `set_output` may have made a frame."""
    blocks = as_blocks(output)
    assert blocks is not None
    return blocks


def _join(pieces: Sequence[Any]) -> Any:
    if len(pieces) == 1:
        return pieces[0]
    return EmbeddingBlocks(dict(chain.from_iterable(piece.blocks.items() for piece in pieces)))


def _rows_of_fold(part: Part, fold: int, rows: Rows) -> EmbeddingBlocks:
    """Give a model's vectors of one fold's training and test rows, in this order."""
    if part.whole is not None:
        taken: EmbeddingBlocks = part.whole[rows]
        return taken
    train, test = part.folds[fold]
    return EmbeddingBlocks(
        {name: _stack(train.blocks[name], test.blocks[name]) for name in train.names}
    )


def _stack(top: Any, bottom: Any) -> Any:
    if sparse.issparse(top):
        return sparse.vstack([top, bottom], format="csr")
    return np.concatenate([top, bottom])
