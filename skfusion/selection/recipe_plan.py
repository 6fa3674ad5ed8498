"""The steps of a recipe before they are fitted, and the models that pay."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.pipeline import Pipeline
from sklearn.utils import check_random_state, get_tags
from sklearn.utils.validation import _num_samples

from .._blocks import EmbeddingBlocks
from .._targets import CLASSES, Targets
from ..embed.backbone import Backbone
from ..embed.texts import as_sequence
from ..embed.union import EmbedderUnion
from ..fusion.transformer import FusionTransformer
from ..linear.ridge import ridge_losses
from .linear_head import deal_folds

TFIDF = "tfidf"
_MOST_WORDS = 10_000  # terms and pairs of terms, the most frequent
_TINY = float(np.finfo(np.float64).tiny)


@dataclass(frozen=True)
class Fused:
    """Some models of a union, and their training rows as one block."""

    union: EmbedderUnion
    fuse: FusionTransformer
    columns: NDArray[Any]

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the models."""
        return tuple(name for name, _ in self.union.embedders_)


@dataclass(frozen=True)
class Plan:
    """What is built: the steps before they are fitted."""

    union: EmbedderUnion
    fuse: FusionTransformer
    head: tuple[str, Any]
    droppable: frozenset[str]
    targets: Callable[[Any], Targets]
    takes_texts: bool
    chooses: bool

    def reads_words(self, X: Any) -> bool:
        """Whether there are texts, and one of them at least has a word."""
        return self.takes_texts and _has_words(X)

    def embed(self, X: Any, y: Any) -> tuple[EmbedderUnion, EmbeddingBlocks]:
        """Fit the embedders; words are left out where there are none."""
        union = clone(self.union)
        if TFIDF in self.droppable and not self.reads_words(X):
            union.set_params(**{TFIDF: "drop"})
        return union, union.fit_transform(X, _varying(y))

    def fuse_models(
        self, union: EmbedderUnion, blocks: EmbeddingBlocks, names: Sequence[str], y: Any
    ) -> Fused:
        """Fuse the blocks of some models."""
        kept, fuse = union.select(names), clone(self.fuse)
        part = blocks.select([*kept.output_indices_])
        return Fused(kept, fuse, fuse.fit_transform(part, _varying(y)))

    def finish(self, fused: Fused, y: Any, weights: NDArray[np.float64] | None) -> Pipeline:
        """Train the head on fused models."""
        name, head = self.head[0], clone(self.head[1])
        head.fit(fused.columns, y, **({} if weights is None else {"sample_weight": weights}))
        return Pipeline([("embed", fused.union), ("fuse", fused.fuse), (name, head)])

    def choose(
        self, union: EmbedderUnion, blocks: EmbeddingBlocks, y: Any, whole: Fused, clock: Clock
    ) -> Fused:
        """Leave out models that know nothing, by leave-one-out losses of ridge regression.

        A model stays if its own predictions are better than chance by more than one paired
        standard error, each class counting the same. Nothing more is asked of it: with few rows
        a model that seems to add nothing to the others raises the floor all the same.
        """
        targets = self.targets(y)
        factors = np.ones(len(targets))
        if targets.kind in CLASSES:
            factors = targets.balance(targets.weights)
            targets = targets.weighted(factors)
        chance = ridge_losses(np.zeros((len(targets), 1)), targets)
        gains = dict[str, float]()  # in standard errors
        for name in whole.names:
            if clock.is_over():
                return whole
            columns = np.asarray(blocks.select([*union.select([name]).output_indices_]))
            gain = (chance - ridge_losses(columns, targets)) * factors
            gains[name] = gain.mean() / max(gain.std(ddof=1) / np.sqrt(len(gain)), _TINY)
        best = max(gains, key=lambda name: gains[name])
        kept = [
            name
            for name, gain in gains.items()
            if gain > 1 or name == best or name not in self.droppable
        ]
        return whole if len(kept) == len(gains) else self.fuse_models(union, blocks, kept, y)


def _varying(y: NDArray[Any]) -> NDArray[Any] | None:
    """Return targets that something can be learnt from."""
    return y if (y != y[0]).any() else None


class Clock:
    """Seconds of each part, and whether the budget is spent."""

    def __init__(self, budget: float | None) -> None:
        self.budget, self.seconds = budget, dict[str, float]()
        self.started = self.last = time.perf_counter()
        self.search_from = np.inf

    def note(self, name: str) -> None:
        """Name the part that ends now."""
        now = time.perf_counter()
        self.seconds[name], self.last = now - self.last, now

    def end_first_fit(self) -> None:
        """Start the budget."""
        self.note("first fit")
        self.search_from = self.last

    def is_over(self) -> bool:
        """Whether what comes after the first fit has used up the budget."""
        return self.budget is not None and time.perf_counter() - self.search_from >= self.budget


def make_words() -> TfidfVectorizer:
    """Return TF-IDF of words and pairs of them."""
    return TfidfVectorizer(
        sublinear_tf=True, ngram_range=(1, 2), max_features=_MOST_WORDS, dtype=np.float32
    )


def _has_words(X: Any) -> bool:
    analyse = TfidfVectorizer().build_analyzer()
    return any(analyse(text) for text in as_sequence(X) if isinstance(text, str))


def takes_texts(model: Any) -> bool:
    """Whether a model takes texts, and not tables."""
    if isinstance(model, str | os.PathLike | Backbone):
        return True
    return not hasattr(model, "__sklearn_tags__") or bool(get_tags(model).input_tags.string)


def baseline_rows(plan: Plan, X: Any) -> Any:
    """Return what a baseline reads: the texts, or for tables nothing but the number of rows."""
    return X if plan.takes_texts else np.zeros((_num_samples(X), 1))


def score(scorer: Any, fitted: Any, X: Any, y: Any, fit_on: Any = None) -> float:
    """Return a score; NaN where there is none, such as for lack of a class or of any word."""
    try:
        if fit_on is not None:
            fitted.fit(*fit_on)
        return float(scorer(fitted, X, y))
    except ValueError:
        return float("nan")


def splits(
    targets: Targets, n_folds: int, seed: int
) -> list[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """Return training and held-out rows of each fold; a class is shared out evenly.

    Folds whose training rows have one class alone are left out, as are those without rows.
    """
    rng = check_random_state(seed)
    classes = targets.kind in CLASSES
    folds = deal_folds(targets.codes, n_folds, rng)
    made = []
    for fold in range(n_folds):
        train, test = np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)
        if len(test) and len(train) > 1 and (not classes or len(set(targets.codes[train])) > 1):
            made.append((train, test))
    return made
