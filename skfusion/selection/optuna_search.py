"""`OptunaSearchCV`: Optuna's samplers, pruners and storages behind scikit-learn's interface."""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np
from joblib import effective_n_jobs
from sklearn.base import _fit_context, clone, is_classifier, is_regressor
from sklearn.metrics._scorer import _MultimetricScorer
from sklearn.model_selection import check_cv
from sklearn.model_selection._search import BaseSearchCV
from sklearn.model_selection._validation import (
    _insert_error_scores,
    _warn_or_raise_about_fit_failures,
)
from sklearn.utils import check_random_state, indexable
from sklearn.utils._param_validation import HasMethods, Interval
from sklearn.utils.validation import _check_method_params
from tqdm.auto import tqdm

from .._targets import read_array
from ..embed.texts import splittable
from ..inspection.candidates import split_scores
from .choice import cheapest_within_one_error
from .optuna_space import Space, read_space
from .optuna_study import fingerprint, open_storage, open_study
from .optuna_trials import Callback, Evaluation, TrialRunner, measured_trials, read_results

if TYPE_CHECKING:
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler
    from optuna.storages import BaseStorage
    from optuna.study import Study

Cost = Callable[[Any, Any, Any], float]


class OptunaSearchCV(BaseSearchCV):
    """Search hyperparameters with Optuna, as `RandomizedSearchCV` does at random.

    Parameters, methods and ``cv_results_`` are those of scikit-learn's searches, and so is the
    behaviour in nested cross-validation, pipelines and metadata routing.

    Parameters
    ----------
    estimator : estimator
        What is searched.
    param_distributions : dict of str to distribution, or callable
        Names of parameters and what they are drawn from: a distribution of Optuna, a frozen one
        of scipy.stats, or a list of values of any kind. Uniform distributions of scipy become
        Optuna's; of others the quantile is drawn.

        A callable takes an Optuna trial, suggests, and returns the dict of parameters, so that
        one parameter can depend on another; see `fusion_space`. It must return the same for the
        same suggestions.
    n_trials : int or None, default=50
        How many trials the study has in the end, pruned and failed ones counted. One that draws
        what was drawn before takes its scores and needs no fit. None goes on until
        `timeout`.
    timeout : float or None, default=None
        Seconds after which no more trials begin. At least one does.
    sampler : optuna sampler or None, default=None
        What draws the parameters; it is copied. None is Optuna's ``TPESampler``, seeded by
        `random_state`.
    pruner : optuna pruner or None, default=None
        Gets the mean score so far after each fold, and may end the trial; it is copied. None
        measures all folds of all trials.
    storage : str, path-like, optuna storage or None, default=None
        Where trials are kept: the path of a Journal file (``.log`` or ``.journal``), the URL of a
        database, or a storage, which `clone` does not copy. None is memory. Several processes
        may work on one study; it may then get some trials more than `n_trials`. The last line of
        a Journal file, where a killed process wrote half of it, is left out with a warning.
    study_name : str or None, default=None
        With a `storage`, `fit` goes on with the study of this name if it is there, and raises if
        it was made with another space, estimator, other data, folds or scorers. (The estimator's
        `memory`, `n_jobs` and `verbose` may be others; functions count by their name, defaults
        and what they enclose, so give one a new name when its code changes.) "{data}" in the
        name stands for a hash of the data, so that each fold of a nested cross-validation has,
        and goes on with, a study of its own. None makes a new study in each `fit`.
    scoring : str, callable, list, tuple, dict or None, default=None
        As in `GridSearchCV`. With several metrics, the one that `refit` names is maximised, or
        the first where it names none.
    refit : bool, str or callable, default=True
        As in `GridSearchCV`. With a `cost`, the cheapest candidate within one standard error of
        the best is chosen: whose mean difference to it, fold by fold, is at most the standard
        error of that mean.
    cv : int, cross-validation generator, iterable or None, default=None
        As in `GridSearchCV`. The folds are drawn once and are the same for all trials.
    n_jobs : int or None, default=None
        How many trials are drawn at once and measured at the same time, through joblib.
    error_score : "raise" or numeric, default=np.nan
        The score of a fold whose fit fails. A trial without a finite score fails in the study,
        whose sampler then learns nothing from it.
    return_train_score : bool, default=False
        Whether ``cv_results_`` has training scores.
    random_state : int, RandomState instance or None, default=None
        Seeds the default sampler. With ``n_jobs=1`` equal seeds give equal trials.
    callbacks : sequence of callable or None, default=None
        Optuna's: called with the study and each trial that ended. They may call
        ``study.stop()``. Those of scikit-learn's `set_callbacks` are not called.
    cost : callable or None, default=None
        Takes a fitted estimator and the held-out X and y, and returns a number that is minimised
        beside the score, on average over the folds. The study has two objectives then, and
        ``study_.best_trials`` is the Pareto front. Not possible together with `pruner`.
    verbose : int, default=0
        Above 0 a progress bar counts trials; above 1 each fit is printed, as in `GridSearchCV`.

    Attributes
    ----------
    study_ : optuna.study.Study
        The study, which reads its `storage` each time. Its parameters are as drawn: the number
        of a value that no database can hold.
    n_trials_ : int
        Number of its trials that were not interrupted.
    cv_results_ : dict of str to ndarray
        As in `GridSearchCV`, without pruned trials. ``trial_number`` says which trial it was,
        and ``mean_cost`` what it costs.
    best_estimator_, best_params_, best_score_, best_index_
        The chosen candidate, as in `GridSearchCV`.
    scorer_, multimetric_, n_splits_, refit_time_
        As in `GridSearchCV`.
    classes_, n_features_in_, feature_names_in_
        Those of ``best_estimator_``.

    Raises
    ------
    ImportError
        In `fit`, if Optuna is not installed: ``pip install skfusion[optuna]``.
    ValueError
        In `fit`, if a kept study is of another search, no trial was measured on all folds, or
        all fits failed.

    Warns
    -----
    FitFailedWarning
        If fits failed.

    See Also
    --------
    fusion_space : A conditional space over layers, poolings and operators.

    References
    ----------
    Akiba et al., "Optuna: A Next-generation Hyperparameter Optimization Framework", KDD 2019.

    Examples
    --------
    >>> from scipy.stats import loguniform
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> from skfusion import OptunaSearchCV
    >>> X, y = load_iris(return_X_y=True)
    >>> search = OptunaSearchCV(
    ...     LogisticRegression(max_iter=1000), {"C": loguniform(1e-3, 1e3)}, n_trials=5,
    ...     random_state=0,
    ... )
    >>> search.fit(X, y).best_score_ > 0.95
    np.True_
    >>> len(search.study_.trials)
    5
    """

    _parameter_constraints: dict[str, Any] = {
        **{k: v for k, v in BaseSearchCV._parameter_constraints.items() if k != "pre_dispatch"},
        "param_distributions": [Mapping, callable],
        "n_trials": [Interval(Integral, 1, None, closed="left"), None],
        "timeout": [Interval(Real, 0, None, closed="neither"), None],
        "sampler": [HasMethods(["sample_independent", "sample_relative"]), None],
        "pruner": [HasMethods(["prune"]), None],
        "storage": [str, os.PathLike, HasMethods(["create_new_study"]), None],
        "study_name": [str, None],
        "random_state": ["random_state"],
        "callbacks": [list, tuple, None],
        "cost": [callable, None],
    }

    def __init__(
        self,
        estimator: Any,
        param_distributions: Mapping[str, Any] | Callable[[Any], dict[str, Any]],
        *,
        n_trials: int | None = 50,
        timeout: float | None = None,
        sampler: BaseSampler | None = None,
        pruner: BasePruner | None = None,
        storage: str | os.PathLike[str] | BaseStorage | None = None,
        study_name: str | None = None,
        scoring: Any = None,
        refit: bool | str | Callable[[dict[str, Any]], int] = True,
        cv: Any = None,
        n_jobs: int | None = None,
        error_score: float | str = np.nan,
        return_train_score: bool = False,
        random_state: int | np.random.RandomState | None = None,
        callbacks: Sequence[Callback] | None = None,
        cost: Cost | None = None,
        verbose: int = 0,
    ) -> None:
        self.estimator = estimator
        self.param_distributions = param_distributions
        self.n_trials = n_trials
        self.timeout = timeout
        self.sampler = sampler
        self.pruner = pruner
        self.storage = storage
        self.study_name = study_name
        self.scoring = scoring
        self.refit = refit
        self.cv = cv
        self.n_jobs = n_jobs
        self.error_score = error_score
        self.return_train_score = return_train_score
        self.random_state = random_state
        self.callbacks = callbacks
        self.cost = cost
        self.verbose = verbose

    @_fit_context(
        prefer_skip_nested_validation=False  # the estimator is not validated yet
    )
    def fit(self, X: Any, y: Any = None, **params: Any) -> OptunaSearchCV:
        """Run trials and refit the best candidate on all rows.

        Parameters
        ----------
        X : array-like of shape (n_samples, ...)
            Whatever the estimator takes: texts, blocks or an array.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs), default=None
            Targets.
        **params : dict
            Metadata for the estimator, the scorer and the splitter, as in `GridSearchCV`:
            ``groups``, ``sample_weight``, and all that is routed.

        Returns
        -------
        OptunaSearchCV
            Itself.

        Raises
        ------
        ImportError, ValueError
            See the class.
        """
        try:
            import optuna  # noqa: F401 - what is imported where it is used
        except ImportError as error:
            raise ImportError(
                "OptunaSearchCV needs Optuna, which is not installed. Run: "
                "pip install skfusion[optuna]"
            ) from error
        self._check_together()
        scorers, _ = self._get_scorers()
        X, y = indexable(splittable(X), splittable(y))
        if y is not None and (is_classifier(self.estimator) or is_regressor(self.estimator)):
            read_array(y)
        params = _check_method_params(X, params=params)
        routed = self._get_routed_params_for_fit(params)
        splitter = check_cv(self.cv, y, classifier=is_classifier(self.estimator))
        splits = list(splitter.split(X, y, **routed.splitter.split))
        space = read_space(self.param_distributions)
        evaluation = self._evaluation(X, y, splits, scorers, routed)
        self.study_ = self._open_study(space, evaluation, params)
        self._run_trials(space, evaluation)
        self.n_trials_ = len(measured_trials(self.study_))
        self.n_splits_ = len(splits)
        self.scorer_ = scorers._scorers if isinstance(scorers, _MultimetricScorer) else scorers
        self._collect(space)
        self._choose()
        if self.refit:
            self._refit(X, y, routed.estimator.fit)
        return self

    def _check_together(self) -> None:
        if self.n_trials is None and self.timeout is None:
            raise ValueError(
                "n_trials=None and timeout=None: the search would never end. Set one of them."
            )
        if self.cost is not None and self.pruner is not None:
            raise ValueError(
                f"pruner={self.pruner!r} cannot compare trials of two objectives, and cost is "
                f"set. Use pruner=None, or no cost."
            )

    def _evaluation(
        self, X: Any, y: Any, splits: list[tuple[Any, Any]], scorers: Any, routed: Any
    ) -> Evaluation:
        options = {
            "scorer": scorers,
            "fit_params": routed.estimator.fit,
            "score_params": routed.scorer.score,
            "return_train_score": self.return_train_score,
            "return_times": True,
            "error_score": self.error_score,
            "verbose": self.verbose,
        }
        metric = self.refit if isinstance(self.refit, str) else None
        return Evaluation(clone(self.estimator), X, y, splits, options, metric, self.cost)

    def _open_study(
        self, space: Space, evaluation: Evaluation, params: Mapping[str, Any]
    ) -> Study:
        identity = {}
        if self.storage is not None:
            scoring = {
                "scoring": self.scoring,
                "metric": evaluation.metric,
                "cost": self.cost,
                "train": self.return_train_score,
            }
            identity = fingerprint(
                {
                    "space": space.identity,
                    "estimator": evaluation.estimator,
                    "data": {"X": evaluation.X, "y": evaluation.y, **params},
                    "cv": evaluation.splits,
                    "scoring": scoring,
                }
            )
        return open_study(
            open_storage(self.storage, n_jobs=effective_n_jobs(self.n_jobs)),
            self.study_name,
            identity,
            directions=["maximize"] if self.cost is None else ["maximize", "minimize"],
            sampler=copy.deepcopy(self.sampler),
            pruner=copy.deepcopy(self.pruner),
        )

    def _run_trials(self, space: Space, evaluation: Evaluation) -> None:
        seed = None
        if self.random_state is not None:
            seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        runner = TrialRunner(
            self.study_,
            space,
            evaluation,
            default_sampler=self.sampler is None,
            seed=seed,
            prune=self.pruner is not None,
            callbacks=self.callbacks or (),
        )
        with tqdm(total=self.n_trials, disable=not self.verbose, unit="trial") as progress:
            runner.run(
                n_trials=self.n_trials,
                timeout=self.timeout,
                n_jobs=self.n_jobs,
                progress=progress,
            )

    def _collect(self, space: Space) -> None:
        """Make ``cv_results_`` of all trials of the study, whichever process measured them."""
        trials, folds, columns = read_results(self.study_, self.n_splits_)
        _warn_or_raise_about_fit_failures(folds, self.error_score)
        if callable(self.scoring):
            _insert_error_scores(folds, self.error_score)
        params = [space.decode(trial) for trial in trials]
        self.multimetric_ = isinstance(folds[0]["test_scores"], dict)
        if callable(self.scoring) and self.multimetric_:
            self._check_refit_for_multimetric(folds[0]["test_scores"])
        self.cv_results_ = self._format_results(params, self.n_splits_, folds, columns)

    def _choose(self) -> None:
        if self.multimetric_ and not self.refit:
            return
        metric: Any = self.refit if self.multimetric_ else "score"
        choose = self.refit
        if self.cost is not None and not callable(self.refit):
            scores = split_scores(self.cv_results_, self.n_splits_, metric)
            if np.isfinite(scores).all(axis=1).any():

                def choose(results: dict[str, Any]) -> int:
                    return cheapest_within_one_error(scores, results["mean_cost"])

        self.best_index_ = self._select_best_index(choose, metric, self.cv_results_)
        if not callable(self.refit):
            self.best_score_ = self.cv_results_[f"mean_test_{metric}"][self.best_index_]
        self.best_params_ = self.cv_results_["params"][self.best_index_]

    def _refit(self, X: Any, y: Any, fit_params: Mapping[str, Any]) -> None:
        # The parameters may be estimators, which must not be fitted themselves.
        params = clone(self.best_params_, safe=False)
        self.best_estimator_ = clone(self.estimator).set_params(**params)
        start = time.time()
        targets = () if y is None else (y,)
        self.best_estimator_.fit(X, *targets, **fit_params)
        self.refit_time_ = time.time() - start
        if hasattr(self.best_estimator_, "feature_names_in_"):
            self.feature_names_in_ = self.best_estimator_.feature_names_in_

    def __sklearn_is_fitted__(self) -> bool:
        """Return False for a search which was interrupted and has its study only."""
        return hasattr(self, "cv_results_")

    def __sklearn_clone__(self) -> OptunaSearchCV:
        """Clone all but the storage: a copy of it would not see the trials of the others."""
        bare = copy.copy(self)
        bare.storage = None
        twin: OptunaSearchCV = super(OptunaSearchCV, bare).__sklearn_clone__()
        twin.storage = self.storage
        return twin
