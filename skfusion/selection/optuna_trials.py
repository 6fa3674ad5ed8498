"""The trials of `OptunaSearchCV`: asked for in batches, measured fold by fold, told in order."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
from joblib import effective_n_jobs
from sklearn.base import clone
from sklearn.model_selection._validation import _fit_and_score
from sklearn.utils.metaestimators import _safe_split
from sklearn.utils.parallel import Parallel, delayed

from .optuna_space import Space
from .optuna_study import stoppable

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial, Trial

#: The trial's attribute that holds the results of its folds. A trial without it was never
#: measured to its end: it is a leftover of a search that was interrupted.
FOLDS = "skfusion:folds"

#: The result of one fold: the dict of scikit-learn's `_fit_and_score`, and the cost.
Fold = dict[str, Any]
Callback = Callable[["Study", "FrozenTrial"], None]


@dataclass(frozen=True)
class Evaluation:
    """How every trial is measured."""

    estimator: Any
    X: Any
    y: Any
    splits: Sequence[tuple[Any, Any]]
    options: Mapping[str, Any]  # arguments of `_fit_and_score`, the scorer among them
    metric: str | None  # the one of several scores that is maximised; None is the first one
    cost: Callable[[Any, Any, Any], float] | None

    def job(self, params: dict[str, Any], fold: int) -> Any:
        """Return a task of joblib's that measures one fold."""
        train, test = self.splits[fold]
        return delayed(_measure)(
            clone(self.estimator),
            self.X,
            self.y,
            train=train,
            test=test,
            parameters=params,
            cost=self.cost,
            **self.options,
        )

    def objectives(self, folds: Sequence[Fold]) -> list[float]:
        """Return the mean score of some folds, and their mean cost where there is one."""
        values = [float(np.mean([self._score(fold["test_scores"]) for fold in folds]))]
        if self.cost is not None:
            values.append(float(np.mean([fold["cost"] for fold in folds])))
        return values

    def _score(self, scores: float | dict[str, float]) -> float:
        if not isinstance(scores, dict):
            return scores
        return scores[self.metric] if self.metric in scores else next(iter(scores.values()))


def _measure(
    estimator: Any, X: Any, y: Any, *, test: Any, train: Any, cost: Any, **options: Any
) -> Fold:
    """Fit and score one fold, and ask for the cost while the fitted estimator is at hand."""
    fold: Fold = _fit_and_score(
        estimator, X, y, test=test, train=train, return_estimator=cost is not None, **options
    )
    if cost is not None:
        fitted = fold.pop("estimator")
        held_out = _safe_split(fitted, X, y, test, train)
        fold["cost"] = np.nan if fold["fit_error"] else cost(fitted, *held_out)
    return {name: _to_json(value) for name, value in fold.items()}


def _to_json(value: Any) -> Any:
    """Convert numbers to those that JSON has, in which databases keep them."""
    if isinstance(value, dict):
        return {name: _to_json(number) for name, number in value.items()}
    return float(value) if isinstance(value, Real) else value


