"""From the trials of a study to the candidates of `OptunaSearchCV`, and the cheapest good one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .optuna_trials import FOLDS, Fold, measured_trials

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial


def read_results(
    study: Study, n_splits: int
) -> tuple[list[FrozenTrial], list[Fold], dict[str, list[Any]]]:
    """Read what was measured, by whichever process.

    Parameters
    ----------
    study : Study
        The study.
    n_splits : int
        Number of folds. Trials that were pruned have fewer, and are left out.

    Returns
    -------
    trials : list of FrozenTrial
        In the order in which they were asked for.
    folds : list of Fold
        The folds of the first trial, of the second and so on.
    columns : dict of str to list
        What ``cv_results_`` says beside scikit-learn's columns.

    Raises
    ------
    ValueError
        If there is no such trial.
    """
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


def cheapest_near_best(
    mean: NDArray[np.float64], error: NDArray[np.float64], cost: NDArray[np.float64]
) -> int:
    """Choose the cheapest candidate whose score is within one standard error of the best.

    Parameters
    ----------
    mean, error, cost : ndarray of shape (n_candidates,)
        Scores, their standard errors, and costs. NaN is never chosen while there is another.

    Returns
    -------
    int
        The candidate; of equally cheap ones the best.

    Examples
    --------
    >>> import numpy as np
    >>> from skfusion.selection.optuna_results import cheapest_near_best
    >>> mean, cost = np.array([0.7, 0.88, 0.9]), np.array([1.0, 2.0, 9.0])
    >>> cheapest_near_best(mean, np.full(3, 0.03), cost)
    1
    """
    if np.isnan(mean).all():
        return 0
    best = np.nanargmax(mean)
    near = mean >= mean[best] - error[best]
    price = np.where(near & ~np.isnan(cost), cost, np.inf)
    cheapest = np.flatnonzero(price == price.min())
    return int(cheapest[np.nanargmax(mean[cheapest])])
