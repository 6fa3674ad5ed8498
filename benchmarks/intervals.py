"""Measure how often 95 % intervals hold the true value.

Data sets are drawn again and again from a known distribution, and each time an interval is asked
for; it should hold the true difference in 95 of 100 cases. Too few is too bold, too many too shy.

- `compare` on repeated cross-validation: two ridge classifiers, of which one sees half of the
  columns, on 200 rows; 5 folds, repeated 1 or 5 times. The truth is the mean difference over
  10,000 new rows and all draws of training rows.
- `compare` on the rows of one test set: right and wrong answers (50 and 400 rows), losses.
- `compare_predictions`: macro-F1 of three classes of which one is rare (100 and 400 rows).
- `stability_report`: mean, min, cvar and range of 15 candidates on 10 independent splits that are
  easy or hard for all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from _common import finish, machine_line, parse_arguments, print_table, threads
from numpy.typing import NDArray
from sklearn.linear_model import RidgeClassifier
from sklearn.metrics import f1_score
from sklearn.model_selection import RepeatedKFold

from skfusion import compare, compare_predictions, stability_report
from skfusion.inspection.stability import cvar

Interval = tuple[float, float]
Floats = NDArray[np.float64]

N_COLUMNS, N_ROWS, N_NEW = 20, 200, 10_000
CANDIDATES, SPLITS, SPREAD, NOISE, COMMON = 15, 10, 0.03, 0.015, 0.03
FIGURES: dict[str, Callable[[Floats], Any]] = {
    "mean": np.mean,
    "min": np.min,
    "cvar": cvar,
    "range": np.ptp,
}


def share(intervals: list[Interval], truth: float | list[float]) -> float:
    """Return the share of intervals that hold the truth."""
    truths = np.broadcast_to(truth, len(intervals))
    return float(
        np.mean([low <= true <= high for (low, high), true in zip(intervals, truths, strict=True)])
    )


# --- splits ----------------------------------------------------------------------------------


def draw_rows(rng: np.random.Generator, n: int) -> tuple[Floats, NDArray[np.intp]]:
    """Draw rows of two classes that differ a little in each column."""
    y = rng.integers(2, size=n)
    return rng.normal(size=(n, N_COLUMNS)) + 0.25 * y[:, None], y


def differences(
    X: Floats, y: NDArray[np.intp], train: Any, X_new: Floats, y_new: NDArray[np.intp]
) -> tuple[float, float]:
    """Return the accuracy of both classifiers on new rows."""
    wide = RidgeClassifier().fit(X[train], y[train])
    narrow = RidgeClassifier().fit(X[train, : N_COLUMNS // 2], y[train])
    half = X_new[:, : N_COLUMNS // 2]
    return float(narrow.score(half, y_new)), float(wide.score(X_new, y_new))


def on_splits(rng: np.random.Generator, n: int, repeats: int) -> float:
    """Return the coverage over repeated 5-fold cross-validation."""
    new = draw_rows(rng, N_NEW)
    intervals, truths = [], []
    for _ in range(n):
        X, y = draw_rows(rng, N_ROWS)
        folds = RepeatedKFold(n_splits=5, n_repeats=repeats, random_state=int(rng.integers(2**31)))
        scores = [differences(X, y, train, X[test], y[test]) for train, test in folds.split(X)]
        found = compare(*np.array(scores).T, test_fraction=1 / 5)
        intervals.append((found.low, found.high))
        a, b = differences(X, y, np.arange(N_ROWS * 4 // 5), *new)
        truths.append(b - a)
    return share(intervals, float(np.mean(truths)))


# --- rows ------------------------------------------------------------------------------------


def right_and_wrong(rng: np.random.Generator, n: int, n_rows: int) -> float:
    """Return the coverage for two classifiers that err in 30 and 22 % of the rows."""
    intervals = []
    for _ in range(n):
        hard, luck = rng.uniform(size=(2, n_rows))
        first = (hard > 0.25) & (luck > 0.0667)
        second = (hard > 0.15) & (luck < 0.918)
        found = compare(first, second, unit="rows")
        intervals.append((found.low, found.high))
    return share(intervals, 0.85 * 0.918 - 0.75 * 0.9333)


def losses(rng: np.random.Generator, n: int, n_rows: int) -> float:
    """Return the coverage for losses, which are skewed."""
    intervals = []
    for _ in range(n):
        common = rng.exponential(size=n_rows)
        found = compare(
            common + rng.exponential(0.5, size=n_rows),
            common + rng.exponential(0.6, size=n_rows),
            unit="rows",
        )
        intervals.append((found.low, found.high))
    return share(intervals, 0.1)


def draw_predictions(rng: np.random.Generator, n: int) -> tuple[NDArray[np.intp], ...]:
    """Draw classes, of which one is rare, and two predictions."""
    y = rng.choice(3, p=[0.5, 0.38, 0.12], size=n)
    wrong = rng.integers(3, size=(2, n))
    right = rng.uniform(size=(2, n)) < np.array([[0.6], [0.68]])
    a, b = np.where(right, y, wrong)
    return y, a, b


def macro_f1(rng: np.random.Generator, n: int, n_rows: int) -> float:
    """Return the coverage of the bootstrap."""
    y, a, b = draw_predictions(rng, 2_000_000)
    scores = [f1_score(y, one, average="macro") for one in (a, b)]
    intervals = []
    for _ in range(n):
        found = compare_predictions(
            *draw_predictions(rng, n_rows), n_resamples=500, random_state=int(rng.integers(2**31))
        )
        intervals.append((found.low, found.high))
    return share(intervals, scores[1] - scores[0])


# --- groups ----------------------------------------------------------------------------------


def of_groups(rng: np.random.Generator, n: int) -> dict[str, float]:
    """Return the coverage of each figure of a group."""
    intervals: dict[str, list[Interval]] = {figure: [] for figure in FIGURES}
    truths: dict[str, list[float]] = {figure: [] for figure in FIGURES}
    for _ in range(n):
        true = rng.normal(0.7, SPREAD, size=CANDIDATES)
        common = rng.normal(0, COMMON, size=SPLITS)
        scores = true[:, None] + common + rng.normal(0, NOISE, size=(CANDIDATES, SPLITS))
        report = stability_report(
            {"a": scores},
            test_fraction=1e-9,  # independent splits share no rows
            n_resamples=1000,
            random_state=int(rng.integers(2**31)),
        )
        for figure, function in FIGURES.items():
            intervals[figure].append(tuple(report.loc[("a", figure), ["low", "high"]]))
            truths[figure].append(float(function(true)))
    return {figure: share(intervals[figure], truths[figure]) for figure in FIGURES}


def main() -> None:
    """Print the table and write the figures."""
    args = parse_arguments(str(__doc__), lambda parser: None)
    print(machine_line())
    n = 60 if args.quick else 1000
    rng = np.random.default_rng(0)
    with threads(1):
        found = {
            "splits_1_repeat": on_splits(rng, n, 1),
            "splits_5_repeats": on_splits(rng, n, 5),
            "answers_50_rows": right_and_wrong(rng, n, 50),
            "answers_400_rows": right_and_wrong(rng, n, 400),
            "losses_100_rows": losses(rng, n, 100),
            "macro_f1_100_rows": macro_f1(rng, n, 100),
            "macro_f1_400_rows": macro_f1(rng, n, 400),
            **{f"group_{figure}": value for figure, value in of_groups(rng, n).items()},
        }
    rows = [[name, f"{100 * value:.1f}"] for name, value in found.items()]
    print_table(f"intervals that hold the truth, of {n}", ["", "%"], rows)
    figures = {f"coverage_{name}": value for name, value in found.items()}
    figures["coverage_least"] = min(found.values())
    figures["coverage_most"] = max(found.values())
    finish(figures, args.json)


if __name__ == "__main__":
    main()
