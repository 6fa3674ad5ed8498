"""`ModelSubsetSearchCV`: which models to fuse, and what each of them is worth."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import combinations
from math import comb
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn import get_config
from sklearn.base import (
    BaseEstimator,
    TransformerMixin,
    _fit_context,
    clone,
    is_classifier,
    is_regressor,
)
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.exceptions import FitFailedWarning
from sklearn.metrics import get_scorer_names
from sklearn.model_selection import check_cv
from sklearn.model_selection._search import BaseSearchCV
from sklearn.model_selection._validation import _fit_and_score
from sklearn.pipeline import Pipeline
from sklearn.utils import check_random_state, get_tags, indexable
from sklearn.utils._optional_dependencies import check_pandas_support
from sklearn.utils._param_validation import HasMethods, Interval, StrOptions
from sklearn.utils.validation import (
    _check_method_params,
    _num_samples,
    check_is_fitted,
    validate_data,
)

from .._blocks import EmbeddingBlocks
from .._boundaries import find_boundaries, frame_columns
from .._targets import read_array, require_y
from ..embed.texts import splittable
from ..embed.union import EmbedderUnion, is_kept
from ..inspection.candidates import split_scores
from ..inspection.cost import language_models
from ..inspection.stability import pareto_front
from .choice import cheapest_within_one_error
from .subset_report import Subset, SubsetCost, model_values, size_report, subset_costs

if TYPE_CHECKING:
    import pandas as pd

#: The subsets of 12 models.
_MOST_SUBSETS = 4095


class ModelSubsetSearchCV(BaseSearchCV):
    """Choose which models to fuse, by cross-validation.

    Subsets of the models are tried on the same folds. The cheapest that is within one standard
    error of the best, in pairs of folds, is chosen, and the estimator is fitted again with these
    models only; the others are not run any more.

    A model is an embedder of the `EmbedderUnion` with which a pipeline begins, with all of its
    layers and poolings; in `EmbeddingBlocks`, or a data frame with columns ``block__feature``,
    each block is a model; an input without blocks is one model. Each text passes once through
    each language model: its vectors come from the store afterwards. All else is fitted for each
    subset and fold, on the fold's training rows.

    Parameters
    ----------
    estimator : estimator
        A pipeline that begins with an `EmbedderUnion`, or a classifier or regressor that takes
        `EmbeddingBlocks` (a pipeline of `FusionTransformer` and a classifier,
        `FusionMLPClassifier`, ...).
    sizes : sequence of int or None, default=None
        How many models the chosen subset may have; None allows any number. Single models are
        always tried, since reports compare with them.
    strategy : {"all", "greedy", "shapley"}, default="all"
        Which subsets are tried.

        - "all": every one of these sizes, 4095 at the most (12 models).
        - "greedy": the single models, then the best of them with each other one, and so on up to
          the largest size.
        - "shapley": all beginnings of `n_permutations` random orders of the models. It estimates
          what each of many models is worth.
    cost : pandas.DataFrame, mapping of str to number, callable or None, default=None
        What a subset costs: the sum over its models of the seconds that `skfusion.measure_costs`
        has measured (its data frame), or of the numbers of a mapping, or what a callable returns
        for the tuple of their names. None counts the models.
    scoring : str, callable or None, default=None
        As for `GridSearchCV`, of one metric.
    cv : int, cross-validation generator, iterable or None, default=None
        As for `GridSearchCV`; split once, so that all subsets see the same folds.
    n_jobs : int or None, default=None
        How many fits run at the same time, through joblib. The pass through the language models
        before them runs in the number of processes that the union says.
    refit : bool, default=True
        Whether to fit the chosen subset on all rows.
    n_permutations : int, default=20
        How many orders "shapley" draws.
    random_state : int, RandomState instance or None, default=None
        Draws them.
    error_score : "raise" or number, default=nan
        As for `GridSearchCV`. Subsets with a score that is not finite are not chosen.
    verbose : int, default=0
        As for `GridSearchCV`.

    Attributes
    ----------
    cv_results_ : dict of str to ndarray
        As of `GridSearchCV`, one row per subset, with its models in "param_blocks", their number
        in "n_blocks", and its "cost"; where `cost` was measured, "seconds_per_text",
        "bytes_per_text" (both added up) and "peak_bytes" (the highest) too.
    size_report_ : pandas.DataFrame
        One row per "size": how many subsets were tried ("n_subsets"); "min", "median" and "max"
        of their mean scores; "expected_min", the minimum to be expected of as many of them as
        there are single models (or fewer, where they are fewer), and "expected_min_single", that
        of as many single models; "cvar", the mean of the worst quarter; "over_best_member" and
        "over_mean_member", by how much they are better than their best model alone, or than the
        mean of their models, on average; "harm_best" and "harm_mean", the fraction of them that
        are worse than that. Absent where pandas is not installed.
    shapley_ : dict of str to float
        The models' Shapley values: they add up to the score of all models minus that of a dummy
        that sees none. Exact where all subsets were tried, estimated by "shapley"; absent
        otherwise.
    costs_ : ndarray of float64, shape (n_subsets,)
        The column "cost".
    pareto_ : ndarray of int, shape (n_front,)
        Rows of `cv_results_`, from the cheapest to the best, than which no other is both as
        cheap and as good.
    best_subset_ : tuple of str
        The chosen models.
    best_index_, best_score_, best_params_ : int, float, dict
        Its row, mean score and entry in ``cv_results_["params"]``. The score is that of one among
        many, and a little too good: cross-validate the search for an honest one.
    best_estimator_ : estimator
        Fitted on all rows; for blocks a pipeline that takes those it needs from its input.
    baseline_score_ : float
        The mean score of the dummy.
    scorer_ : callable
        The scorer.
    n_splits_ : int
        Number of folds.
    refit_time_ : float
        Seconds of the last fit.
    classes_ : ndarray of shape (n_classes,)
        Of a classifier.
    n_features_in_ : int
        Number of input columns, where there is such a thing (texts have none).

    Notes
    -----
    The usual alternative is late fusion: classifiers of single models vote, or another one is
    stacked on them. That is scikit-learn's own, over pipelines with one embedder each. Each text
    is still encoded once per model, since embedders find their vectors in the store (each needs
    the `memory` that the union has)::

        one = {n: make_pipeline(e, LogisticRegression()) for n, e in union.embedders}
        StackingClassifier(list(one.items())), VotingClassifier(list(one.items()), voting="soft")

    References
    ----------
    Gwak and Jung, "Beyond Single Representations: Multi-Model Embedding Fusion for Stable Text
    Classification", ACL 2026.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.linear_model import LogisticRegression
    >>> from skfusion import EmbeddingBlocks, ModelSubsetSearchCV
    >>> rng = np.random.default_rng(0)
    >>> y = np.repeat([0, 1], 20)
    >>> noise, signal = rng.normal(size=(40, 3)), rng.normal(size=(40, 3)) + 4 * y[:, None]
    >>> search = ModelSubsetSearchCV(LogisticRegression())
    >>> X = EmbeddingBlocks({"noise": noise, "signal": signal})
    >>> search.fit(X, y).best_subset_
    ('signal',)
    >>> {model: round(value, 1) for model, value in search.shapley_.items()}
    {'noise': 0.0, 'signal': 0.5}
    >>> search.predict(X.select(["signal"]))[:3]
    array([0, 0, 0])
    """

    _parameter_constraints: dict[str, Any] = {
        "estimator": [HasMethods(["fit"])],
        "sizes": ["array-like", None],
        "strategy": [StrOptions({"all", "greedy", "shapley"})],
        "cost": [Mapping, HasMethods("to_dict"), callable, None],
        "scoring": [StrOptions(set(get_scorer_names())), callable, None],
        "cv": ["cv_object"],
        "n_jobs": [Integral, None],
        "refit": ["boolean"],
        "n_permutations": [Interval(Integral, 1, None, closed="left")],
        "random_state": ["random_state"],
        "error_score": [StrOptions({"raise"}), Real],
        "verbose": ["verbose"],
    }

    def __init__(
        self,
        estimator: Any,
        *,
        sizes: Sequence[int] | None = None,
        strategy: str = "all",
        cost: SubsetCost = None,
        scoring: Any = None,
        cv: Any = None,
        n_jobs: int | None = None,
        refit: bool = True,
        n_permutations: int = 20,
        random_state: int | np.random.RandomState | None = None,
        error_score: float | str = np.nan,
        verbose: int = 0,
    ) -> None:
        super().__init__(
            estimator,
            scoring=scoring,
            n_jobs=n_jobs,
            refit=refit,
            cv=cv,
            verbose=verbose,
            error_score=error_score,
            return_train_score=False,
        )
        self.sizes = sizes
        self.strategy = strategy
        self.cost = cost
        self.n_permutations = n_permutations
        self.random_state = random_state

    @_fit_context(prefer_skip_nested_validation=False)
    def fit(self, X: Any, y: ArrayLike | None = None, **params: Any) -> ModelSubsetSearchCV:
        """Try the subsets, choose one and fit it.

        Parameters
        ----------
        X : sequence of str, EmbeddingBlocks, data frame or array-like
            Texts for a pipeline that begins with an `EmbedderUnion`, blocks of columns otherwise.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Targets.
        **params : dict
            For the estimator, the scorer and the splitter, as for `GridSearchCV`. Those that
            have one entry per row are split with the rows.

        Returns
        -------
        ModelSubsetSearchCV
            Itself.

        Raises
        ------
        ValueError
            If y is missing, the estimator is neither classifier nor regressor, `sizes` or `cost`
            do not fit the models, there are too many subsets, the metric is not one number, or
            no subset has finite scores.
        """
        require_y(y, self)
        if not (is_classifier(self.estimator) or is_regressor(self.estimator)):
            raise ValueError(
                f"The estimator {self.estimator!r} is neither a classifier nor a regressor. Use "
                f"one, or a pipeline that ends in one."
            )
        # All that can be wrong with y and the models is said before any of them runs.
        X, y = splittable(X), splittable(y)
        read_array(y)
        models = _read_models(self.estimator, X)
        subset_costs(self.cost, models.names, [models.names])
        sizes = self._read_sizes(models.names)
        orders = self._draw_orders(models.names)
        X, y = indexable(X, y)
        params = _check_method_params(X, params=params)
        routed = self._get_routed_params_for_fit(params)
        cv = check_cv(self.cv, y, classifier=is_classifier(self.estimator))
        splits = list(cv.split(X, y, **routed.splitter.split))
        models.precompute(X, y)
        search = _SubsetRun(
            models.estimator,
            models=models,
            sizes=sizes,
            strategy=self.strategy,
            orders=orders,
            cost=self.cost,
            routed=models.route(routed),
            scoring=self.scoring,
            n_jobs=self.n_jobs,
            refit=self.refit,
            cv=splits,
            verbose=self.verbose,
            error_score=self.error_score,
            return_train_score=False,
        ).fit(X, y)
        for name, value in vars(search).items():
            if name.endswith("_"):
                setattr(self, name, value)
        self.baseline_score_ = self._score_dummy(y, splits, routed.scorer.score)
        self._report(search.cv_results_, search.subsets, orders)
        return self

    @property
    def size_report_(self) -> pd.DataFrame:
        """What subsets of each size reach."""
        check_is_fitted(self)
        try:
            pandas = check_pandas_support("size_report_")
        except ImportError as error:
            raise AttributeError(str(error)) from error  # scikit-learn's HTML asks for all
        return pandas.DataFrame(self._size_report)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        inner = get_tags(self.estimator)
        tags.input_tags = deepcopy(inner.input_tags)
        tags.target_tags = deepcopy(inner.target_tags)
        return tags

    def _read_sizes(self, names: Subset) -> list[int]:
        n = len(names)
        sizes = list(range(1, n + 1)) if self.sizes is None else sorted(set(self.sizes))
        if not sizes or not all(
            isinstance(size, int | np.integer) and 1 <= size <= n for size in sizes
        ):
            raise ValueError(
                f"sizes={self.sizes!r} must be numbers of models, from 1 to {n} (the models are "
                f"{', '.join(names)}), or None for all of them."
            )
        n_subsets = sum(comb(n, size) for size in sizes)
        if self.strategy == "all" and n_subsets > _MOST_SUBSETS:
            raise ValueError(
                f"strategy='all' would try {n_subsets} subsets of {n} models; the most is "
                f"{_MOST_SUBSETS}. Use strategy='greedy' or 'shapley', or fewer sizes, such as "
                f"sizes=[1, 2]."
            )
        return sizes

    def _draw_orders(self, names: Subset) -> list[Subset]:
        if self.strategy != "shapley":
            return []
        rng = check_random_state(self.random_state)
        return [
            tuple(names[i] for i in rng.permutation(len(names)))
            for _ in range(self.n_permutations)
        ]

    def _score_dummy(self, y: Any, splits: Sequence[Any], score_params: dict[str, Any]) -> float:
        """Score what can be known without any model, on the same folds."""
        dummy = DummyClassifier() if is_classifier(self.estimator) else DummyRegressor()
        results = [
            _fit_and_score(
                clone(dummy),
                np.zeros((_num_samples(y), 1)),
                y,
                scorer=self.scorer_,
                train=train,
                test=test,
                verbose=0,
                parameters=None,
                fit_params={},
                score_params=score_params,
                error_score=self.error_score,
            )
            for train, test in splits
        ]
        return float(np.mean([result["test_scores"] for result in results]))

    def _report(
        self, found: dict[str, Any], subsets: Sequence[Subset], orders: Sequence[Subset]
    ) -> None:
        """Put the subsets in place of the parameters that made them, and describe them."""
        blocks = np.ma.MaskedArray(np.empty(len(subsets), dtype=object), mask=False)
        for row, subset in enumerate(subsets):
            blocks[row] = subset
        results: dict[str, Any] = {}
        for key, column in found.items():
            if key == "params":
                results["param_blocks"] = blocks
                results["params"] = [{"blocks": subset} for subset in subsets]
            elif not key.startswith("param_"):
                results[key] = column
        self.cv_results_ = results
        self.best_subset_ = subsets[self.best_index_]
        self.best_params_ = results["params"][self.best_index_]
        means, self.costs_ = results["mean_test_score"], results["cost"]
        self.pareto_ = pareto_front(means, self.costs_)
        self._size_report = size_report(subsets, means)
        self.__dict__.pop("shapley_", None)
        values = model_values(subsets, means, self.baseline_score_, orders)
        if values is not None:
            self.shapley_ = values


class BlockSelector(TransformerMixin, BaseEstimator):
    """Keeps some blocks of its input, which may have others."""

    def __init__(self, blocks: Sequence[str]) -> None:
        self.blocks = blocks

    def fit(self, X: Any, y: Any = None) -> BlockSelector:
        """Learn the number of columns, and their names."""
        validate_data(self, X, skip_check_array=True)
        return self

    def transform(self, X: Any) -> EmbeddingBlocks:
        """Return the blocks in the order of the parameter."""
        blocks = _as_blocks(X)
        if blocks is None:
            raise ValueError(
                f"X of type {type(X).__name__} does not say where its blocks are, but the search "
                f"was fitted on blocks and chose {', '.join(self.blocks)}. Pass EmbeddingBlocks, "
                f"or a data frame with columns 'block__feature'."
            )
        return blocks.select(self.blocks)


def _as_blocks(X: Any) -> EmbeddingBlocks | None:
    """Return the blocks of an input, or None where nothing says that there are several."""
    if isinstance(X, EmbeddingBlocks):
        return X
    if not any("__" in column for column in frame_columns(X) or []):
        return None
    values = X.to_numpy()
    return EmbeddingBlocks({name: values[:, cut] for name, cut in find_boundaries(X).items()})


@dataclass(frozen=True)
class _Models:
    """The models of a search, and an estimator whose first step has or lacks each of them."""

    names: Subset
    estimator: Any
    step: str = ""  # the name of that step; "" where the input is one model
    union: EmbedderUnion | None = None  # that step, unless it selects blocks

    def parameters(self, subset: Subset) -> dict[str, Any]:
        """Return the parameters of the estimator that keep these models only."""
        if self.union is not None:
            return {f"{self.step}__{name}": "drop" for name in self.names if name not in subset}
        return {f"{self.step}__blocks": subset} if self.step else {}

    def route(self, routed: Any) -> Any:
        """Rename the parameters of `fit` where a step was put before the user's estimator."""
        if self.step and self.union is None and not get_config()["enable_metadata_routing"]:
            given = routed.estimator.fit
            routed.estimator.fit = {f"estimator__{name}": value for name, value in given.items()}
        return routed

    def precompute(self, X: Any, y: Any) -> None:
        """Pass the texts through the language models, so that every fit finds their vectors."""
        if self.union is None:
            return
        others = [name for name, embedder in self.union.embedders if not language_models(embedder)]
        if len(others) < len(self.union.embedders):
            clone(self.union).set_params(**dict.fromkeys(others, "drop")).fit_transform(X, y)


