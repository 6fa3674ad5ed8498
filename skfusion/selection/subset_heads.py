"""Training and scoring what stands on top of the vectors of a subset."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection._validation import _fit_and_score
from sklearn.pipeline import Pipeline
from sklearn.utils import _safe_indexing
from sklearn.utils.parallel import Parallel, delayed

from ..neural.base import BaseFusionMLP
from .subset_parts import Part, Split, Subset, Task, make_tasks


@dataclass
class Trials:
    """Scores of subsets, each computed once.

    Attributes
    ----------
    head : estimator
        What is trained on a subset's vectors.
    parts : mapping of str to Part
        The vectors of each model.
    y : array-like
        Targets of all rows.
    splits : sequence of (ndarray of int, ndarray of int)
        Training and test rows of each fold.
    fit_params, score_params : dict of str to object
        Parameters for the head and the scorer.
    scorer, error_score, verbose : object
        See `score_task`.
    n_jobs : int or None
        How many processes run tasks.
    results : dict of tuple of str to list of dict
        For each subset so far what `score_task` gives for each fold.
    """

    head: Any
    parts: Mapping[str, Part]
    y: Any
    splits: Sequence[Split]
    fit_params: dict[str, Any]
    score_params: dict[str, Any]
    scorer: Any
    error_score: float | str
    verbose: int
    n_jobs: int | None
    results: dict[Subset, list[dict[str, Any]]] = field(default_factory=dict)

    def evaluate(self, subsets: Sequence[Subset]) -> list[float]:
        """Give the mean scores of subsets over the folds.

        Parameters
        ----------
        subsets : sequence of tuple of str
            The subsets; those that have been evaluated are not evaluated again.

        Returns
        -------
        list of float
            One a subset; NaN where a fold failed.

        Raises
        ------
        ValueError
            If the scorer gives several metrics.
        """
        jobs = [
            (subset, task)
            for subset in dict.fromkeys(subsets)
            if subset not in self.results
            for task in spread(self.head, self._tasks(subset))
        ]
        scored = Parallel(n_jobs=self.n_jobs)(
            delayed(score_task)(
                self.head,
                task,
                scorer=self.scorer,
                error_score=self.error_score,
                verbose=self.verbose,
            )
            for _, task in jobs
        )
        for (subset, _), results in zip(jobs, scored, strict=True):
            self.results.setdefault(subset, []).extend(results)
            _check_one_metric(results[0]["test_scores"])
        return [float(np.mean(self.scores(subset))) for subset in subsets]

    def scores(self, subset: Subset) -> list[float]:
        """Give the scores of a subset that was evaluated.

        Parameters
        ----------
        subset : tuple of str
            The subset.

        Returns
        -------
        list of float
            One a fold.
        """
        return [result["test_scores"] for result in self.results[subset]]

    def _tasks(self, subset: Subset) -> list[Task]:
        parts = [self.parts[name] for name in subset]
        return make_tasks(parts, self.y, self.splits, self.fit_params, self.score_params)


def spread(head: Any, tasks: Iterable[Task]) -> list[Task]:
    """Cut tasks into what should run in one process.

    Parameters
    ----------
    head : estimator
        What is trained.
    tasks : iterable of Task
        The tasks of one subset.

    Returns
    -------
    list of Task
        The tasks themselves where the head is a network, since those of all folds are trained
        as one; otherwise one for each fold.
    """
    if network_of(head) is not None:
        return list(tasks)
    return [replace(task, splits=[split]) for task in tasks for split in task.splits]


def score_task(
    head: Any, task: Task, *, scorer: Any, error_score: float | str, verbose: int
) -> list[dict[str, Any]]:
    """Train one head a split on the training rows and score it on the test rows.

    Parameters
    ----------
    head : estimator
        Cloned for each split.
    task : Task
        Rows and splits.
    scorer : callable
        ``scorer(fitted, X, y)``.
    error_score : float or "raise"
        The score where a fit or the scorer fails.
    verbose : int
        As for `GridSearchCV`.

    Returns
    -------
    list of dict
        One a split, with ``fit_time``, ``score_time``, ``test_scores`` and ``fit_error``.
    """
    start = time.perf_counter()
    heads = _prepare(head, task, error_score)
    seconds = (time.perf_counter() - start) / len(task.splits)
    results = [
        _fit_and_score(
            estimator,
            task.X,
            task.y,
            scorer=scorer,
            train=train,
            test=test,
            verbose=verbose,
            parameters=None,
            fit_params=task.fit_params,
            score_params=task.score_params,
            return_n_test_samples=True,
            return_times=True,
            error_score=error_score,
        )
        for estimator, (train, test) in zip(heads, task.splits, strict=True)
    ]
    for result in results:
        result["fit_time"] += seconds
    return results


def _check_one_metric(score: Any) -> None:
    if isinstance(score, dict):
        raise ValueError(
            f"scoring gives several metrics: {', '.join(score)}. Subsets are compared by one: "
            f"give a scorer that returns a number."
        )


def network_of(head: Any) -> BaseFusionMLP | None:
    """Give the network that a head consists of.

    Parameters
    ----------
    head : estimator
        An estimator, or a pipeline.

    Returns
    -------
    FusionMLPClassifier, FusionMLPRegressor or None
        The head itself or its only step; None where it is something else.
    """
    if isinstance(head, Pipeline) and len(head.steps) == 1:
        head = head.steps[0][1]
    return head if isinstance(head, BaseFusionMLP) else None


def _prepare(head: Any, task: Task, error_score: float | str) -> list[Any]:
    """Give a head for each split: networks trained, all as one, and others still to be trained."""
    network = network_of(head)
    if network is not None and not task.fit_params and len(task.splits) > 1:
        folds = [train for train, _ in task.splits]
        try:
            return [
                FrozenEstimator(
                    clone(network).fit(_safe_indexing(task.X, fold), _safe_indexing(task.y, fold))
                )
                for fold in folds
            ]
        except Exception:
            # One by one they show which of them fail, and the others get their scores.
            if error_score == "raise":
                raise
    return [clone(head) for _ in task.splits]
