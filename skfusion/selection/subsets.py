"""`ModelSubsetSearchCV`: which models to fuse, and what each of them is worth."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from copy import deepcopy
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import _fit_context, clone, is_classifier, is_regressor
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.metrics import get_scorer_names
from sklearn.model_selection import check_cv
from sklearn.model_selection._search import BaseSearchCV
from sklearn.model_selection._validation import _warn_or_raise_about_fit_failures
from sklearn.utils import check_random_state, get_tags, indexable
from sklearn.utils._param_validation import HasMethods, Interval, StrOptions
from sklearn.utils.validation import _check_method_params, _num_samples

from ..inspection.stability import pareto_front
from .subset_heads import Trials, score_task
from .subset_inputs import fit_subset, model_names, params_for, split_estimator
from .subset_parts import Split, Subset, Task, make_parts
from .subset_report import (
    Cost,
    cheapest_within_one_error,
    model_shares,
    size_report,
    subset_costs,
)
from .subset_strategies import STRATEGIES, Plan, make_plan


class ModelSubsetSearchCV(BaseSearchCV):
    """Choose which models to fuse, by cross-validation.

    Subsets of the models are tried on the same folds. The cheapest that is within one standard
    error of the best is chosen, and the estimator is fitted again with these models only; the
    others are not run any more.

    A model is an embedder of the `EmbedderUnion` with which a pipeline begins, with all of its
    layers and poolings; in `EmbeddingBlocks`, or a data frame with columns ``block__feature``,
    each block is a model; an input without blocks is one model. Embedders run once over all
    texts, not once a subset; those that may learn something (`TfidfVectorizer`,
    ``layer="auto"``) are fitted on each fold's training rows. What comes after the union is
    fitted for each subset and fold.

    Parameters
    ----------
    estimator : estimator
        A pipeline that begins with an `EmbedderUnion`, or a classifier or regressor that takes
        `EmbeddingBlocks` (a pipeline of `FusionTransformer` and a classifier,
        `FusionMLPClassifier`, ...). Where one network is all that comes after the embedding, the
        networks of all folds are trained together.
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
    cost : mapping of str to number or ModelCost, callable or None, default=None
        What a subset costs: the sum over its models, for example of the seconds that
        `skfusion.inspection.cost.measure_costs` has measured, or what a callable gives for the
        tuple of their names. None counts the models.
    scoring : str, callable or None, default=None
        As for `GridSearchCV`, of one metric.
    cv : int, cross-validation generator, iterable or None, default=None
        As for `GridSearchCV`; split once, so that all subsets see the same folds.
    n_jobs : int or None, default=None
        How many fits run at the same time, through joblib. Embedders run in the number of
        processes that their union says.
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
        As of `GridSearchCV`, one row a subset, with its models in "param_blocks", how many they
        are in "n_blocks", and its "cost"; where `cost` was measured, "seconds_per_text",
        "bytes_per_text" (both added up) and "peak_bytes" (the highest) too.
    size_report_ : dict of str to ndarray of shape (n_sizes,)
        A line for each "size": how many subsets were tried ("n_subsets"); "min", "median" and
        "max" of their mean scores; "expected_min", the minimum to be expected of as many of them
        as there are single models (or fewer, where they are fewer), and "expected_min_single",
        that of as many single models; "cvar", the mean of the worst quarter;
        "over_best_member" and "over_mean_member", by how much they are better than their best
        model alone, or than the mean of their models, on average; "harm_best" and "harm_mean",
        the share of them that are worse than that.
    shapley_ : dict of str to float
        What each model is worth: its share of the score of all models, over that of a dummy that
        sees no model. Exact where all subsets were tried, estimated by "shapley"; not there
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
    is still encoded once a model, since embedders find their vectors in the store (each needs
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
    >>> from skfusion import EmbeddingBlocks
    >>> from skfusion.selection.subsets import ModelSubsetSearchCV
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
        "strategy": [StrOptions(set(STRATEGIES))],
        "cost": [Mapping, callable, None],
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
        cost: Cost = None,
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
            have one entry a row are split with the rows.

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
        if y is None:
            raise ValueError(
                f"This {type(self).__name__} estimator requires y to be passed, but the target y "
                f"is None."
            )
        plan = self._make_plan(X)
        scorer, _ = self._get_scorers()
        X, y = indexable(X, y)
        params = _check_method_params(X, params=params)
        routed = self._get_routed_params_for_fit(params)
        splits = self._make_splits(X, y, routed.splitter.split)
        trials = self._make_trials(X, y, splits, scorer, routed)
        trials.evaluate([(model,) for model in plan.models])
        orders = STRATEGIES[self.strategy](plan, trials.evaluate)
        self.baseline_score_ = self._score_dummy(trials)
        self._report(trials, plan.models, orders)
        self._choose(trials, plan.sizes)
        if self.refit:
            start = time.time()
            self.best_estimator_ = fit_subset(
                self.estimator, X, y, self.best_subset_, routed.estimator.fit
            )
            self.refit_time_ = time.time() - start
            if hasattr(self.best_estimator_, "feature_names_in_"):
                self.feature_names_in_ = self.best_estimator_.feature_names_in_
        self.scorer_ = scorer
        self.multimetric_ = False
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        inner = get_tags(self.estimator)
        tags.input_tags = deepcopy(inner.input_tags)
        tags.target_tags = deepcopy(inner.target_tags)
        return tags

    def _make_splits(self, X: Any, y: Any, params: dict[str, Any]) -> list[Split]:
        cv = check_cv(self.cv, y, classifier=is_classifier(self.estimator))
        splits = list(cv.split(X, y, **params))
        self.n_splits_ = len(splits)
        return splits

    def _make_plan(self, X: Any) -> Plan:
        """Find the models and check all that can be wrong before any of them runs."""
        if not (is_classifier(self.estimator) or is_regressor(self.estimator)):
            raise ValueError(
                f"The estimator {self.estimator!r} is neither a classifier nor a regressor. Use "
                f"one, or a pipeline that ends in one."
            )
        models = model_names(split_estimator(self.estimator)[0], X)
        subset_costs(self.cost, models, [models])
        rng = check_random_state(self.random_state)
        return make_plan(self.strategy, models, self.sizes, self.n_permutations, rng)

    def _make_trials(
        self, X: Any, y: Any, splits: Sequence[Split], scorer: Any, routed: Any
    ) -> Trials:
        embed, head = split_estimator(self.estimator)
        return Trials(
            head=clone(head),
            parts=make_parts(embed, X, y, splits, routed.estimator.fit),
            y=y,
            splits=splits,
            fit_params=params_for(head, routed.estimator.fit),
            score_params=routed.scorer.score,
            scorer=scorer,
            error_score=self.error_score,
            verbose=self.verbose,
            n_jobs=self.n_jobs,
        )

    def _score_dummy(self, trials: Trials) -> float:
        """Score what can be known without any model, on the same folds."""
        dummy = DummyClassifier() if is_classifier(self.estimator) else DummyRegressor()
        nothing = np.zeros((_num_samples(trials.y), 1))
        task = Task(nothing, trials.y, trials.splits, {}, trials.score_params)
        results = score_task(
            dummy, task, scorer=trials.scorer, error_score=self.error_score, verbose=0
        )
        return float(np.mean([result["test_scores"] for result in results]))

    def _report(self, trials: Trials, models: Subset, orders: Sequence[Subset]) -> None:
        subsets = list(trials.results)
        results = [result for subset in subsets for result in trials.results[subset]]
        _warn_or_raise_about_fit_failures(results, self.error_score)
        costs = subset_costs(self.cost, models, subsets)
        self.cv_results_ = self._format_results(
            [{"blocks": subset} for subset in subsets],
            self.n_splits_,
            results,
            {"n_blocks": [len(subset) for subset in subsets], **costs},
        )
        means = self.cv_results_["mean_test_score"]
        self.costs_ = costs["cost"]
        self.pareto_ = pareto_front(means, self.costs_)
        self.size_report_ = size_report(subsets, means)
        self.__dict__.pop("shapley_", None)
        shares = model_shares(subsets, means, self.baseline_score_, orders)
        if shares is not None:
            self.shapley_ = shares

    def _choose(self, trials: Trials, sizes: Sequence[int]) -> None:
        rows = np.flatnonzero(np.isin(self.cv_results_["n_blocks"], sizes))
        subsets = list(trials.results)
        scores = np.array([trials.scores(subsets[row]) for row in rows])
        self.best_index_ = int(rows[cheapest_within_one_error(scores, self.costs_[rows])])
        self.best_subset_ = subsets[self.best_index_]
        self.best_params_ = self.cv_results_["params"][self.best_index_]
        self.best_score_ = self.cv_results_["mean_test_score"][self.best_index_]