@dataclass(frozen=True)
class TrialRunner:
    """Runs trials of a study."""

    study: Study
    space: Space
    evaluation: Evaluation
    default_sampler: bool  # whether to draw each trial by a new sampler, made from the seed
    seed: int | None
    prune: bool
    callbacks: Sequence[Callback]

    def run(
        self, *, n_trials: int | None, timeout: float | None, n_jobs: int | None, progress: Any
    ) -> None:
        """Run trials until the study has `n_trials`, the time is over, or it is stopped.

        As many trials as there are workers are asked for at once. The workers share their folds
        and touch neither study nor storage.
        """
        start, size = time.monotonic(), effective_n_jobs(n_jobs)
        limit = np.inf if timeout is None else timeout
        with stoppable(self.study) as stopped, Parallel(n_jobs=n_jobs) as parallel:
            missing = self._missing(n_trials, progress)
            while missing > 0 and not stopped():
                self._run_batch(int(min(size, missing)), parallel)
                missing = self._missing(n_trials, progress)
                if time.monotonic() - start >= limit:
                    break

    def _missing(self, n_trials: int | None, progress: Any) -> float:
        """Count again each time: another process may work on the same study."""
        measured = len(measured_trials(self.study))
        progress.update(measured - progress.n)
        return np.inf if n_trials is None else n_trials - measured

    def _run_batch(self, size: int, parallel: Any) -> None:
        from optuna.trial import TrialState

        trials: list[Trial] = []
        try:
            for _ in range(size):
                trials.append(self._ask())
            for trial, folds in zip(trials, self._measure_all(trials, parallel), strict=True):
                self._tell(trial, folds)
        except BaseException:
            for trial in trials:
                self.study.tell(trial, state=TrialState.FAIL, skip_if_finished=True)
            raise

    def _ask(self) -> Trial:
        from optuna.samplers import TPESampler

        if self.default_sampler:
            seed = self.seed
            if seed is not None:
                # A search that is resumed, or runs beside another one, must not draw again what
                # was drawn with the same seed before.
                begun = len(self.study.get_trials(deepcopy=False))
                seed = int(np.random.SeedSequence([seed, begun]).generate_state(1)[0])
            self.study.sampler = TPESampler(seed=seed)
        return self.study.ask(self.space.distributions)

    def _measure_all(self, trials: list[Trial], parallel: Any) -> list[list[Fold]]:
        """Measure all folds at once, or one after another where some may be saved.

        What was drawn before is not measured again: samplers come back to good combinations,
        and where there are no continuous parameters most of what they draw is known.
        """
        params = [self.space.decode(trial) for trial in trials]
        known = {_drawn(trial): trial.user_attrs[FOLDS] for trial in measured_trials(self.study)}
        measured: list[list[Fold]] = [list(known.get(_drawn(trial), ())) for trial in trials]
        folds = range(len(self.evaluation.splits))
        going_on = [i for i in range(len(trials)) if not measured[i]]
        for together in [[fold] for fold in folds] if self.prune else [folds]:
            pairs = [(i, fold) for i in going_on for fold in together]
            results = parallel(self.evaluation.job(params[i], fold) for i, fold in pairs)
            for (i, _), result in zip(pairs, results, strict=True):
                measured[i].append(result)
            if self.prune:
                going_on = [i for i in going_on if not self._should_prune(trials[i], measured[i])]
        return measured

    def _should_prune(self, trial: Trial, folds: list[Fold]) -> bool:
        """Report the mean of the folds so far and ask the pruner."""
        (value,) = self.evaluation.objectives(folds)
        if len(folds) == len(self.evaluation.splits) or not np.isfinite(value):
            return False
        trial.report(value, step=len(folds) - 1)
        return trial.should_prune()

    def _tell(self, trial: Trial, folds: list[Fold]) -> None:
        from optuna.trial import TrialState

        trial.set_user_attr(FOLDS, folds)
        values = self.evaluation.objectives(folds)
        if len(folds) < len(self.evaluation.splits):
            told = self.study.tell(trial, state=TrialState.PRUNED)
        elif np.isnan(values).any():
            told = self.study.tell(trial, state=TrialState.FAIL)
        else:
            told = self.study.tell(trial, values)
        for callback in self.callbacks:
            callback(self.study, told)


def _drawn(trial: Trial | FrozenTrial) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(trial.params.items(), key=lambda item: item[0]))


def measured_trials(study: Study) -> list[FrozenTrial]:
    """Return the trials that were not interrupted: complete, pruned, and failed in `fit`."""
    trials = study.get_trials(deepcopy=False)
    return [trial for trial in trials if trial.state.is_finished() and FOLDS in trial.user_attrs]


def read_results(
    study: Study, n_splits: int
) -> tuple[list[FrozenTrial], list[Fold], dict[str, list[Any]]]:
    """Return the trials that were not pruned, their folds in order, and their own columns."""
    measured = measured_trials(study)
    trials = [trial for trial in measured if len(trial.user_attrs[FOLDS]) == n_splits]
    if not trials:
        raise ValueError(
            f"None of the {len(measured)} trials was measured on all {n_splits} folds. Use a more "
            f"patient pruner (n_startup_trials), or more trials."
        )
    folds = [dict(fold) for trial in trials for fold in trial.user_attrs[FOLDS]]
    columns: dict[str, list[Any]] = {"trial_number": [trial.number for trial in trials]}
    if "cost" in folds[0]:
        costs = np.reshape([fold.pop("cost") for fold in folds], (-1, n_splits))
        columns["mean_cost"] = costs.mean(axis=1).tolist()
    return trials, folds, columns