def _read_models(estimator: Any, X: Any) -> _Models:
    """Find the models of an estimator and its input."""
    if isinstance(estimator, Pipeline) and isinstance(estimator.steps[0][1], EmbedderUnion):
        step, union = estimator.steps[0]
        names = tuple(name for name, embedder in union.embedders if is_kept(embedder))
        if not names:
            raise ValueError("Every embedder of the union is dropped. Keep at least one.")
        return _Models(names, estimator, step, union)
    blocks = _as_blocks(X)
    if blocks is None:
        return _Models(("block0",), estimator)
    select = BlockSelector(blocks.names)
    pipeline = Pipeline([("select", select), ("estimator", estimator)])
    return _Models(blocks.names, pipeline, "select")


class _SubsetRun(BaseSearchCV):
    """scikit-learn's search, over subsets, with splits and metadata that are settled."""

    def __init__(
        self,
        estimator: Any,
        *,
        models: _Models,
        sizes: list[int],
        strategy: str,
        orders: list[Subset],
        cost: SubsetCost,
        routed: Any,
        **options: Any,
    ) -> None:
        super().__init__(estimator, **options)
        self.models = models
        self.sizes = sizes
        self.strategy = strategy
        self.orders = orders
        self.cost = cost
        self.routed = routed
        self.subsets: list[Subset] = []

    def _get_routed_params_for_fit(self, params: dict[str, Any]) -> Any:
        return self.routed

    def _run_search(self, evaluate_candidates: Callable[..., dict[str, Any]]) -> None:
        names = self.models.names

        def evaluate(subsets: Iterable[Iterable[str]]) -> Any:
            """Return the mean scores of new subsets, or None where none of them can be fitted."""
            ordered = (tuple(name for name in names if name in subset) for subset in subsets)
            new = list(dict.fromkeys(ordered))
            columns = {"n_blocks": np.array([len(subset) for subset in new])}
            columns |= subset_costs(self.cost, names, new)
            candidates = [self.models.parameters(subset) for subset in new]
            try:
                results = evaluate_candidates(candidates, more_results=columns)
            except ValueError as error:  # scikit-learn's, where all fits of a call fail
                if self.error_score == "raise" or not self.subsets:
                    raise
                warnings.warn(str(error), FitFailedWarning, stacklevel=2)
                return None
            self.subsets += new
            if "mean_test_score" not in results:
                metrics = [key[10:] for key in results if key.startswith("mean_test_")]
                raise ValueError(
                    f"scoring gives several metrics: {', '.join(metrics)}. Subsets are compared "
                    f"by one: give a scorer that returns a number."
                )
            return results["mean_test_score"][-len(new) :]

        singles = [(name,) for name in names]
        if self.strategy == "greedy":
            chosen: Subset = ()
            while len(chosen) < max(self.sizes):
                scores = evaluate({*chosen, name} for name in names if name not in chosen)
                if scores is None:
                    break
                best = int(np.argmax(np.nan_to_num(scores, nan=-np.inf)))
                chosen = self.subsets[best - len(scores)]
        elif self.strategy == "shapley":
            lengths = range(1, len(names) + 1)
            evaluate([*singles, *(order[:n] for n in lengths for order in self.orders)])
        else:
            evaluate([*singles, *(s for size in self.sizes for s in combinations(names, size))])

    def _select_best_index(self, refit: Any, refit_metric: str, results: dict[str, Any]) -> int:
        rows = np.flatnonzero(np.isin(results["n_blocks"], self.sizes))
        scores = split_scores(results, len(self.cv))[rows]
        return int(rows[cheapest_within_one_error(scores, results["cost"][rows])])
