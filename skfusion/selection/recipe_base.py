"""What `FusionClassifier` and `FusionRegressor` share: fitting, cross-validation, summary."""

from __future__ import annotations

import os
import time
import warnings
from abc import ABCMeta, abstractmethod
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn import config_context
from sklearn.base import BaseEstimator, clone
from sklearn.metrics import check_scoring, get_scorer_names
from sklearn.pipeline import Pipeline
from sklearn.utils import Tags, _safe_indexing, check_random_state, indexable
from sklearn.utils._param_validation import HasMethods, Interval, StrOptions
from sklearn.utils._repr_html.estimator import _VisualBlock
from sklearn.utils.validation import (
    _check_sample_weight,
    _num_samples,
    check_is_fitted,
)

from .._targets import Targets, Task, require_y
from ..embed.backbone import Backbone
from ..embed.embedder import LLMLayerEmbedder
from ..embed.texts import as_sequence, splittable
from ..embed.union import EmbedderUnion
from ..fusion.transformer import FusionTransformer
from ..inspection.cost import language_models
from .names import name_models
from .recipe_plan import (
    TFIDF,
    Clock,
    Plan,
    baseline_rows,
    make_words,
    score,
    splits,
    takes_texts,
)
from .recipe_report import cost_lines, head_lines, score_lines, weight_lines


def last_has(method: str) -> Callable[[Any], bool]:
    """Return a check of whether the last step, or what it will be, has a method."""

    def check(recipe: Any) -> bool:
        fitted = getattr(recipe, "pipeline_", None)
        last = fitted[-1] if fitted is not None else recipe.head
        return isinstance(last, str) or hasattr(last, method)

    return check


