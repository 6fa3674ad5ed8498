"""Sets of models: scores over costs, scores by size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..candidates import (
    half_intervals,
    label,
    read_candidates,
    within_one_error,
)
from ..drawing import (
    COLOURS,
    QUIET,
    TIED,
    axes,
    interval_note,
    left_out_note,
    note,
    ring,
)
from ..stability import pareto_front

Floats = NDArray[np.float64]


_COST_NAMES = {
    "cost": "cost",
    "seconds_per_text": "seconds per text",
    "bytes_per_text": "bytes per text",
    "peak_bytes": "most memory, bytes",
    "mean_fit_time": "seconds of a fit",
    "mean_score_time": "seconds of scoring",
}


class TradeoffDisplay:
    """Scores over costs, with the front of those that nothing beats at their price.

    Use `from_estimator`, `from_cv_results` or `from_scores` to make one.

    Parameters
    ----------
    costs : array-like of shape (n,)
        In the unit that `cost_name` says.
    scores : array-like of shape (n,)
        Mean scores.
    half_intervals : array-like of shape (n,)
        Half of the interval of each score; NaN draws none.
    names : sequence of str
        Labels of the points.
    chosen : int or None, default=None
        The point that was chosen.
    tied : array-like of bool, shape (n,), or None, default=None
        Points that are as good as the best.
    name : str, default="score"
        Name of the scores.
    cost_name : str, default="cost"
        Name of the costs.
    notes : sequence of str, default=()
        Small print.

    Attributes
    ----------
    front : ndarray of int
        The points on the Pareto front, from the cheapest to the best.
    ax_ : matplotlib Axes
        Where `plot` has drawn.
    figure_ : matplotlib Figure
        The figure of these axes.

    Examples
    --------
    >>> from skfusion import TradeoffDisplay
    >>> scores = [[0.6, 0.7], [0.6, 0.6], [0.8, 0.7]]
    >>> display = TradeoffDisplay.from_scores(scores, [1.0, 2.0, 3.0], ["a", "b", "a + b"])
    >>> display.front
    array([0, 2])
    """

    def __init__(
        self,
        costs: ArrayLike,
        scores: ArrayLike,
        half_intervals: ArrayLike,
        names: Sequence[str],
        *,
        chosen: int | None = None,
        tied: ArrayLike | None = None,
        name: str = "score",
        cost_name: str = "cost",
        notes: Sequence[str] = (),
    ) -> None:
        self.costs = costs
        self.scores = scores
        self.half_intervals = half_intervals
        self.names = names
        self.chosen = chosen
        self.tied = tied
        self.name = name
        self.cost_name = cost_name
        self.notes = notes

    @property
    def front(self) -> NDArray[np.intp]:
        """The points on the Pareto front, from the cheapest to the best."""
        return pareto_front(self.scores, self.costs)

    @classmethod
    def from_scores(
        cls,
        scores: ArrayLike,
        costs: ArrayLike,
        names: Sequence[str],
        *,
        chosen: int | None = None,
        test_fraction: float | None = None,
        name: str = "score",
        cost_name: str = "cost",
        notes: Sequence[str] = (),
        ax: Any = None,
    ) -> Self:
        """Draw scores of the same splits.

        Parameters
        ----------
        scores : array-like of shape (n, n_splits)
            One row per point.
        costs : array-like of shape (n,)
            What each costs.
        names : sequence of str
            Labels of the points.
        chosen : int or None, default=None
            The point that was chosen.
        test_fraction : float or None, default=None
            The share of rows that each split tests on; None is 1 / n_splits.
        name : str, default="score"
            Name of the scores.
        cost_name : str, default="cost"
            Name of the costs.
        notes : sequence of str, default=()
            More small print.
        ax : matplotlib Axes or None, default=None
            Where to draw; None makes a figure.

        Returns
        -------
        TradeoffDisplay
            Drawn.
        """
        values, prices = np.asarray(scores, dtype=np.float64), np.asarray(costs, dtype=np.float64)
        if values.ndim != 2 or prices.shape != values.shape[:1] or len(names) != len(prices):
            raise ValueError(
                f"Scores (n, n_splits), costs (n,) and n names were expected, got {values.shape}, "
                f"{prices.shape} and {len(names)} names."
            )
        return cls(
            prices,
            values.mean(axis=1),
            half_intervals(values, test_fraction),
            names,
            chosen=chosen,
            tied=within_one_error(values),
            name=name,
            cost_name=cost_name,
            notes=[interval_note(values.shape[1]), *notes],
        ).plot(ax)

    @classmethod
    def from_estimator(cls, estimator: Any, *, cost: str = "cost", ax: Any = None) -> Self:
        """Draw the subsets of a fitted `ModelSubsetSearchCV`.

        Parameters
        ----------
        estimator : ModelSubsetSearchCV
            The search.
        cost : str, default="cost"
            A column of `cv_results_`: "cost", "seconds_per_text", "bytes_per_text", "peak_bytes".
        ax : matplotlib Axes or None, default=None
            Where to draw; None makes a figure.

        Returns
        -------
        TradeoffDisplay
            Drawn.
        """
        return cls.from_cv_results(estimator, cost=cost, ax=ax)

    @classmethod
    def from_cv_results(
        cls,
        search: Any,
        *,
        cost: str = "mean_fit_time",
        label_by: str | None = None,
        ax: Any = None,
    ) -> Self:
        """Draw all candidates of a search.

        Parameters
        ----------
        search : fitted search
            With `cv_results_`.
        cost : str, default="mean_fit_time"
            The column of `cv_results_` that is the cost.
        label_by : str or None, default=None
            The parameter that points are called by; None takes all.
        ax : matplotlib Axes or None, default=None
            Where to draw; None makes a figure.

        Returns
        -------
        TradeoffDisplay
            Drawn.
        """
        found = read_candidates(search)
        if cost not in search.cv_results_:
            columns = [key for key, values in search.cv_results_.items() if _is_numeric(values)]
            raise ValueError(f"cv_results_ has no column {cost!r} among {', '.join(columns)}.")
        costs = np.asarray(search.cv_results_[cost], dtype=np.float64)[found.rows]
        chosen = getattr(search, "best_index_", None)
        return cls.from_scores(
            found.scores,
            costs,
            [_candidate_name(params, label_by) for params in found.params],
            chosen=found.rows.index(chosen) if chosen in found.rows else None,
            test_fraction=found.test_fraction,
            name=found.metric,
            cost_name=_COST_NAMES.get(cost, cost),
            notes=[left_out_note(found.n_left_out)],
            ax=ax,
        )

    def plot(self, ax: Any = None) -> Self:
        """Draw.

        Parameters
        ----------
        ax : matplotlib Axes or None, default=None
            Where to draw; None makes a figure.

        Returns
        -------
        TradeoffDisplay
            Itself.
        """
        self.figure_, self.ax_ = _, axis = axes(self, ax)
        costs, scores = np.asarray(self.costs, dtype=float), np.asarray(self.scores, dtype=float)
        half, front = np.asarray(self.half_intervals, dtype=float), self.front
        if np.isfinite(half).any():
            axis.errorbar(
                costs, scores, yerr=half, fmt="none", ecolor=QUIET, elinewidth=0.8, alpha=0.5
            )
        axis.step(costs[front], scores[front], where="post", color=COLOURS[0], label="not beaten")
        axis.scatter(costs, scores, color=QUIET, s=24, zorder=3)
        axis.scatter(costs[front], scores[front], color=COLOURS[0], s=36, zorder=3)
        if self.chosen is not None:
            axis.scatter(
                costs[self.chosen],
                scores[self.chosen],
                marker="*",
                s=190,
                color=COLOURS[1],
                edgecolors="black",
                zorder=5,
                label="chosen",
            )
        if self.tied is not None and np.any(self.tied):
            ring(axis, costs[np.asarray(self.tied)], scores[np.asarray(self.tied)], TIED)
        # Names of the front only where there are many: others would cover each other.
        named = list(range(len(costs)) if len(costs) <= 12 else front)
        for turn, place in enumerate(sorted(named, key=lambda i: (costs[i], scores[i]))):
            lift = (10, -10, 24, -24)[turn % 4]  # neighbours at different heights
            axis.annotate(
                self.names[place],
                (costs[place], scores[place]),
                xytext=(0, lift),
                textcoords="offset points",
                ha="center",
                va="bottom" if lift > 0 else "top",
                fontsize="small",
                bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 0.5},
                zorder=6,
            )
        axis.margins(0.2, 0.15)
        if (costs > 0).all() and costs.max() > 20 * costs.min():
            axis.set_xscale("log")
        axis.set(xlabel=self.cost_name, ylabel=self.name)
        axis.legend(fontsize="small", loc="best")
        note(axis, *self.notes)
        return self


class SubsetDisplay:
    """Scores of sets of models, by how many models they have.

    Use `from_estimator` or `from_scores` to make one.

    Parameters
    ----------
    sizes : sequence of int
        Numbers of models.
    scores : sequence of array-like of shape (n_subsets,)
        Mean scores of the subsets of each size.
    expected_minimum : array-like of shape (n_sizes,) or None, default=None
        The lowest score to be expected of as many sets as there are of the size with fewest.
    chosen : tuple of (int, float) or None, default=None
        Size and score of the chosen subset.
    name : str, default="score"
        Name of the scores.
    notes : sequence of str, default=()
        Small print.

    Attributes
    ----------
    ax_ : matplotlib Axes
        Where `plot` has drawn.
    figure_ : matplotlib Figure
        The figure of these axes.

    Examples
    --------
    >>> from skfusion import SubsetDisplay
    >>> display = SubsetDisplay.from_scores({("a",): 0.6, ("b",): 0.7, ("a", "b"): 0.75})
    >>> display.sizes
    [1, 2]
    """

    def __init__(
        self,
        sizes: Sequence[int],
        scores: Sequence[ArrayLike],
        *,
        expected_minimum: ArrayLike | None = None,
        chosen: tuple[int, float] | None = None,
        name: str = "score",
        notes: Sequence[str] = (),
    ) -> None:
        self.sizes = sizes
        self.scores = scores
        self.expected_minimum = expected_minimum
        self.chosen = chosen
        self.name = name
        self.notes = notes

    @classmethod
    def from_scores(
        cls,
        scores: Mapping[tuple[str, ...], float],
        *,
        expected_minimum: ArrayLike | None = None,
        chosen: tuple[str, ...] | None = None,
        name: str = "score",
        notes: Sequence[str] = (),
        ax: Any = None,
    ) -> Self:
        """Draw the mean score of each set of models.

        Parameters
        ----------
        scores : mapping of tuple of str to float
            By the models of the set.
        expected_minimum : array-like of shape (n_sizes,) or None, default=None
            See the class.
        chosen : tuple of str or None, default=None
            The chosen set.
        name : str, default="score"
            Name of the scores.
        notes : sequence of str, default=()
            Small print.
        ax : matplotlib Axes or None, default=None
            Where to draw; None makes a figure.

        Returns
        -------
        SubsetDisplay
            Drawn.
        """
        sizes = sorted({len(models) for models in scores})
        if not sizes:
            raise ValueError("There is no set of models. Give the score of one at least.")
        return cls(
            sizes,
            [
                np.array([score for models, score in scores.items() if len(models) == size])
                for size in sizes
            ],
            expected_minimum=expected_minimum,
            chosen=None if chosen is None else (len(chosen), float(scores[chosen])),
            name=name,
            notes=notes,
        ).plot(ax)

    @classmethod
    def from_estimator(cls, estimator: Any, *, ax: Any = None) -> Self:
        """Draw the subsets of a fitted `ModelSubsetSearchCV`.

        Parameters
        ----------
        estimator : ModelSubsetSearchCV
            The search.
        ax : matplotlib Axes or None, default=None
            Where to draw; None makes a figure.

        Returns
        -------
        SubsetDisplay
            Drawn.
        """
        found = read_candidates(estimator)
        subsets = [tuple(params["blocks"]) for params in found.params]
        scores = dict(zip(subsets, found.scores.mean(axis=1).tolist(), strict=True))
        report = estimator.size_report_
        known = {len(subset) for subset in subsets}
        lowest = [
            value
            for size, value in zip(report["size"], report["expected_min"], strict=True)
            if size in known
        ]
        chosen = tuple(getattr(estimator, "best_subset_", ()))
        return cls.from_scores(
            scores,
            expected_minimum=lowest,
            chosen=chosen if chosen in scores else None,
            name=found.metric,
            notes=[left_out_note(found.n_left_out)],
            ax=ax,
        )

    def plot(self, ax: Any = None) -> Self:
        """Draw.

        Parameters
        ----------
        ax : matplotlib Axes or None, default=None
            Where to draw; None makes a figure.

        Returns
        -------
        SubsetDisplay
            Itself.
        """
        self.figure_, self.ax_ = _, axis = axes(self, ax)
        groups = [np.asarray(scores, dtype=np.float64) for scores in self.scores]
        axis.boxplot(
            groups,
            positions=self.sizes,
            widths=0.5,
            showfliers=False,
            medianprops={"color": COLOURS[1], "linewidth": 2},
            zorder=1,
        )
        for size, scores in zip(self.sizes, groups, strict=True):
            axis.scatter(np.full(len(scores), size), scores, color=COLOURS[0], s=22, zorder=3)
        if self.expected_minimum is not None:
            axis.plot(
                self.sizes,
                np.asarray(self.expected_minimum),
                color=QUIET,
                marker="v",
                linestyle=":",
                label="expected lowest of equally many",
            )
        if self.chosen is not None:
            ring(axis, [self.chosen[0]], [self.chosen[1]], "chosen")
        axis.set_xticks(self.sizes, [str(size) for size in self.sizes])
        axis.set(xlabel="number of models", ylabel=self.name)
        if axis.get_legend_handles_labels()[0]:
            axis.legend(fontsize="small", loc="best")
        note(axis, *self.notes)
        return self


def _is_numeric(values: Any) -> bool:
    return np.asarray(values).dtype.kind in "fiu"


def _candidate_name(params: Mapping[str, Any], by: str | None) -> str:
    if by is not None:
        return label(params[by]) if by in params else ""
    if set(params) == {"blocks"}:
        return " + ".join(params["blocks"])
    return ", ".join(f"{key.split('__')[-1]} {label(value)}" for key, value in params.items())
