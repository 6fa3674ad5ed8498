"""`rank_models`: how good each language model will be, before anything is trained."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from sklearn.base import clone
from sklearn.utils import check_random_state
from sklearn.utils._optional_dependencies import check_pandas_support

from .._blocks import densify
from .._targets import CLASSES, LABELS, NUMBERS, Targets, Task, read_array, read_targets
from ..embed.backbone import Backbone
from ..embed.embedder import LLMLayerEmbedder
from ..embed.pooling import BLENDED_POOLINGS
from ..embed.stored import Memory
from ..embed.texts import check_texts
from ..embed.union import EmbedderUnion
from ..inspection.cost import measure_costs
from ..linear.blending import draw_rows
from ..linear.criteria import balanced_shares, softly_balanced
from ..linear.ridge import leave_one_out, log_losses
from ..linear.scaling import fit_scaler
from .names import name_models

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]

_MOST_TIMED = 32  # texts
_N_RESAMPLES, _LEVEL = 1000, 0.95


# --- scores of predictions, for many weights of rows at a time --------------------------------


def f1_macro(true: Floats, predicted: Floats, counts: Floats) -> Floats:
    """Return the mean F1 of classes or labels, 0 for one that is neither there nor predicted.

    >>> true, predicted = np.eye(2)[[0, 0, 1]], np.eye(2)[[0, 1, 1]]
    >>> f1_macro(true, predicted, np.ones((1, 3))).round(3)
    array([0.667])
    """
    both = counts @ (true * predicted)
    either = counts @ true + counts @ predicted
    scores: Floats = (2 * both / np.where(either > 0, either, 1.0)).mean(axis=1)
    return scores


def accuracy(true: Floats, predicted: Floats, counts: Floats) -> Floats:
    """Return the share of rows whose class, or all of whose labels, are right."""
    scores: Floats = counts @ (true == predicted).all(axis=1) / counts.sum(axis=1)
    return scores


def balanced_accuracy(true: Floats, predicted: Floats, counts: Floats) -> Floats:
    """Return the mean recall of classes or labels."""
    there = counts @ true
    recalls = counts @ (true * predicted) / np.where(there > 0, there, 1.0)
    scores: Floats = recalls.mean(axis=1)
    return scores


def r2(true: Floats, predicted: Floats, counts: Floats) -> Floats:
    """Return the mean coefficient of determination of outputs."""
    mean = counts @ true / counts.sum(axis=1, keepdims=True)
    spread = counts @ true**2 - counts.sum(axis=1, keepdims=True) * mean**2
    error = counts @ (true - predicted) ** 2
    scores: Floats = (1 - error / np.maximum(spread, np.finfo(np.float64).tiny)).mean(axis=1)
    return scores


Score = Callable[[Floats, Floats, Floats], Floats]
#: By the names that scikit-learn's scorers have.
SCORES: dict[str, Score] = {
    "f1_macro": f1_macro,
    "accuracy": accuracy,
    "balanced_accuracy": balanced_accuracy,
    "r2": r2,
}


def rank_models(
    models: Mapping[str, Any] | Sequence[Any],
    texts: ArrayLike,
    y: ArrayLike,
    *,
    task: Task = "auto",
    scoring: str | None = None,
    costs: pd.DataFrame | None = None,
    memory: Memory = None,
    max_length: int | None = None,
    random_state: int | np.random.RandomState | None = None,
    verbose: int = 0,
) -> pd.DataFrame:
    """Rank language models by how well they will do on texts, before anything is trained.

    Each text passes once through each model. The score is that of ridge regression, whose
    prediction of each row is by a fit without it, in closed form. It says which model to start
    with; what a pipeline reaches in the end, cross-validation says.

    Parameters
    ----------
    models : list or mapping of str to model
        The models, each a hub id, a folder, a `Backbone`, an `LLMLayerEmbedder` or any other
        transformer of texts, such as `TfidfVectorizer`. In a list, ``(name, model)`` pairs name
        them; others are named by the last part of their id or folder, or by their class. Language
        models have two rows: one as they are given, by default the last layer, and one for their
        blend, ``layer="blend"``.
    texts : sequence of str of shape (n_texts,)
        Labelled texts. Of more than 500 so many are drawn and embedded, by class, two of each
        first.
    y : array-like of shape (n_texts,) or (n_texts, n_outputs)
        Classes, a label indicator matrix, or numbers.
    task : {"auto", "classification", "regression"}, default="auto"
        How y is read, as by `LLMLayerEmbedder`.
    scoring : {"f1_macro", "accuracy", "balanced_accuracy", "r2"} or None, default=None
        The score. None is "f1_macro" for classes and labels and "r2" for numbers.
    costs : pandas.DataFrame or None, default=None
        What each model costs, as `measure_costs` returns: a row by each name, with the columns
        "seconds_per_text" and "bytes_per_text". None measures it with 32 of the texts, in a new
        process for each model.
    memory : path-like, joblib.Memory, VectorStore, None or False, default=None
        Where vectors are stored, for models that have no `memory` of their own.
    max_length : int or None, default=None
        Most tokens of a text, for models that are given without an embedder.
    random_state : int, RandomState instance or None, default=None
        For the texts that are drawn and the intervals.
    verbose : int, default=0
        Above 0, a progress bar counts the texts that pass through a model.

    Returns
    -------
    pandas.DataFrame
        Best score first, with the columns

        - ``model``: its name;
        - ``layer``: -1, "blend" or what its embedder has; "" where there are no layers;
        - ``score``, ``low``, ``high``: the score and its 95 % interval;
        - ``log_loss``: in nats per row, of rows left out, each class counting the same;
        - ``seconds_per_1000_texts``, ``bytes_per_text``: of the forward pass and of the store.

        ``attrs`` has "scoring" and "n_rows".

    Raises
    ------
    TypeError
        If a model is none of these, `texts` is not a container of texts, or `costs` is no data
        frame.
    ValueError
        If there are no models, two have one name, `scoring` does not go with y, y cannot be used,
        or `costs` misses a model.
    ImportError
        If pandas is not installed.

    See Also
    --------
    skfusion.ModelSubsetSearchCV : Which models together, by cross-validation.
    skfusion.layer_scores : The same for layers.

    Notes
    -----
    Vectors are standardised, words of `TfidfVectorizer` and blends are taken as they are. The
    penalty is that of the least squared error of rows left out. Rows of classes are fitted with
    the square roots of balanced weights; the class with the largest prediction is predicted, and
    labels from one half on, with the intercept of all rows.

    The interval is that of a bootstrap of the rows (1,000 draws within each class, 2.5th and
    97.5th percentile). It says how well these rows tell the score, not how much another training
    set would change it. What is chosen by the same rows, the penalty, weights of a blend and a
    layer of "auto", flatters the score with few rows: of two classes that are noise, the blend of
    MiniLM has a mean macro-F1 of 0.53 to 0.59 with 50 rows, and of 0.49 with 200.

    Examples
    --------
    >>> from sklearn.feature_extraction.text import TfidfVectorizer
    >>> import pandas as pd
    >>> from skfusion import rank_models
    >>> texts = ["good film", "bad film", "good plot", "bad plot", "good scene", "bad scene"]
    >>> costs = pd.DataFrame(0.0, ["words", "tiny"], ["seconds_per_text", "bytes_per_text"])
    >>> table = rank_models(
    ...     {"words": TfidfVectorizer(), "tiny": tiny_model}, texts, [1, 0, 1, 0, 1, 0],
    ...     costs=costs, random_state=0,  # without costs, measured in processes of their own
    ... )
    >>> sorted(zip(table["model"], table["layer"]))
    [('tiny', '-1'), ('tiny', 'blend'), ('words', '')]
    >>> float(table.set_index("model").loc["words", "score"])
    1.0
    """
    pandas = check_pandas_support("rank_models")
    rng = check_random_state(random_state)
    if isinstance(models, str | os.PathLike | Backbone) or not isinstance(models, Iterable):
        raise TypeError(
            f"models must be a list of models or a mapping of names to models, got "
            f"{type(models).__name__}: {models!r}. Put it in a list."
        )
    named = name_models(models)
    embedders = {
        name: _as_embedder(model, memory, max_length, verbose) for name, model in named.items()
    }
    rows = check_texts(texts)
    if y is None:
        raise ValueError("rank_models requires y: the classes, labels or numbers to rank by.")
    targets = _read(y, len(rows), task)
    name, score = _choose_score(scoring, targets)
    chosen = draw_rows(targets, rng)
    rows, targets = [rows[i] for i in chosen], targets.take(chosen).varying()
    seen = read_array(y)[chosen]
    if costs is None:
        costs = _measure(embedders, rows, seen, rng)
    elif not isinstance(costs, pandas.DataFrame):
        raise TypeError(
            f"costs must be a data frame as skfusion.measure_costs returns, or None, got "
            f"{type(costs).__name__}."
        )
    missing = [name for name in embedders if name not in costs.index]
    if missing:
        raise ValueError(
            f"costs says nothing of {', '.join(map(repr, missing))}. Give a row for each of "
            f"{', '.join(embedders)}, or None to measure them."
        )
    table = []
    seed = int(rng.randint(2**31 - 1))  # the same draws for all models
    for model, embedder in embedders.items():
        cost = costs.loc[model]
        for layer, candidate in _candidates(embedder, named[model], task, seed):
            features = _features(candidate.fit_transform(rows, seen), layer)
            table.append(
                {
                    "model": model,
                    "layer": layer,
                    **_estimate(features, targets, score, np.random.RandomState(seed)),
                    "seconds_per_1000_texts": 1000 * float(cost["seconds_per_text"]),
                    "bytes_per_text": float(cost["bytes_per_text"]),
                }
            )
    frame = pandas.DataFrame(table).sort_values(
        ["score", "log_loss"], ascending=[False, True], ignore_index=True, kind="stable"
    )
    frame.attrs = {"scoring": name, "n_rows": len(rows)}
    return frame


# --- models -----------------------------------------------------------------------------------


def _as_embedder(model: Any, memory: Any, max_length: int | None, verbose: int) -> Any:
    """Return an unfitted transformer of texts."""
    if isinstance(model, str | os.PathLike | Backbone):
        return LLMLayerEmbedder(model, memory=memory, max_length=max_length, verbose=verbose)
    if not hasattr(model, "fit_transform") or isinstance(model, type):
        raise TypeError(
            f"A model must be a hub id, a folder, a Backbone or a transformer of texts, got "
            f"{type(model).__name__}: {model!r}."
        )
    # A union hands its memory on.
    return EmbedderUnion([("model", model)], memory=memory, verbose=verbose)._equip(clone(model))


def _candidates(embedder: Any, given: Any, task: Task, seed: int) -> list[tuple[str, Any]]:
    """Return what is ranked of a model: itself, and its blend."""
    if not isinstance(embedder, LLMLayerEmbedder):
        return [("", clone(embedder))]
    one = clone(embedder)
    if task != "auto":
        one.set_params(task=task)
    layer = str(one.layer)
    blend = clone(one).set_params(layer="blend", random_state=seed)
    if given is not embedder and not isinstance(given, LLMLayerEmbedder):
        blend.set_params(pooling=list(BLENDED_POOLINGS))
    return [("blend", blend)] if layer == "blend" else [(layer, one), ("blend", blend)]


def _measure(
    embedders: Mapping[str, Any],
    texts: list[str],
    y: NDArray[Any],
    rng: np.random.RandomState,
) -> pd.DataFrame:
    sample = rng.permutation(len(texts))[:_MOST_TIMED]
    plain = [
        # What a pass costs and what it stores is the same for all layers.
        clone(model).set_params(layer=-1, pooling="mean")
        if isinstance(model, LLMLayerEmbedder)
        else model
        for model in embedders.values()
    ]
    union = EmbedderUnion([(f"model{i}", model) for i, model in enumerate(plain)])
    measured = measure_costs(union, [texts[i] for i in sample], y[sample])
    return measured.set_axis(list(embedders))


# --- estimates --------------------------------------------------------------------------------


def _read(y: Any, n_texts: int, task: Task) -> Targets:
    why = "rank_models takes classes, a label indicator matrix or numbers"
    return read_targets(y, CLASSES | LABELS | NUMBERS, why, n_rows=n_texts, task=task).varying()


def _choose_score(scoring: str | None, targets: Targets) -> tuple[str, Score]:
    numbers = targets.kind in NUMBERS
    name = ("r2" if numbers else "f1_macro") if scoring is None else scoring
    valid = [known for known in SCORES if (known == "r2") == numbers]
    if name not in valid:
        raise ValueError(
            f"scoring={scoring!r} must be None or one of {', '.join(valid)}, as y is "
            f"{targets.kind!r}."
        )
    return name, SCORES[name]


def _features(made: Any, layer: str) -> NDArray[np.floating[Any]]:
    """Return columns of like size: words and blends are already."""
    features = densify(made)
    if features.dtype not in (np.float32, np.float64):
        features = features.astype(np.float64)
    if layer == "blend" or sparse.issparse(made):
        return features
    return fit_scaler(features, "standard")(features)


def _estimate(
    features: NDArray[np.floating[Any]],
    targets: Targets,
    score: Score,
    rng: np.random.RandomState,
) -> dict[str, float]:
    fitted, shares = softly_balanced(targets), balanced_shares(targets)
    predicted = leave_one_out(features, fitted)
    loss = float(shares @ log_losses(predicted, fitted, shares))
    decided = _decide(predicted + _own_pull(fitted), targets)
    value = score(targets.matrix, decided, np.ones((1, len(targets))))[0]
    resampled = score(targets.matrix, decided, _resample(targets, rng))
    low, high = np.quantile(resampled, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    return {"score": float(value), "low": float(low), "high": float(high), "log_loss": loss}


def _own_pull(targets: Targets) -> Floats:
    """Return how far each row pulls the intercept.

    Leaving it out moves the intercept against its own class, and where vectors say nothing every
    row would be taken for another class.
    """
    weights = targets.weights
    rest = np.maximum(weights.sum() - weights, np.finfo(np.float64).tiny)
    centred = targets.matrix - targets.shares @ targets.matrix
    pull: Floats = (weights / rest)[:, None] * centred
    return pull


def _decide(predicted: Floats, targets: Targets) -> Floats:
    if targets.kind in NUMBERS:
        return predicted
    if targets.kind in LABELS:
        return (predicted >= 0.5).astype(np.float64)
    decided: Floats = np.eye(predicted.shape[1])[predicted.argmax(axis=1)]
    return decided


def _resample(targets: Targets, rng: np.random.RandomState) -> Floats:
    """Return how often each row is drawn (n_resamples, n_samples); classes keep their size."""
    groups = targets.codes if targets.kind in CLASSES else np.zeros(len(targets), dtype=np.intp)
    counts = np.empty((_N_RESAMPLES, len(targets)))
    for group in np.unique(groups):
        rows = np.flatnonzero(groups == group)
        counts[:, rows] = rng.multinomial(
            len(rows), np.full(len(rows), 1 / len(rows)), _N_RESAMPLES
        )
    return counts