class BaseFusion(BaseEstimator, metaclass=ABCMeta):
    """What the two recipes share; see `FusionClassifier`."""

    _parameter_constraints: dict[str, Any] = {
        "models": [str, os.PathLike, Backbone, list, tuple, HasMethods(["fit", "transform"])],
        "layer": LLMLayerEmbedder._parameter_constraints["layer"],
        "pooling": LLMLayerEmbedder._parameter_constraints["pooling"],
        "max_length": LLMLayerEmbedder._parameter_constraints["max_length"],
        "tfidf": [StrOptions({"auto"}), "boolean"],
        "scoring": [StrOptions(set(get_scorer_names())), callable],
        "subset": [StrOptions({"auto", "all"})],
        "cv": [Interval(Integral, 2, None, closed="left"), None],
        "time_budget": [Interval(Real, 0, None, closed="left"), None],
        "memory": LLMLayerEmbedder._parameter_constraints["memory"],
        "n_jobs": [Integral, None],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }
    pipeline_: Pipeline
    _step: ClassVar[str]  # the name of the last step
    _task: ClassVar[Task]

    @abstractmethod
    def __init__(
        self,
        models: Any,
        layer: Any,
        pooling: Any,
        max_length: int | None,
        tfidf: bool | str,
        head: Any,
        scoring: Any,
        subset: str,
        cv: int | None,
        time_budget: float | None,
        memory: Any,
        n_jobs: int | None,
        random_state: Any,
        verbose: int,
    ) -> None:
        self.models = models
        self.layer = layer
        self.pooling = pooling
        self.max_length = max_length
        self.tfidf = tfidf
        self.head = head
        self.scoring = scoring
        self.subset = subset
        self.cv = cv
        self.time_budget = time_budget
        self.memory = memory
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose

    # --- what the two estimators add -----------------------------------------------------------

    @abstractmethod
    def _read_targets(self, y: Any) -> Targets:
        """Check y."""

    @abstractmethod
    def _make_head(self, seed: int) -> Any:
        """Return the last step, not fitted."""

    @abstractmethod
    def _make_baseline(self, texts: bool) -> tuple[str, Any]:
        """Return what the score is compared with, and its name."""

    # --- fitting -------------------------------------------------------------------------------

    def _fit(self, X: Any, y: Any, sample_weight: Any) -> None:
        require_y(y, self)
        clock = Clock(self.time_budget)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        plan = self._plan(seed)
        X, y = splittable(X), splittable(y)
        if plan.takes_texts:
            X = as_sequence(X)
        X, y = indexable(X, y)
        n_rows = _num_samples(X)
        if n_rows < 2:
            raise ValueError(
                f"Found {n_rows} sample(s) (n_samples={n_rows}) while a minimum of 2 is required."
            )
        targets = self._read_targets(y)
        y = targets.matrix[:, 0] if targets.classes is None else targets.classes[targets.codes]
        if len(y) < 2:
            raise ValueError(
                f"There must be two rows at least to learn from, got n_samples={len(y)}."
            )
        weights = None
        if sample_weight is not None:
            rows = np.empty((len(y), 1))
            weights = _check_sample_weight(sample_weight, rows, ensure_non_negative=True)
        with config_context(transform_output="default"):
            union, blocks = plan.embed(X, y)
            self._models = tuple(name for name, _ in union.embedders_)
            fused = plan.fuse_models(union, blocks, self._models, y)
            self.pipeline_ = plan.finish(fused, y, weights)
            clock.end_first_fit()
            if plan.chooses:
                kept = plan.choose(union, blocks, y, fused, clock)
                if kept.names != self._models:
                    self.pipeline_ = plan.finish(kept, y, weights)
                clock.note("choice of models")
            self._cross_validate(plan, X, y, weights, targets, clock, seed)
        self.n_rows_ = len(y)
        self.seconds_ = {**clock.seconds, "all": time.perf_counter() - clock.started}

    def _plan(self, seed: int) -> Plan:
        embedders = [
            (name, self._embedder(model, seed))
            for name, model in name_models(self._listed()).items()
        ]
        names = [name for name, _ in embedders]
        given = set(names)
        texts = all(takes_texts(embedder) for _, embedder in embedders)
        if self.tfidf is True and not texts:
            raise ValueError(
                "tfidf=True needs texts, but a model takes tables. Put TfidfVectorizer into the "
                "ColumnTransformer that reads the column of texts."
            )
        if texts and self.tfidf and TFIDF not in given:
            embedders.append((TFIDF, make_words()))
            if self.tfidf == "auto":
                given.add(TFIDF)
        return Plan(
            union=EmbedderUnion(
                embedders, memory=self.memory, n_jobs=self.n_jobs, verbose=self.verbose
            ),
            fuse=FusionTransformer("weighted", scale=None, task=self._task, random_state=seed),
            head=(self._step, self._make_head(seed)),
            droppable=frozenset(given),
            targets=self._read_targets,
            takes_texts=texts,
            chooses=self.subset == "auto" and len(embedders) > 1,
        )

    def _listed(self) -> Any:
        return self.models if isinstance(self.models, list | tuple) else [self.models]

    def _embedder(self, model: Any, seed: int) -> Any:
        if not isinstance(model, str | os.PathLike | Backbone):
            if hasattr(model, "fit") and hasattr(model, "transform"):
                return model
            raise TypeError(
                f"A model must be a hub id, a folder, a Backbone, a transformer of texts or "
                f"tables, or a pair of a name and one of these; got {model!r}."
            )
        return LLMLayerEmbedder(
            model,
            layer=self.layer,
            pooling=self.pooling,
            max_length=self.max_length,
            task=self._task,
            random_state=seed,
        )

    def _cross_validate(
        self,
        plan: Plan,
        X: Any,
        y: NDArray[Any],
        weights: NDArray[np.float64] | None,
        targets: Targets,
        clock: Clock,
        seed: int,
    ) -> None:
        """Repeat all of `fit` without each fold, and score the fold."""
        self.baseline_name_, baseline = self._make_baseline(plan.reads_words(X))
        scorer = check_scoring(self.pipeline_, scoring=self.scoring)
        scores, others = [], []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what a fold lacks
            for train, test in splits(targets, self.cv, seed) if self.cv else ():
                if clock.is_over():
                    break
                rows, held = _safe_indexing(X, train), _safe_indexing(X, test)
                union, blocks = plan.embed(rows, y[train])
                everything = tuple(name for name, _ in union.embedders_)
                fused = plan.fuse_models(union, blocks, everything, y[train])
                if plan.chooses:
                    fused = plan.choose(union, blocks, y[train], fused, clock)
                w = None if weights is None else weights[train]
                fitted = plan.finish(fused, y[train], w)
                scores.append(score(scorer, fitted, held, y[test]))
                others.append(
                    score(
                        scorer,
                        clone(baseline),
                        baseline_rows(plan, held),
                        y[test],
                        fit_on=(baseline_rows(plan, rows), y[train]),
                    )
                )
        self.scores_, self.baseline_scores_ = np.array(scores), np.array(others)
        clock.note("cross-validation")

    # --- what it has learnt --------------------------------------------------------------------

    @property
    def model_weights_(self) -> dict[str, float]:
        """The share of each model in the variance of what the last step sees; 0 if left out."""
        check_is_fitted(self)
        union, fuse = self.pipeline_["embed"], self.pipeline_["fuse"]
        shares = dict(zip(fuse.block_indices_, fuse.kernel_weights_.tolist(), strict=True))
        weights = dict.fromkeys(self._models, 0.0)
        for name, _ in union.embedders_:
            blocks = union.select([name]).output_indices_
            weights[name] = float(sum(shares[block] for block in blocks))
        return weights

    def summary(self) -> str:
        """Return what was chosen and how good it is, in about twenty lines.

        Returns
        -------
        str
            Head and class weights, weights of models and layers, the cross-validated score and
            how far it is ahead of TF-IDF with a linear model, with 95 % intervals over the folds,
            seconds, and bytes of stored vectors.
        """
        check_is_fitted(self)
        embedders = dict(self.pipeline_["embed"].embedders_)
        layers = {
            name: embedder.layer_weights_
            for name, embedder in embedders.items()
            if hasattr(embedder, "layer_weights_")
        }
        stored = {
            name: int(sum(model.store_.info()["n_bytes"] for model in language_models(embedder)))
            for name, embedder in embedders.items()
            if isinstance(embedder, LLMLayerEmbedder)
        }
        weights = self.model_weights_
        left_out = [name for name in self._models if name not in embedders]
        scoring = self.scoring if isinstance(self.scoring, str) else "score"
        last = self.pipeline_[-1]
        lines = [
            f"{type(self).__name__} fitted on {self.n_rows_} rows",
            f"pipeline: {' -> '.join(name for name, _ in self.pipeline_.steps)}",
            *head_lines(last),
            "weights of models and layers:",
            *weight_lines({name: weights[name] for name in embedders}, layers),
            f"left out: {', '.join(left_out) or 'none'}",
            *score_lines(scoring, self.scores_, self.baseline_scores_, self.baseline_name_),
            *cost_lines(self.seconds_, stored),
        ]
        return "\n".join(lines)

    # --- predicting ----------------------------------------------------------------------------

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Predict the rows of `X` with `pipeline_`.

        Parameters
        ----------
        X : sequence of str of shape (n_texts,), or what the models take
            Rows, as in `fit`.

        Returns
        -------
        ndarray of shape (n_texts,)
            Classes or numbers.
        """
        predicted: NDArray[Any] = self._call("predict", X)
        return predicted

    def _call(self, method: str, X: Any) -> Any:
        check_is_fitted(self)
        with config_context(transform_output="default"):
            return getattr(self.pipeline_, method)(splittable(X))

    @property
    def n_features_in_(self) -> int:
        """Number of input columns, where there is such a thing (texts have none)."""
        n: int = self._fitted_union().n_features_in_
        return n

    @property
    def feature_names_in_(self) -> NDArray[np.object_]:
        """Names of input columns, where there is such a thing (texts have none)."""
        names: NDArray[np.object_] = self._fitted_union().feature_names_in_
        return names

    def _fitted_union(self) -> EmbedderUnion:
        if not hasattr(self, "pipeline_"):
            raise AttributeError(f"This {type(self).__name__} is not fitted.")
        union: EmbedderUnion = self.pipeline_["embed"]
        return union

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "seconds_")  # set last

    def _sk_visual_block_(self) -> Any:
        """Return what scikit-learn's diagram shows inside: once fitted, the pipeline."""
        inside = [getattr(self, "pipeline_", None) or self.models]
        parts = [part for part in inside if hasattr(part, "get_params")]
        if not parts:
            return _VisualBlock("single", self, names=type(self).__name__, name_details=str(self))
        return _VisualBlock("parallel", parts, names=["pipeline_"], dash_wrapped=False)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        models = self._listed()
        given = [m[1] if isinstance(m, list | tuple) and len(m) == 2 else m for m in models]
        if all(map(takes_texts, given)):
            tags.input_tags.string = True
            tags.input_tags.two_d_array = False
            tags.input_tags.one_d_array = True
        return tags
